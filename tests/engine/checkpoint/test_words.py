"""GPTQ's and AWQ's files: against loops over bits, code by code where a plan's format has them, and whole models."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import EvalsvcError

from .wording import (
    KINDS,
    OWN,
    WIDE,
    Kind,
    changed,
    decode,
    held,
    naive,
    numbers,
    one_matrix,
    store,
    stored_as,
    with_first,
)


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


FORMS = ["int4:g32:sym", "int4:g64:sym", "int4:g32:asym", "int8:channel", "fp8:channel", "nvfp4", "bf16"]


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
        ("qwen2", "awq"),
        ("qwen3_moe", "awq"),
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
        ("llama", "awq", "int4:g32:asym"),
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


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["kept", "decoded"])
@pytest.mark.parametrize("name", ["4 bits", "8 bits", "awq"])
def test_what_is_not_finite_is_refused(tmp_path, name, form):
    local = changed(scales=with_first(torch.inf))(stored_as(KINDS[name], numbers(KINDS[name], (40, 96))))
    (found,) = one_matrix(tmp_path, KINDS[name], local).tensors()
    with pytest.raises(EvalsvcError, match=r"tensor layer\.weight holds NaN or infinity"):
        found.read() if form == "decoded" else found.packed(OWN[name])


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
        ("awq, channel", "is stored as awq (4 bits, one scale a channel, zero points), which is no plan's format"),
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
