"""Products that run as Triton (here in its interpreter) read the packed form itself, and the proof counts them."""

import pytest
import torch

from evalsvc.engine.launches import LAUNCHES
from evalsvc.engine.matrix import PlanMatrix
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest, ScoreRequest, ScoreResult
from evalsvc.kernels.dispatch import VARIABLE

FORMATS = (
    "fp8",
    "fp8:block128",
    "fp8:w8a16",
    "int8",
    "int4:g32:sym",
    "int4:g64:asym",
    "nvfp4",
    "nvfp4:w4a16",
)


def matrix(fmt: str) -> PlanMatrix:
    weight = torch.randn(96, 192, generator=torch.Generator().manual_seed(0)) * 0.05
    return PlanMatrix(weight, parse_plan(f"w={fmt}").decode.weights, "weight")


@pytest.fixture
def as_triton(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_product_is_that_of_the_torch_form_up_to_rounding_and_holds_no_copy(fmt, monkeypatch):
    x = torch.randn(2, 3, 192, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = torch.randn(96, generator=torch.Generator().manual_seed(2)).bfloat16()
    torch_form = matrix(fmt)
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    triton_form = matrix(fmt)
    assert torch_form.launch is None and triton_form.launch is LAUNCHES[triton_form.fmt.kernel]
    wanted, got = torch_form(x, bias).float(), triton_form(x, bias).float()
    assert got.shape == (2, 3, 96)
    # The torch form rounds to bf16 before its scales and bias, and decoded nvfp4 before its product.
    size = x.float().abs() @ torch_form.dequantized().abs().T + bias.float().abs()
    assert bool(((got - wanted).abs() <= size * 2.0**-8).all())
    assert {t.data_ptr() for t in triton_form.resident()} == {t.data_ptr() for t in triton_form.packed_tensors()}
    assert triton_form.reads_what_is_packed()
    assert torch.equal(triton_form.weight, torch_form.weight)  # still there for who asks


def test_formats_of_one_form_have_it_everywhere(as_triton):
    for fmt in ("bf16", "fp32", "int8:w8a16", "fp8:block128:w8a16"):
        assert matrix(fmt).launch is None


@pytest.mark.parametrize("plan", ["w=int4:g32:sym > w=fp8", "w=nvfp4 > w=int8"])
def test_an_engine_runs_them_and_its_proof_says_so(serve, plan, monkeypatch):
    ask = [ScoreRequest(context="hello", continuations=(" you",)), GenerateRequest(prompt="hello", max_tokens=3)]
    plain = serve("llama", plan)
    wanted = next(r for r in plain.answer(ask) if isinstance(r, ScoreResult))
    assert plain.proof()["decode"]["weights"]["linears_as_triton"] == 0
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    engine = serve("llama", plan)
    got = next(r for r in engine.answer(ask) if isinstance(r, ScoreResult))
    proof = engine.proof()
    assert proof["mismatches"] == []
    for stage, half in (("prefill", parse_plan(plan).prefill), ("decode", parse_plan(plan).decode)):
        weights, kernels = proof[stage]["weights"], proof[stage]["kernels"]
        assert weights["linears_as_triton"] == weights["linears"] == 14
        ran = {name for name in kernels if name.startswith("linear.")}
        assert ran == {f"linear.{half.weights.kernel}.triton"}
        assert kernels[f"linear.{half.weights.kernel}.triton"] == 14 * proof[stage]["forwards"]
        assert weights["resident_bytes"] == weights["format_bytes"]
    mine, theirs = got.logprobs[0], wanted.logprobs[0]
    assert abs(mine - theirs) < 0.05 * abs(theirs)


@pytest.mark.parametrize(
    ("name", "fmt"), [("qwen3_moe", "int4:g32:asym"), ("gpt_oss", "fp8:block128"), ("qwen3_moe", "nvfp4")]
)
def test_experts_are_multiplied_together_and_held_once(serve, name, fmt, monkeypatch):
    """gpt_oss has biases and gate and up interleaved, qwen3_moe neither."""
    plain = next(m for m in serve(name, f"w={fmt}").arm().decode.weights.experts.values())
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    stage = serve(name, f"w={fmt}").arm().decode
    experts = next(iter(stage.weights.experts.values()))
    before = [[t.clone() for t in matrix.packed_tensors()] for _, matrix in experts.named_matrices()]
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(9, 64, generator=numbers).bfloat16()
    chosen = torch.stack([torch.randperm(8, generator=numbers)[:3] for _ in range(9)])
    weights = torch.rand(9, 3, generator=numbers)
    wanted, got = plain(x, chosen, weights).float(), experts(x, chosen, weights).float()
    # Hidden values that lie between two codes may be rounded to either: by 1/16 of their size, of e2m1 by up to half.
    allowed = {"nvfp4": 0.05, "fp8:block128": 0.02}.get(fmt, 2.0**-7)
    assert (got - wanted).norm() <= allowed * wanted.norm()
    alone = torch.cat([experts(x[i : i + 1], chosen[i : i + 1], weights[i : i + 1]) for i in (0, 8)]).float()
    assert (alone - got[[0, 8]]).norm() <= allowed * alone.norm()
    after = [matrix.packed_tensors() for _, matrix in experts.named_matrices()]
    assert all(torch.equal(a, b) for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True))
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for matrix in after for t in matrix}
    assert sum(held.values()) == sum(t.nbytes for matrix in before for t in matrix)
