"""e4m3 by its bytes (bias 7, 448 largest, no infinity) and by its error bound."""

import math

import pytest
import torch

from evalsvc.kernels.fp8 import absmax_scale, amax_scale, dequantize_e4m3, quantize_e4m3


def code(value: float) -> int:
    return int(quantize_e4m3(torch.tensor([value]), 1.0).view(torch.uint8))


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (0.0, 0x00),
        (2.0**-9, 0x01),
        (2.0**-6, 0x08),
        (1.0, 0x38),
        (2.0, 0x40),
        (448.0, 0x7E),
        (1.0625, 0x38),
        (1.1875, 0x3A),
        (-1.3, 0xBA),
        (2.0**-10, 0x00),
        (2.0**-10 * 1.01, 0x01),
        (3 * 2.0**-10, 0x02),
        (480.0, 0x7E),
        (-1e30, 0xFE),
    ],
)
def test_values_become_the_bytes_of_the_format(value, byte):
    assert code(value) == byte


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_nan_and_never_a_plausible_448(value):
    assert code(value) & 0x7F == 0x7F


def test_every_code_reads_back_as_torch_reads_it():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(dequantize_e4m3(codes).nan_to_num(999.0), codes.float().nan_to_num(999.0))
    assert dequantize_e4m3(codes).isnan().sum() == 2


def test_every_finite_code_is_its_own_rounding():
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]
    values = dequantize_e4m3(codes.view(torch.float8_e4m3fn))
    assert torch.equal(quantize_e4m3(values, 1.0).view(torch.uint8), codes)


def test_rounding_errs_by_at_most_half_a_step():
    """Three mantissa bits: relative error 2^-4 above 2^-6 of the scale, absolute 2^-10 of it below."""
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 7
    scale = absmax_scale(x, dim=1)
    error = (dequantize_e4m3(quantize_e4m3(x, scale)) * scale - x).abs()
    assert bool((error <= torch.maximum(x.abs() * 2**-4, scale * 2**-10) * (1 + 1e-5)).all())
    assert error.max() > x.abs().max() * 2**-6  # and it is no bf16 in disguise


def test_the_largest_magnitude_is_mapped_to_448_and_zeros_to_scale_one():
    x = torch.tensor([[-3.0, 1.0], [0.0, 0.0]])
    scale = absmax_scale(x, dim=1)
    assert scale.tolist() == [[pytest.approx(3 / 448)], [1.0]]
    assert quantize_e4m3(x, scale).view(torch.uint8).tolist() == [[0xFE, code(448 / 3)], [0, 0]]


def test_the_largest_code_may_be_another_types():
    assert absmax_scale(torch.tensor([[-2.54, 1.0]]), 1, 127.0).item() == pytest.approx(0.02)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_scale_of_what_is_not_finite_is_not_finite_either(value):
    assert not absmax_scale(torch.tensor([[1.0, value]]), 1).isfinite().any()


def test_a_scale_too_small_for_fp32_is_the_smallest_normal_number():
    tiny = torch.finfo(torch.float32).tiny
    assert amax_scale(torch.tensor([1e-40, 0.0]), 448.0).tolist() == [pytest.approx(tiny), 1.0]
