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
    "fp8 block": WeightFormat("fp8", "w8a8", 128),
    "fp8 block w8a16": WeightFormat("fp8", "w8a16", 128),
    "int8": WeightFormat("int8", "w8a8"),
    "int8 w8a16": WeightFormat("int8", "w8a16"),
    "nvfp4": WeightFormat("nvfp4", "w4a4", 16),
    "nvfp4 w4a16": WeightFormat("nvfp4", "w4a16", 16),
    "int4 sym": WeightFormat("int4", "", 32, True),
    "int4 asym": WeightFormat("int4", "", 64, False),
}
QUANTIZED = [name for name in FORMATS if name not in ("fp32", "bf16")]
STORED_ONLY = [name for name in QUANTIZED if FORMATS[name].product == "bf16"]
BF16_HALF_STEP = 2.0**-8  # relative: eight significant bits


@pytest.fixture(scope="module")
def case():
    g = torch.Generator().manual_seed(0)
    weight, bias, x = torch.randn(96, 192, generator=g), torch.randn(96, generator=g), torch.randn(40, 192, generator=g)
    x[3] *= 100  # a token of its own scale
    return weight, bias, x


def as_quantized(x: torch.Tensor, name: str) -> torch.Tensor:
    """Activations as a format's product sees them, value by value, in float64."""
    if name in ("w8a8", "fp8 block"):
        parts = x.float().split(128 if name == "fp8 block" else x.shape[1], dim=1)
        scales = [absmax_scale(part, dim=1) for part in parts]
        values = [dequantize_e4m3(quantize_e4m3(part, s)).double() * s for part, s in zip(parts, scales, strict=True)]
        return torch.cat(values, 1)
    if name == "int8":
        scale = x.float().abs().amax(1, keepdim=True) / 127
        return (x.float() / scale).round().double() * scale
    if name == "nvfp4":
        divisor = 448 * 6 / x.float().abs().amax(1, keepdim=True)
        blocks = x.float().view(len(x), -1, 16)
        scale = (blocks.abs().amax(2) / 6 * divisor).to(torch.float8_e4m3fn).float()
        step = (scale / divisor)[:, :, None]
        values = torch.tensor([0, 1, 2, 4, 0.5, 1.5, 3, 6])  # the even codes first: ties are theirs
        nearest = ((blocks / step).abs()[..., None] - values).abs().argmin(-1)
        return (values[nearest] * blocks.sign()).double().mul(step).flatten(1)
    return x.double()


@pytest.mark.parametrize("name", FORMATS)
def test_the_product_equals_float64_over_the_packed_form(case, name):
    """Roundings: the weight's decoded copy to bf16, the product's result to bf16 (twice where it is then scaled)."""
    weight, bias, x = case
    layer = PlanLinear(weight, bias, FORMATS[name], name)
    given = x if name == "fp32" else x.bfloat16()
    w, exact_x = layer.matrix.dequantized().double(), as_quantized(given, name)
    expected = exact_x @ w.T + bias.double()
    got = layer(given)
    assert got.dtype == given.dtype
    magnitude = exact_x.abs() @ w.abs().T + bias.double().abs()
    # fp32 sums of 192 terms: 192 * 2^-24 of the magnitude; bf16 decoded weights: half a step of each term.
    allowed = magnitude * 192 * 2.0**-24
    decoded = name in STORED_ONLY or name == "fp8 block"  # there half a step of each group's sum
    if name != "fp32":
        allowed = allowed + 3 * expected.abs() * BF16_HALF_STEP + magnitude * BF16_HALF_STEP * decoded
        allowed = allowed + bias.double().abs() * BF16_HALF_STEP
        if name in ("w8a8", "nvfp4"):  # the product is rounded before the bias is added
            allowed = allowed + (expected - bias.double()).abs() * BF16_HALF_STEP
    assert bool(((got.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("name", ["int8", "nvfp4", "fp8 block"])
def test_each_scale_of_the_packed_form_reaches_the_product(case, name):
    """Doubled on one side the output doubles or halves; a scale that is never read would leave it as it was."""
    weight, _, x = case
    layer = PlanLinear(weight, None, FORMATS[name], name)
    once = layer(x.bfloat16())
    if name == "nvfp4":
        layer.matrix.packed.divisor.mul_(2)
        assert torch.equal(layer(x.bfloat16()), once / 2)
    else:
        layer.matrix.packed.scale.mul_(2)
        assert torch.equal(layer(x.bfloat16()), once * 2)


@pytest.mark.parametrize("name", ["w8a8", "int8", "nvfp4", "fp8 block"])
def test_an_activation_that_is_not_finite_is_seen_in_its_own_token_alone(case, name):
    weight, bias, x = case
    layer = PlanLinear(weight, bias, FORMATS[name], name)
    for value in (torch.nan, torch.inf):
        bad = x.bfloat16()
        bad[7, 11] = value
        finite = layer(bad).isfinite()
        assert not bool(finite[7].any()) and bool(finite[torch.arange(40) != 7].all())


def test_a_tensor_of_more_dimensions_is_its_tokens_one_by_one(case):
    weight, bias, x = case
    for name in FORMATS:
        layer, given = PlanLinear(weight, bias, FORMATS[name], name), x if name == "fp32" else x.bfloat16()
        assert torch.equal(layer(given.view(4, 10, 192)), layer(given).view(4, 10, 96)), name


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_product_is_not_the_original_one(case, name):
    weight, _, x = case
    exact = x.double() @ weight.double().T
    error = (PlanLinear(weight, None, FORMATS[name], name)(x.bfloat16()).double() - exact).abs().mean()
    plain = (PlanLinear(weight, None, FORMATS["bf16"], name)(x.bfloat16()).double() - exact).abs().mean()
    # int8 has 8 bits of its channel's range, bf16 8 bits of each value: the step of the first is the larger one.
    assert error > (2 if name.startswith("int8") else 3) * plain


def test_w8a8_quantizes_activations_and_w8a16_does_not(case):
    weight, _, x = case
    both, stored = (PlanLinear(weight, None, FORMATS[n], n) for n in ("w8a8", "w8a16"))
    fine = torch.full((2, 192), 0.01)
    fine[:, 0] = 448.0  # scale 1: 0.01 lies between the codes 0.0098 and 0.0117
    assert (both(fine.bfloat16()) - stored(fine.bfloat16())).abs().max() > 0
    assert not torch.equal(both(x.bfloat16()), stored(x.bfloat16()))


@pytest.mark.parametrize("name", STORED_ONLY)
def test_the_copy_that_the_product_reads_is_what_the_packed_form_decodes_to(case, name):
    layer = PlanLinear(case[0], None, FORMATS[name], name)
    assert not isinstance(layer.matrix.packed, torch.Tensor)
    assert torch.equal(layer.weight, layer.matrix.packed.dequantize().bfloat16())


def test_each_row_has_the_bits_that_it_has_in_any_company_of_two_and_more(case):
    weight, bias, x = case
    for name in FORMATS.keys() - {"fp32"}:
        layer = PlanLinear(weight, bias, FORMATS[name], name)
        whole = layer(x.bfloat16())
        for rows in (2, 3, 16, 33):
            assert torch.equal(layer(x[:rows].bfloat16()), whole[:rows]), (name, rows)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("fp32", "linear.fp32.torch"),
        ("int4 sym", "linear.bf16.torch"),
        ("w8a8", "linear.fp8_w8a8.torch"),
        ("fp8 block", "linear.fp8_block128_w8a8.torch"),
        ("int8", "linear.int8_w8a8.torch"),
        ("nvfp4", "linear.nvfp4_w4a4.torch"),
        ("int8 w8a16", "linear.bf16.torch"),
    ],
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
