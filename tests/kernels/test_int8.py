"""Symmetric int8 by its codes, by its error bound, and by what it says of what is not finite."""

import math

import pytest
import torch

from evalsvc.kernels.fp8 import absmax_scale
from evalsvc.kernels.int8 import INT8_MAX, INT8_NAN, dequantize_int8, quantize_int8


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0),
        (-0.0, 0),
        (1.0, 1),
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-1.5, -2),
        (0.51, 1),
        (126.6, 127),
        (127.0, 127),
        (127.4, 127),
        (128.0, 127),
        (-127.6, -127),
        (-128.0, -127),
        (-1e30, -127),
    ],
)
def test_values_round_half_to_even_and_saturate_at_127_on_both_sides(value, code):
    assert quantize_int8(torch.tensor([value]), 1.0).tolist() == [code]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_reads_back_as_nan_and_never_as_a_plausible_127(value):
    x = torch.tensor([1.0, value, -3.0])
    codes = quantize_int8(x, 1.0)
    assert codes.tolist() == [1, INT8_NAN, -3]
    assert dequantize_int8(codes).nan_to_num(nan=999.0).tolist() == [1.0, 999.0, -3.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_token_of_its_own_scale_that_is_not_finite_is_nan_as_a_whole_or_in_that_element(value):
    """An infinite scale makes every product NaN; so does a NaN one."""
    x = torch.tensor([[1.0, value, -3.0], [1.0, 2.0, 3.0]])
    scale = absmax_scale(x, 1, INT8_MAX)
    read = dequantize_int8(quantize_int8(x, scale)) * scale
    assert read[0].isnan().all() and read[1].isfinite().all()


def test_every_code_reads_back_as_its_number_and_rounds_to_itself():
    codes = torch.arange(-128, 128).to(torch.int8)
    values = dequantize_int8(codes)
    assert values[0].isnan() and values[1:].tolist() == list(range(-127, 128))
    assert torch.equal(quantize_int8(values, 1.0), codes)
    assert dequantize_int8(codes[:0]).shape == (0,)


def test_rounding_errs_by_at_most_half_a_step():
    """Half a scale, and the fp32 rounding of a ratio near 127: 127 * 2^-24."""
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 7
    scale = absmax_scale(x, 1, INT8_MAX)
    codes = quantize_int8(x, scale)
    error = (dequantize_int8(codes) * scale - x).abs()
    assert bool((error <= scale * (0.5 + 127 * 2.0**-23)).all())
    assert error.max() > 0.49 * scale.min()  # and it is no finer type in disguise
    assert codes.abs().amax(1).eq(127).all() and codes.min() == -127
