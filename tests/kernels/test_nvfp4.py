"""nvfp4 by its bytes, by a table of its values, and by what it says of what is not finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.kernels.fp8 import dequantize_e4m3
from evalsvc.kernels.nvfp4 import (
    E2M1_VALUES,
    block_scales,
    global_divisor,
    nvfp4_values,
    quantize_nvfp4,
    round_e2m1,
    round_nvfp4,
)

ROW = [0, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, -2, -3, 4, -6, 5, 2.5, -0.25, 6]
READ = [0, 0, 0, 0.5, 0.5, 1, 1, 1.5, -2, -3, 4, -6, 4, 2, -0.0, 6]
rows = st.lists(
    st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-40), min_size=16, max_size=16
)


def test_a_row_has_the_bytes_that_compressed_tensors_gives_it():
    x = torch.tensor([ROW])
    divisor = global_divisor(x.abs().amax())
    codes, scales = quantize_nvfp4(x, divisor)
    assert divisor.item() == 448 and scales.view(torch.uint8).tolist() == [[0x7E]]
    assert bytes(codes[0].tolist()) == bytes.fromhex("00 10 21 32 DC F6 46 78")
    read = (nvfp4_values(codes, scales).float() / divisor)[0]
    assert read.tolist() == READ and bool(read[14].signbit())


def test_values_round_to_the_nearest_and_ties_to_the_even_code():
    """Against the table of values, over every multiple of 1/64 from -7 to 7."""
    x = torch.arange(-7 * 64, 7 * 64 + 1) / 64
    table = torch.tensor(E2M1_VALUES)
    distance = (x.abs()[:, None] - table).abs()
    nearest = distance == distance.min(1, keepdim=True).values
    even_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = even_first[nearest[:, even_first].int().argmax(1)]
    assert torch.equal(round_e2m1(x).abs(), table[code])
    assert bool((round_e2m1(x) * x >= 0).all())
    assert int((nearest.sum(1) == 2).sum()) == 2 * 7  # the ties are among them


@given(rows)
def test_a_block_errs_by_half_a_step_of_e2m1_and_by_its_scales_rounding(row):
    x = torch.tensor([row])
    divisor = global_divisor(x.abs().amax())
    codes, scales = quantize_nvfp4(x, divisor)
    step = dequantize_e4m3(scales).double() / divisor.double()
    read = nvfp4_values(codes, scales).double() / divisor.double()
    # Steps are .5, 1 and 2 up to 6; a scale rounded down by 2^-4 leaves the largest value 6 / 16 of a step beyond.
    allowed = torch.maximum(x.double().abs() / 6, step / 4) + step * 6 / 16
    assert bool(((read - x).abs() <= allowed * (1 + 1e-5)).all())
    assert bool((read * x >= 0).all())


@given(rows)
def test_values_read_back_are_rounded_to_themselves(row):
    x = torch.tensor([row])
    divisor = global_divisor(x.abs().amax())
    codes, scales = quantize_nvfp4(x, divisor)
    ratio = nvfp4_values(codes, scales).float() / dequantize_e4m3(scales)
    assert torch.equal(round_e2m1(ratio), ratio)


def test_values_times_block_scales_are_exact_in_bf16():
    """All 16 codes under all positive e4m3 scales."""
    scales = torch.arange(1, 0x7F, dtype=torch.uint8)[:, None].view(torch.float8_e4m3fn)
    codes = torch.arange(0, 16, 2, dtype=torch.uint8) | torch.arange(1, 16, 2, dtype=torch.uint8) << 4
    exact = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)]).double() * dequantize_e4m3(scales).double()
    assert torch.equal(nvfp4_values(codes.expand(0x7E, 8), scales).double(), exact)


def test_activations_are_the_values_of_their_own_tokens_bytes():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1], [1e-3], [1e4], [0], [7]])
    values, divisor = round_nvfp4(x.bfloat16())
    for token, row in enumerate(x.bfloat16()):
        own = global_divisor(row.abs().amax())
        assert torch.equal(divisor[token], own[None])
        assert torch.equal(values[token].abs(), nvfp4_values(*quantize_nvfp4(row[None], own))[0].abs())
        assert bool((values[token] * row >= 0).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_token_nan_and_no_other(value):
    x = torch.ones(3, 32)
    x[1, 5] = value
    values, divisor = round_nvfp4(x)
    read = values.float() / divisor
    assert bool(read[1].isnan().all()) and bool(read[[0, 2]].isfinite().all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_block_scale_beyond_a_given_global_is_nan_or_saturates_and_never_wraps(value):
    scales = block_scales(torch.tensor([[value] * 16, [1e30] * 16]), torch.ones(1))
    assert dequantize_e4m3(scales)[1].item() == 448
    assert value == math.inf or bool(dequantize_e4m3(scales)[0].isnan())


def test_zeros_and_blocks_far_below_the_largest_read_as_zero():
    x = torch.zeros(1, 48)
    x[0, 0], x[0, 16] = 1.0, 1e-9
    codes, scales = quantize_nvfp4(x, global_divisor(x.abs().amax()))
    assert dequantize_e4m3(scales)[0, 1:].tolist() == [0.125, 0.125]
    assert nvfp4_values(codes, scales)[0, 1:].eq(0).all()
    assert global_divisor(torch.tensor(0.0)).item() == 1.0
    assert global_divisor(torch.tensor(1e-38)).isfinite()


def test_a_divisor_taken_for_a_multiplier_is_far_off():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)) * 0.02
    divisor = global_divisor(x.abs().amax())
    values = nvfp4_values(*quantize_nvfp4(x, divisor)).float()
    assert (values / divisor - x).norm() < 0.2 * x.norm()
    assert (values * divisor - x).norm() > 1e6 * x.norm()
