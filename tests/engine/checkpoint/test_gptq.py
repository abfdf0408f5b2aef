"""GPTQ's files: against loops over bits, code by code where a plan's format has them, and whole models."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import EvalsvcError
from evalsvc.kernels.dispatch import VARIABLE

from .wording import Kind, Numbers, naive, numbers, stored_as

WIDE = {"hidden_size": 160, "intermediate_size": 288, "moe_intermediate_size": 192}
PLAIN = ("norm", "embed_tokens", "lm_head", "mlp.gate.", "bias")
KINDS = {
    "4 bits": Kind(),
    "4 bits, zeros": Kind(symmetric=False),
    "4 bits, v2": Kind(version="gptq_v2"),
    "4 bits, zeros, v2": Kind(version="gptq_v2", symmetric=False),
    "4 bits, channel": Kind(size=-1),
    "4 bits, in another order": Kind(ordered=True, symmetric=False),
    "4 bits, last group cut short": Kind(size=64, symmetric=False),
    "8 bits": Kind(bits=8, size=-1),
    "8 bits, groups, zeros": Kind(bits=8, symmetric=False),
    "8 bits, zeros, v2": Kind(bits=8, size=-1, symmetric=False, version="gptq_v2"),
    "8 bits, in another order": Kind(bits=8, ordered=True),
}


def one_matrix(path, kind: Kind, local: dict[str, Tensor], **fields) -> ModelDirectory:
    """A directory of one matrix, `layer.weight`."""
    save_file({f"layer.{leaf}": tensor for leaf, tensor in local.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(kind.config(**fields)))
    return ModelDirectory(path)


def held(path, plan: str) -> WeightSet:
    return WeightSet(open_checkpoint(path), parse_plan(plan).prefill.weights, {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", KINDS)
def test_a_matrix_is_what_a_loop_over_its_bits_gives(tmp_path, name, dtype):
    kind = Kind(**vars(KINDS[name]) | {"dtype": dtype})
    of = numbers(kind, (40, 96), 3)
    files = stored_as(kind, of)
    expected = naive(kind, files)
    assert torch.equal(expected, of.exact())
    (found,) = one_matrix(tmp_path, kind, files).tensors()
    assert (found.name, found.shape, found.dtype) == ("layer.weight", (40, 96), dtype)
    read = found.read()
    assert torch.equal(read, expected.float().to(dtype)) and read.float().std() > 0.01
    assert torch.equal(torch.cat([found.rows(slice(start, start + 7)) for start in range(0, 40, 7)]), read)


def test_words_are_these():
    """Bytes by hand: codes 0 to 7 of a column, the first one lowest; zero points of 8 less one."""
    of = Numbers(torch.arange(8)[:, None].expand(8, 8), torch.full((1, 8), 8), torch.ones(1, 8).half(), torch.zeros(8))
    files = stored_as(Kind(size=-1), of)
    assert files["qweight"].tolist() == [[0x76543210] * 8] and files["qzeros"].tolist() == [[0x77777777]]
    assert stored_as(Kind(size=-1, version="gptq_v2"), of)["qzeros"].tolist() == [[0x88888888 - 2**32]]


FORMS = ["int4:g32:sym", "int4:g64:sym", "int4:g32:asym", "int8:channel", "fp8:channel", "nvfp4", "bf16"]
OWN = {
    "4 bits": "int4:g32:sym",
    "4 bits, v2": "int4:g32:sym",
    "4 bits, zeros": "int4:g32:asym",
    "4 bits, zeros, v2": "int4:g32:asym",
    "8 bits": "int8:channel",
}


@pytest.mark.parametrize("name", KINDS)
def test_no_format_but_the_files_own_is_kept_and_that_is_exact(tmp_path, name):
    of = numbers(KINDS[name], (40, 96))
    (found,) = one_matrix(tmp_path, KINDS[name], stored_as(KINDS[name], of)).tensors()
    for form in FORMS:
        packed = found.packed(form)
        assert (packed is not None) == (form == OWN.get(name)), form
        if packed is None:
            continue
        assert packed.stored == form and packed.shape == (40, 96)
        assert torch.equal(packed.dequantize().double(), of.exact())
        assert torch.equal(found.packed(form, slice(9, 31)).dequantize().double(), of.exact()[9:31])
        assert all(t.untyped_storage().nbytes() == t.nbytes and t.is_contiguous() for t in packed.tensors())
        fmt = found.own_format()
        assert fmt.stored == form and fmt.format_bytes(40, 96) == sum(t.nbytes for t in packed.tensors())


def test_scales_in_fp32_are_not_narrowed_to_be_kept(tmp_path):
    kind = Kind(dtype=torch.float32)
    (found,) = one_matrix(tmp_path, kind, stored_as(kind, numbers(kind, (40, 96)))).tensors()
    assert found.packed("int4:g32:sym") is None and found.read().dtype == torch.float32


# -- whole models ------------------------------------------------------------------------------------------------------


def store(kind: Kind, other: dict[str, Kind | None] | None = None):
    """What a tiny model's files hold of random codes; some matrices by the end of their names otherwise."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for seed, (name, tensor) in enumerate(sorted(tensors.items())):
            module = name.removesuffix(".weight")
            of = next((k for end, k in (other or {}).items() if module.endswith(end)), kind)
            if of is None or any(part in name for part in PLAIN):
                found[name] = tensor
            else:
                local = stored_as(of, numbers(of, tuple(tensor.shape), seed))
                found |= {f"{module}.{leaf}": part for leaf, part in local.items()}
        return found

    return edit


def decode(kind: Kind):
    """What the same stands for: exact numbers in fp32."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor
            if any(part in name for part in PLAIN)
            else numbers(kind, tuple(tensor.shape), seed).exact().float()
            for seed, (name, tensor) in enumerate(sorted(tensors.items()))
        }

    return edit


@pytest.fixture
def both(rewritten):
    """`both("llama", kind)`: a tiny model as stored, and the same decoded."""

    def make(name: str, kind: Kind):
        changes = WIDE if "moe" in name else {key: WIDE[key] for key in ("hidden_size", "intermediate_size")}
        return (
            rewritten(name, store(kind), kind.config(), **changes),
            rewritten(name, decode(kind), folder="plain", **changes),
        )

    return make


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "4 bits"),
        ("llama", "8 bits, in another order"),
        ("qwen2", "4 bits, zeros"),
        ("qwen3_moe", "4 bits, zeros, v2"),
    ],
)
def test_a_model_answers_as_transformers_with_the_decoded_numbers(both, ids, name, kind):
    """Scales in fp32, so that both compute with the same numbers."""
    stored, decoded = both(name, Kind(**vars(KINDS[kind]) | {"dtype": torch.float32}))
    model = AutoModelForCausalLM.from_pretrained(decoded, attn_implementation="eager", dtype=torch.float32).eval()
    prompt = ids(40)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    assert expected.std() > 0.3
    got = Engine.load(stored, "w=fp32,kv=fp32", kv_tokens=256).logits(prompt)
    assert (got - expected).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("llama", "4 bits", "int4:g32:sym"),
        ("llama", "8 bits", "int8:w8a16:channel"),
        ("qwen3_moe", "4 bits, zeros", "int4:g32:asym"),
    ],
)
def test_as_stored_the_codes_of_the_files_are_served(both, ids, name, kind, form):
    stored, decoded = both(name, KINDS[kind])
    engine = Engine.load(stored, "w=stored", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    proof = engine.proof()
    weights, count = (
        proof["decode"]["weights"],
        sum(n.endswith("qweight") for n in load_file(stored / "model.safetensors")),
    )
    assert proof["mismatches"] == [] and weights["linears_as_files_say"] == {form: count}
    assert weights["linears_kept_as_stored"] == count
    # A product reads a code times its scale rounded to bf16 once: so does that of the decoded model in bf16.
    assert torch.equal(engine.logits(ids(40)), Engine.load(decoded, "w=bf16", kv_tokens=256).logits(ids(40)))
    named = Engine.load(stored, f"w={form}", kv_tokens=256)
    list(named.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    assert named.proof()["mismatches"] == [] and torch.equal(named.logits(ids(40)), engine.logits(ids(40)))


def test_other_settings_for_some_modules_are_followed(rewritten):
    """GPTQModel's `dynamic`: patterns from the start of a name; `-:` leaves a module out."""
    other = {"1.mlp.down_proj": Kind(bits=8, size=-1), "self_attn.o_proj": None}
    dynamic = {
        r"-:.*\.o_proj": {},
        r"+:model\.layers\.1\.mlp\.down": {"bits": 8, "group_size": -1},
        r"model\.layers\.1\..*": {},
    }
    path = rewritten("llama", store(Kind(), other), Kind().config(dynamic=dynamic), hidden_size=160)
    found = {name: matrix.stored for name, matrix in held(path, "w=stored").matrices().items()}
    for name, form in found.items():
        layer_1 = name == "model.layers.1.mlp.down_proj"
        assert form == ("int8:channel" if layer_1 else "bf16" if name.endswith("o_proj") else "int4:g32:sym"), name


def test_a_head_is_read_where_the_configuration_says_that_it_is_quantized(rewritten):
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(Kind())(tensors)
        rows = numbers(Kind(), tuple(found.pop("lm_head.weight").shape), 5)
        return found | {f"lm_head.{leaf}": tensor for leaf, tensor in stored_as(Kind(), rows).items()}

    path = rewritten("llama", edit, Kind().config(lm_head=True))
    shape = tuple(load_file(path / "model.safetensors")["lm_head.scales"].shape)
    head = numbers(Kind(), (shape[1], 32 * shape[0]), 5)
    weights = held(path, "w=stored")
    assert torch.equal(weights.linears["lm_head"].matrix.dequantized().double(), head.exact())
    plain = held(path, "w=bf16").model.get_output_embeddings().weight
    assert torch.equal(plain, head.decoded().bfloat16())


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_that_the_model_does_not_have_is_left_out_where_it_adds_nothing(rewritten, value):
    name = "model.layers.0.mlp.up_proj"

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(Kind())(tensors)
        return found | {f"{name}.bias": torch.full(found[f"{name}.scales"].shape[1:], value).half()}

    path = rewritten("llama", edit, Kind().config())
    if value:
        with pytest.raises(EvalsvcError, match=rf"unexpected tensor {name}\.bias"):
            held(path, "w=stored")
    else:
        assert held(path, "w=stored").linears[name].bias is None


def test_experts_with_scales_of_several_types_are_not_stacked(rewritten, monkeypatch):
    """One expert is plain in the files: it is packed with scales in bf16, the others keep theirs in fp16."""
    odd = "model.layers.1.mlp.experts.2.up_proj"
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asks = []
    for other in ({}, {odd: None}):
        config = Kind().config(dynamic={f"-:{name}$": {} for name in other})
        path = rewritten("qwen3_moe", store(Kind(), other), config, folder=f"without {len(other)}", **WIDE)
        experts = held(path, "w=int4:g32").experts["model.layers.1.mlp.experts"]
        asks.append(experts.asks)
    assert asks == [False, True]
    types = [experts.matrices[expert, "up_proj"].packed_tensors()[1].dtype for expert in (1, 2)]
    assert types == [torch.float16, torch.bfloat16]


# -- what is refused ---------------------------------------------------------------------------------------------------


def without(leaf: str):
    return lambda local: {name: tensor for name, tensor in local.items() if name != leaf}


def changed(**tensors):
    return lambda local: local | {leaf: edit(local[leaf]) for leaf, edit in tensors.items()}


def with_first(value: float):
    def edit(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return edit


NOT_4 = (
    "tensor layer.qweight is no gptq (4 bits, one scale a group of 32), which config.json says it is (qweight (12, 40)"
)
REFUSED = {
    "no scales": ("4 bits", without("scales"), "tensor layer.qweight has no .scales beside it; fetch the model again"),
    "no zeros": ("4 bits", without("qzeros"), "tensor layer.qweight has no .qzeros beside it"),
    "no order": ("4 bits, in another order", without("g_idx"), "tensor layer.qweight has no .g_idx beside it"),
    "no codes": ("4 bits", without("qweight"), "has no codes beside it; fetch the model again"),
    "short scales": ("4 bits", changed(scales=lambda t: t[:-1].contiguous()), NOT_4),
    "short codes": ("4 bits", changed(qweight=lambda t: t[:-1].contiguous()), "(qweight (11, 40), "),
    "short zeros": ("4 bits", changed(qzeros=lambda t: t[:, :-1].contiguous()), NOT_4),
    "short order": ("4 bits", changed(g_idx=lambda t: t[:-1].contiguous()), NOT_4),
    "zeros of bytes": ("4 bits", changed(qzeros=lambda t: t.to(torch.int8)), NOT_4),
    "scales of bytes": ("4 bits", changed(scales=lambda t: t.to(torch.int8)), NOT_4),
    "codes of 64 bits": ("4 bits", changed(qweight=lambda t: t.long()), NOT_4),
    "other groups": (
        "4 bits",
        changed(g_idx=with_first(3)),
        "tensor layer.g_idx names groups that layer.scales does not",
    ),
    "no group": ("4 bits", changed(g_idx=with_first(-1)), "tensor layer.g_idx names groups that layer.scales does not"),
    "labelled v1": (
        "4 bits",
        changed(qzeros=lambda t: t + 0x11111111),
        "zero points layer.qzeros are those of a gptq_v2 file, and config.json says gptq; "
        "write checkpoint_format: gptq_v2 into its quantization_config if it is one",
    ),
    "labelled v2": (
        "4 bits, v2",
        changed(qzeros=lambda t: t - 0x11111111),
        "are those of a gptq file, and config.json",
    ),
    "not symmetric": (
        "4 bits",
        changed(qzeros=with_first(0x77777776)),
        "layer.qzeros are not all 8, and config.json says",
    ),
    "a zero of 0 in v1": (
        "4 bits, zeros",
        changed(qzeros=with_first(0x1F111111)),
        "zero points layer.qzeros hold 15, which readers of gptq take for several numbers; store it as gptq_v2",
    ),
    "a zero of 0 in v1 of 8 bits": ("8 bits, groups, zeros", changed(qzeros=with_first(0xFF)), "layer.qzeros hold 255"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(tmp_path, name):
    kind, edit, says = REFUSED[name]
    local = edit(stored_as(KINDS[kind], numbers(KINDS[kind], (40, 96))))
    with pytest.raises(EvalsvcError) as error:
        list(one_matrix(tmp_path, KINDS[kind], local).tensors())
    assert says in str(error.value) and str(tmp_path) in str(error.value)


def test_zero_points_of_columns_that_do_not_fill_a_word_are_read(tmp_path):
    """What is left of the last word means nothing."""
    for kind in (Kind(), Kind(symmetric=False), Kind(bits=8, size=-1)):
        of = numbers(kind, (37, 96))
        files = stored_as(kind, of)
        files["qzeros"][:, -1] |= -(2 ** (kind.bits * (37 % (32 // kind.bits))))
        (found,) = one_matrix(tmp_path, kind, files).tensors()
        assert torch.equal(found.read(), of.decoded())


@pytest.mark.parametrize("form", ["kept", "decoded"])
@pytest.mark.parametrize("name", ["4 bits", "8 bits"])
def test_what_is_not_finite_is_refused(tmp_path, name, form):
    local = changed(scales=with_first(torch.inf))(stored_as(KINDS[name], numbers(KINDS[name], (40, 96))))
    (found,) = one_matrix(tmp_path, KINDS[name], local).tensors()
    with pytest.raises(EvalsvcError, match=r"tensor layer\.weight holds NaN or infinity"):
        found.read() if form == "decoded" else found.packed(OWN[name])


def test_a_quantized_matrix_that_is_left_out_is_refused(tmp_path):
    local = stored_as(Kind(), numbers(Kind(), (40, 96)))
    with pytest.raises(
        EvalsvcError, match=r"layer\.qweight is quantized, which the quantization_config of config\.json"
    ):
        list(one_matrix(tmp_path, Kind(), local, dynamic={"-:lay": {}}).tensors())


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "4 bits, channel",
            "is stored as gptq (4 bits, one scale a channel), which is no plan's format; name a weights",
        ),
        (
            "4 bits, in another order",
            "one scale a group of 32, zero points), inputs in another order, which is no plan's",
        ),
        (
            "4 bits, last group cut short",
            "zero points), the last group of 288 inputs cut short, which is no plan's format",
        ),
        (
            "8 bits, groups, zeros",
            "is stored as gptq (8 bits, one scale a group of 32, zero points), which is no plan's",
        ),
    ],
)
def test_as_stored_what_no_plan_can_hold_is_refused_and_is_decoded_under_a_name(both, kind, says):
    stored, _ = both("llama", KINDS[kind])
    with pytest.raises(EvalsvcError) as error:
        held(stored, "w=stored")
    assert says in str(error.value) and "name a weights format in place of `stored`" in str(error.value)
    assert not any(matrix.kept for matrix in held(stored, "w=fp8").matrices().values())
