"""The proof counts tensors, and says so when they are not what the plan promises."""

import json
from collections import Counter

import pytest
import torch

from evalsvc.engine import matrix as matrix_module
from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv import pool as pool_module
from evalsvc.engine.linear import PlanLinear
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest

PLANS = [
    "w=fp32,kv=fp32",
    "w=bf16,kv=bf16",
    "w=fp8,kv=fp8",
    "w=fp8:w8a16,kv=fp8:uncalibrated",
    "w=int4:g32:sym,kv=bf16 > w=int4:g32:asym,kv=fp8",
    "w=bf16,kv=bf16 > w=fp32,kv=fp8",
    "w=int4:g32:lm_head,kv=int8 > w=fp8:w8a16:lm_head,kv=int8:head:given",
    "w=fp8:lm_head,kv=int8:given > kv=fp8:given",
    "w=int8,kv=bf16 > w=nvfp4,kv=int8",
    "w=nvfp4:w4a16:lm_head > w=int8:w8a16",
    "w=fp8:block128 > w=fp8:block128:w8a16:lm_head",
]
WEIGHT_BITS = {"fp32": 32, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4}
# Two layers of a tiny llama: q, k, v, o (64 -> 128, 64, 64, and back), gate, up, down (64 x 96).
ELEMENTS = 2 * (64 * 128 * 2 + 64 * 64 * 2 + 3 * 64 * 96)


BIASES = 2 * (128 + 64 + 64 + 64)
HEAD = 64 * 288  # not tied, and quantized only when asked


@pytest.fixture
def serve_given(serve, tmp_path):
    """As `serve`, with a file of scales where a plan asks for one: 2^-4 and 2^-5 times layer, head and part."""

    def load(plan: str, **options) -> Engine:
        parsed = parse_plan(plan)
        kinds = {kv.per for kv in (parsed.prefill.kv, parsed.decode.kv) if kv.given}
        if not kinds:
            return serve("llama", plan, **options)
        (per,) = kinds
        k = [[0.0625, 0.125], [0.1875, 0.25]] if per == "head" else [0.0625, 0.125]
        v = [[0.03125, 0.0625], [0.125, 0.3125]] if per == "head" else [0.03125, 0.0625]
        path = tmp_path / "scales.json"
        path.write_text(json.dumps({"k": k, "v": v}))
        return serve("llama", plan=None, plans={"a": ArmSpec(parsed, scales=path)}, **options)

    return load


def answered(engine: Engine) -> dict:
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    return engine.proof()


@pytest.mark.parametrize("plan", PLANS)
def test_an_honest_arm_matches_and_its_bytes_are_counted(serve_given, plan):
    engine = serve_given(plan)
    proof, parsed = answered(engine), engine.arm().spec.plan
    assert proof["mismatches"] == []
    for name, stage in (("prefill", parsed.prefill), ("decode", parsed.decode)):
        weights, kv = proof[name]["weights"], proof[name]["kv"]
        bits, head = WEIGHT_BITS[stage.weights.kind], stage.weights.lm_head
        elements = ELEMENTS + head * HEAD
        assert weights["elements"] == elements and weights["linears"] == 14 + head
        assert weights["code_bits"] == bits
        channels = 2 * (128 + 64 + 64 + 64 + 96 + 96 + 64) + head * 288
        blocks = 2 * 7 + head * 3  # of 128 x 128: every matrix but the head fits one
        scales = {
            "fp8": 4 * (blocks if stage.weights.group else channels),
            "int8": 4 * channels,
            "int4": elements // (stage.weights.group or 1) * 2 * (1 if stage.weights.symmetric else 2),
            "nvfp4": elements // 16 + 4 * (14 + head),
        }.get(stage.weights.kind, 0)
        assert weights["format_bytes"] == elements * bits // 8 + scales
        plain = "fp32" if stage.weights.kind == "fp32" else "bf16"
        formats = Counter({stage.weights.stored: 14 + head}) + Counter({plain: 1 - head})
        assert weights["linears_by_format"] == formats
        # Embeddings, five norms, the biases of q, k, v and o, and the head where it is not packed.
        assert weights["other_bytes"] == (HEAD * (2 - head) + 5 * 64 + BIASES) * (4 if plain == "fp32" else 2)
        element = {"fp32": 4, "bf16": 2, "fp8": 1, "int8": 1}[stage.kv.kind]
        dynamic = 4 if stage.kv.scale == "token-head" else 0
        assert kv["bytes_per_token"] == 2 * 2 * 2 * (32 * element + dynamic)  # layers, K and V, heads
        assert (kv["scale_per"], kv["scale_origin"]) == (stage.kv.per, stage.kv.origin)
        ranges = {"given": [0.03125, 0.125] if stage.kv.per == "tensor" else [0.03125, 0.3125]}
        assert kv["scale_range"] == (ranges | {"uncalibrated": [1.0, 1.0]}).get(stage.kv.origin)
        assert kv["peak_tokens"] == 16
        assert proof[name]["tokens_computed"] == (5 if name == "prefill" else 2)
    assert engine.capacity(1_000_000)["decode"] == int(1_000_000 / proof["decode"]["kv"]["bytes_per_token"])


def test_a_cache_of_one_byte_elements_holds_twice_the_tokens(serve_given):
    """A head of 32 numbers with its scale takes 36 bytes instead of 64."""
    twice, dynamic = serve_given("kv=bf16 > kv=fp8:uncalibrated"), serve_given("kv=bf16 > kv=int8")
    assert twice.capacity(343_000 * 512) == {"prefill": 343_000, "decode": 686_000}
    assert dynamic.capacity(343_000 * 512)["decode"] == 343_000 * 64 // 36


@pytest.mark.parametrize("kept", [True, False])
def test_a_head_in_another_form_than_asked_is_a_mismatch(serve, monkeypatch, kept):
    """Left at bf16 though asked, or quantized though not."""
    engine = serve("llama", "w=int4:g32:lm_head" if kept else "w=int4:g32")
    weights = engine.arm().prefill.weights
    if kept:
        head = weights.linears.pop("lm_head")
        weights.model.lm_head = torch.nn.Linear(64, 288, bias=False, dtype=torch.bfloat16)
        assert head.matrix.stored == "int4:g32:sym"
    else:
        weights.linears["lm_head"] = PlanLinear(weights.model.lm_head.weight, None, weights.fmt, "lm_head")
        weights.model.lm_head = weights.linears["lm_head"]
    assert any("linears are held as" in m for m in answered(engine)["mismatches"])


@pytest.mark.parametrize("plan", ["kv=fp8:head:given", "kv=int8:given", "kv=fp8:uncalibrated"])
def test_scales_that_are_not_the_ones_asked_are_a_mismatch(serve_given, plan):
    engine = serve_given(plan)
    assert engine.proof()["mismatches"] == []
    scale = engine.arm().decode.pool.v_scale
    scale.view(-1)[-1] *= 1.001
    (found,) = engine.proof()["mismatches"]
    assert found.startswith("decode: ") and "scales" in found
    scale.fill_(1.0)  # what was asked never arrived
    assert len(engine.proof()["mismatches"]) == (0 if "uncalibrated" in plan else 1)


def test_a_scale_of_another_shape_than_the_plan_says_is_a_mismatch(serve_given):
    engine = serve_given("kv=fp8:head:given")
    pool = engine.arm().decode.pool
    pool.k_scale, pool.v_scale = pool.k_scale[:, 0].clone(), pool.v_scale[:, 0].clone()
    assert any("KV scales are tensor" in m for m in engine.proof()["mismatches"])


@pytest.mark.parametrize("plan", ["w=fp8", "w=fp8:w8a16", "w=int4:g32", "w=int8", "w=nvfp4", "w=fp8:block128"])
def test_weights_that_fall_back_to_bf16_are_a_mismatch(serve, monkeypatch, plan):
    monkeypatch.setattr(matrix_module, "quantize", lambda weight, fmt, name: weight.bfloat16())
    found = answered(serve("llama", plan))["mismatches"]
    assert any("weights are held as {'bfloat16': 14}" in m for m in found)
    assert any("16.0 bits" in m for m in found)


@pytest.mark.parametrize("kind", ["fp8", "int8", "nvfp4"])
def test_a_product_of_the_wrong_kind_is_a_mismatch(serve, monkeypatch, kind):
    engine = serve("llama", f"w={kind}")
    stored = parse_plan(f"w={kind}:{'w4a16' if kind == 'nvfp4' else 'w8a16'}").prefill.weights
    for matrix in engine.arm().prefill.weights.matrices().values():
        monkeypatch.setattr(matrix, "fmt", stored)
        monkeypatch.setattr(matrix, "weight", matrix.dequantized().bfloat16())
    assert any("products ran" in m for m in answered(engine)["mismatches"])


def test_pages_that_fall_back_to_bf16_are_a_mismatch(serve, monkeypatch):
    monkeypatch.setitem(pool_module.DTYPES, "fp8", torch.bfloat16)
    monkeypatch.setattr(pool_module.KVPool, "_scale_tensor", lambda *_: None)
    engine = serve("llama", "w=bf16 > kv=fp8", poison=False)
    found = engine.proof()["mismatches"]
    assert any("decode: KV is held as bfloat16" in m for m in found)
    assert any("decode: KV scales are" in m for m in found)
    assert not any(m.startswith("prefill") for m in found)


def test_equal_formats_share_one_tensor_and_unequal_ones_share_the_rest(serve):
    engine = serve("llama", plan=None, plans={"a": "w=int4:g32", "b": "w=int4:g32 > w=bf16", "c": "w=int4:g32,kv=fp8"})
    a, b, c = (engine.arm(name) for name in "abc")
    assert a.prefill is b.prefill and a.prefill.weights is a.decode.weights is c.decode.weights
    assert a.prefill is not c.prefill and a.decode.pool is not a.prefill.pool
    assert a.prefill.weights is not b.decode.weights
    embeddings = [s.weights.model.get_input_embeddings().weight.data_ptr() for s in (a.prefill, b.decode)]
    assert embeddings[0] == embeddings[1]


def test_a_released_arm_frees_what_no_other_holds(serve):
    import gc
    import weakref

    engine = serve("llama", plan=None, plans={"a": "w=bf16", "b": "w=int4:g32 > w=bf16"})
    engine.arm("a")
    int4 = weakref.ref(engine.arm("b").prefill.weights)
    engine.release("b")
    gc.collect()
    assert int4() is None
    assert engine.arm("a").prefill.weights is not None


def test_batches_of_another_order_have_another_hash(serve):
    engine = serve("llama", "w=bf16", max_batch=2)
    requests = [GenerateRequest(prompt=p, max_tokens=2, id=p) for p in ("abc", "defg", "h")]
    list(engine.generate(requests))
    first = engine.proof()["batches"]
    other = serve("llama", "w=bf16", max_batch=2)
    list(other.generate(requests[::-1]))
    assert first["count"] > 0 and first["sha256"] != other.proof()["batches"]["sha256"]


def test_a_product_that_reads_something_else_than_what_is_packed_is_seen(serve):
    engine = serve("llama", "w=int4:g32:sym")
    layer = next(iter(engine.arm().decode.weights.matrices().values()))
    assert layer.reads_what_is_packed()
    layer.weight = layer.weight * 1.01
    assert any("read what is packed" in problem for problem in engine.proof()["mismatches"])


def test_a_proof_names_the_arms_that_its_stages_worked_for_too(serve):
    plans = {"a": "w=bf16", "b": "w=bf16 > kv=fp8", "c": "kv=fp8 > w=bf16", "idle": "w=bf16 > kv=int8"}
    engine = serve("llama", plan=None, plans=plans)
    engine.arm("idle")
    list(engine.generate([GenerateRequest(prompt="abcdefg", max_tokens=4, arms=("a", "b", "c"))]))
    proofs = {name: engine.proof(name) for name in plans}
    shared = {name: (p["prefill"]["shared_with"], p["decode"]["shared_with"]) for name, p in proofs.items()}
    assert shared == {"a": (["b"], ["c"]), "b": (["a"], []), "c": ([], ["a"]), "idle": ([], [])}
    for name, twice in (("prefill", "ab"), ("decode", "ac")):
        first, second = (proofs[arm][name] for arm in twice)
        assert first["tokens_computed"] == second["tokens_computed"] > 0
    assert proofs["a"]["prefill"]["tokens_computed"] == proofs["c"]["prefill"]["tokens_computed"]
