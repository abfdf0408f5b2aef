"""The product of each format against float64 over the packed form: the packed form is the truth."""

from collections import Counter

import pytest
import torch

from evalsvc.engine import matrix as matrix_module
from evalsvc.engine.linear import PlanLinear
from evalsvc.engine.precision import WeightFormat
from evalsvc.kernels.dispatch import counting
from evalsvc.kernels.fp8 import absmax_scale, dequantize_e4m3, quantize_e4m3

FORMATS = {
    "fp32": WeightFormat("fp32"),
    "bf16": WeightFormat("bf16"),
    "w8a8": WeightFormat("fp8", "w8a8"),
    "w8a16": WeightFormat("fp8", "w8a16"),
    "int4 sym": WeightFormat("int4", "", 32, True),
    "int4 asym": WeightFormat("int4", "", 64, False),
}
BF16_HALF_STEP = 2.0**-8  # relative: eight significant bits


@pytest.fixture(scope="module")
def case():
    g = torch.Generator().manual_seed(0)
    weight, bias, x = torch.randn(96, 192, generator=g), torch.randn(96, generator=g), torch.randn(40, 192, generator=g)
    x[3] *= 100  # a token of its own scale
    return weight, bias, x


@pytest.mark.parametrize("name", FORMATS)
def test_the_product_equals_float64_over_the_packed_form(case, name):
    """Roundings: the weight's decoded copy to bf16, the product's result to bf16 (twice for w8a8)."""
    weight, bias, x = case
    fmt = FORMATS[name]
    layer = PlanLinear(weight, bias, fmt, name)
    given = x if name == "fp32" else x.bfloat16()
    w = (
        layer.matrix.packed.double()
        if isinstance(layer.matrix.packed, torch.Tensor)
        else layer.matrix.packed.dequantize().double()
    )
    exact_x = given.double()
    if name == "w8a8":
        scale = absmax_scale(given, dim=-1)
        exact_x = dequantize_e4m3(quantize_e4m3(given, scale)).double() * scale.double()
    expected = exact_x @ w.T + bias.double()
    got = layer(given)
    assert got.dtype == given.dtype
    magnitude = exact_x.abs() @ w.abs().T + bias.double().abs()
    # fp32 sums of 192 terms: 192 * 2^-24 of the magnitude; bf16 decoded weights: half a step of each term.
    allowed = magnitude * 192 * 2.0**-24
    if name != "fp32":
        allowed = (
            allowed + 3 * expected.abs() * BF16_HALF_STEP + magnitude * BF16_HALF_STEP * (name not in ("bf16", "w8a8"))
        )
        allowed = allowed + bias.double().abs() * BF16_HALF_STEP
        if name == "w8a8":  # the product is rounded before the bias is added
            allowed = allowed + (expected - bias.double()).abs() * BF16_HALF_STEP
    assert bool(((got.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("name", ["w8a8", "w8a16", "int4 sym", "int4 asym"])
def test_a_quantized_product_is_not_the_original_one(case, name):
    weight, _, x = case
    exact = x.double() @ weight.double().T
    error = (PlanLinear(weight, None, FORMATS[name], name)(x.bfloat16()).double() - exact).abs().mean()
    plain = (PlanLinear(weight, None, FORMATS["bf16"], name)(x.bfloat16()).double() - exact).abs().mean()
    assert error > 3 * plain


def test_w8a8_quantizes_activations_and_w8a16_does_not(case):
    weight, _, x = case
    both, stored = (PlanLinear(weight, None, FORMATS[n], n) for n in ("w8a8", "w8a16"))
    fine = torch.full((2, 192), 0.01)
    fine[:, 0] = 448.0  # scale 1: 0.01 lies between the codes 0.0098 and 0.0117
    assert (both(fine.bfloat16()) - stored(fine.bfloat16())).abs().max() > 0
    assert not torch.equal(both(x.bfloat16()), stored(x.bfloat16()))


@pytest.mark.parametrize("name", ["w8a16", "int4 sym", "int4 asym"])
def test_the_copy_that_the_product_reads_is_what_the_packed_form_decodes_to(case, name):
    layer = PlanLinear(case[0], None, FORMATS[name], name)
    assert not isinstance(layer.matrix.packed, torch.Tensor)
    assert torch.equal(layer.weight, layer.matrix.packed.dequantize().bfloat16())


def test_each_row_has_the_bits_that_it_has_in_any_company_of_two_and_more(case):
    weight, bias, x = case
    for name in ("bf16", "w8a8", "int4 asym"):
        layer = PlanLinear(weight, bias, FORMATS[name], name)
        whole = layer(x.bfloat16())
        for rows in (2, 3, 16, 33):
            assert torch.equal(layer(x[:rows].bfloat16()), whole[:rows]), (name, rows)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("fp32", "linear.fp32.torch"), ("int4 sym", "linear.bf16.torch"), ("w8a8", "linear.fp8_w8a8.torch")],
)
def test_the_form_that_ran_is_counted(case, name, kernel):
    counter = Counter()
    layer = PlanLinear(case[0], None, FORMATS[name], name)
    with counting(counter):
        layer(case[2] if name == "fp32" else case[2].bfloat16())
    assert counter == {kernel: 1}


def test_a_quantizer_that_does_nothing_would_be_caught(case, monkeypatch):
    """The tests above must fail when a format falls back to bf16 in silence."""
    monkeypatch.setattr(matrix_module, "quantize", lambda weight, fmt, name: weight.bfloat16())
    with pytest.raises(AssertionError):
        test_a_quantized_product_is_not_the_original_one(case, "int4 sym")
    with pytest.raises(AssertionError):
        test_the_copy_that_the_product_reads_is_what_the_packed_form_decodes_to(case, "int4 sym")
