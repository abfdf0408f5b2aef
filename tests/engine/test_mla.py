"""What latent attention is served with and what it is not, and what the proof counts of it."""

import json

import pytest
import torch

from evalsvc.engine import proof as proof_module
from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv import pool as pool_module
from evalsvc.engine.kv.latent_pool import LatentPool
from evalsvc.engine.mla import LatentAttention
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest, TextPiece
from evalsvc.engine.sizes import LatentShape
from evalsvc.errors import CapabilityError, ConfigError, EngineError

RANK, ROPE, LAYERS, INDEX = 256, 16, 2, 32
SCALES = [0.013, 0.007]


@pytest.fixture
def scales(tmp_path):
    (tmp_path / "scales.json").write_text(json.dumps({"k": SCALES, "v": SCALES}))
    return tmp_path / "scales.json"


@pytest.fixture
def served(tiny, scales):
    """`served("kv=bf16", "deepseek_v3")`: an engine, with a file of scales where the plan asks for one."""

    def load(plan: str, name: str = "deepseek_v3") -> Engine:
        parsed = parse_plan(plan)
        given = parsed.prefill.kv.given or parsed.decode.kv.given
        arm = ArmSpec(parsed, scales=scales if given else None)
        return Engine.load(tiny(name), plans={"a": arm}, kv_tokens=256, poison=True)

    return load


def proof_of(engine: Engine) -> dict:
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3, ignore_eos=True)]))
    return engine.proof()


@pytest.mark.parametrize(
    ("fmt", "per_layer"),
    [
        ("fp32", 4 * (RANK + ROPE)),
        ("bf16", 2 * (RANK + ROPE)),
        ("fp8:uncalibrated", RANK + ROPE),
        ("fp8:given", RANK + ROPE),
        ("fp8:latent128", RANK + 4 * RANK // 128 + 2 * ROPE),
    ],
)
def test_the_proof_counts_latents_and_rope_keys_and_no_heads(served, fmt, per_layer):
    proof = proof_of(served(f"w=bf16,kv={fmt}"))
    assert proof["mismatches"] == []
    for stage in ("prefill", "decode"):
        kv = proof[stage]["kv"]
        assert kv["bytes_per_token"] == LAYERS * per_layer
        assert kv["latent"]["rank"] == RANK and kv["latent"]["rope"] == ROPE
        kernel = "latent_attention_expanded" if stage == "prefill" else "latent_attention"
        assert proof[stage]["kernels"][f"{kernel}.torch"] == LAYERS * proof[stage]["forwards"]


@pytest.mark.parametrize(("fmt", "key"), [("bf16", 2 * INDEX), ("fp8:uncalibrated", INDEX + 4)])
def test_index_keys_are_counted_on_the_layers_that_have_some(served, fmt, key):
    """Of three layers the one between shares the choice of the first."""
    kv = proof_of(served(f"kv={fmt}", "glm_moe_dsa"))["decode"]["kv"]
    assert kv["bytes_per_token"] == 3 * (RANK + ROPE) * (2 if fmt == "bf16" else 1) + 2 * key
    assert kv["latent"]["index_layers"] == 2


def test_latents_of_the_real_size_take_576_numbers_a_layer_and_half_as_many_bytes_in_fp8():
    """61 layers of Kimi K2, 78 of GLM 5 with index keys: pools of one page, counted."""
    kimi, glm = LatentShape(61, 512, 64), LatentShape(78, 512, 64, 128, tuple(range(78)))

    def held(shape: LatentShape, text: str) -> float:
        fmt = parse_plan(f"kv={text}").decode.kv
        counted = LatentPool(fmt, shape, 16).bytes_per_token()
        assert counted == shape.token_bytes(fmt)
        return counted

    assert held(kimi, "bf16") == 576 * 2 * 61 == 70_272
    assert held(kimi, "fp8:uncalibrated") == 576 * 61 == held(kimi, "bf16") / 2
    assert held(kimi, "fp8:latent128") == held(kimi, "fp8:uncalibrated") + 61 * (
        4 * 4 + 64
    )  # scales; rope keys in bf16
    assert held(glm, "bf16") == (576 + 128) * 2 * 78
    assert held(glm, "fp8:uncalibrated") == held(glm, "bf16") / 2 + 4 * 78


@pytest.mark.parametrize("fmt", ["fp8", "fp8:head:given", "int8", "int8:calibrated", "int8:head:given"])
@pytest.mark.parametrize("name", ["deepseek_v3", "glm_moe_dsa"])
def test_formats_of_heads_are_refused_by_name_before_anything_is_loaded(fmt, name, tiny, scales):
    plan = parse_plan(f"kv=bf16 > kv={fmt}")
    arm = ArmSpec(plan, scales if plan.decode.kv.calibrated else None, scales=scales if plan.decode.kv.given else None)
    with pytest.raises(
        CapabilityError, match=f"kv={plan.decode.kv} is not for latent attention.* use fp32, bf16, fp8:lat"
    ):
        Engine.load(tiny(name), plans={"a": arm})


def test_tiles_of_a_latent_are_refused_where_there_is_none_and_where_they_do_not_divide_it(tiny):
    with pytest.raises(CapabilityError, match="kv=fp8:latent128 is for latent attention"):
        Engine.load(tiny("llama"), "kv=fp8:latent128")
    with pytest.raises(CapabilityError, match="tiles of 128 do not divide a latent of 96"):
        Engine.load(tiny("deepseek_v3", kv_lora_rank=96, first_k_dense_replace=2), "kv=fp8:latent128")


def test_a_latent_has_one_scale_as_key_and_as_value(served, scales):
    scales.write_text(json.dumps({"k": SCALES, "v": SCALES[::-1]}))
    with pytest.raises(ConfigError, match="a latent is key and value at once"):
        served("kv=fp8:given").arm()


@pytest.mark.parametrize("weights", ["fp8", "int8", "nvfp4", "fp8:w8a16", "int4:g32"])
def test_what_expands_latents_is_decoded_once_and_the_proof_names_it(served, weights):
    """The other linears quantize activations where the format says so."""
    engine = served(f"w={weights}")
    proof = proof_of(engine)
    assert proof["mismatches"] == []
    named = {"kv_b_proj": LAYERS} if ":" not in weights else {}
    assert proof["decode"]["weights"]["without_quantized_activations"] == named
    copies = set()
    for stage in (engine.arm().prefill, engine.arm().decode):
        for attention in (m for m in stage.weights.model.modules() if isinstance(m, LatentAttention)):
            matrix = attention.kv_b_proj.matrix
            assert matrix.fmt.activations in ("", "w8a16", "w4a16")
            assert torch.equal(matrix.weight, matrix.dequantized().bfloat16())
            copies.add(matrix.weight.data_ptr())
    assert len(copies) == LAYERS  # both stages, and both forms, read the same


def test_pages_of_another_type_than_the_plan_says_are_a_mismatch(served, monkeypatch):
    monkeypatch.setitem(pool_module.DTYPES, "fp8", torch.bfloat16)
    found = proof_of(served("kv=bf16 > kv=fp8:uncalibrated"))["mismatches"]
    assert any("KV is held as bfloat16" in one for one in found)
    assert any("a token takes 1088.0 bytes of KV" in one or "a token takes 1088 bytes" in one for one in found)


def test_another_linear_without_quantized_activations_is_a_mismatch(served, monkeypatch):
    monkeypatch.setattr(proof_module, "UP", "none")
    (*_, last) = proof_of(served("w=fp8"))["mismatches"]
    assert "activations of kv_b_proj are not quantized" in last


def test_scales_that_are_not_the_ones_given_are_a_mismatch(served):
    engine = served("kv=bf16 > kv=fp8:given")
    assert proof_of(engine)["mismatches"] == []
    engine.arm().decode.pool.scale[1] *= 1.001
    (found,) = engine.proof()["mismatches"]
    assert "decode: KV scales are not the ones given" in found
    with pytest.raises(EngineError, match="one scale a layer"):
        two = torch.ones(2)
        LatentPool(parse_plan("kv=fp8:given").decode.kv, LatentShape(2, 256, 16), 16, pool_module.Scales(two, two * 2))


def test_sparse_attention_reads_fewer_keys_than_there_are(tiny, ids):
    """With as many keys as tokens the same weights say something else: the choice is not all of them."""
    prompt = ids(60, 2)
    some, all_ = (
        Engine.load(tiny("glm_moe_dsa", index_topk=topk), "w=fp32,kv=fp32", kv_tokens=256).logits(prompt)
        for topk in (24, 100)
    )
    assert torch.equal(some[:24], all_[:24])
    assert (some[24:] - all_[24:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("part", ["latent", "rope", "scale", "index", "index_scale"])
def test_a_number_of_a_page_that_changes_ends_its_request_and_no_other(part, serve, ids):
    requests = [GenerateRequest(prompt=ids(30, n), max_tokens=9, ignore_eos=True, id=f"r{n}") for n in range(2)]
    plan = "kv=bf16 > kv=fp8:latent128"
    clean = {one.id: one.token_ids for one in serve("glm_moe_dsa", plan).generate(requests)}
    engine, found, pieces = serve("glm_moe_dsa", plan, integrity="content"), {}, 0
    pool = engine.arm().decode.pool
    for outcome in engine.stream(requests):
        if isinstance(outcome, TextPiece):
            pieces += 1
            if pieces == 4:
                (lane,) = (
                    lane for lane in engine._loop.scheduler._lanes[engine.arm().decode] if lane.owner.request.id == "r1"
                )
                getattr(pool, part).view(torch.uint8)[1, lane.sequence.slots(3, 4)[0], -1] ^= 1
        else:
            found[outcome.id] = outcome
    assert found["r1"].error == "integrity" and found["r0"].token_ids == clean["r0"]
