"""Packed weights by their bytes, and error bounds that follow from the format."""

import pytest
import torch

from evalsvc.engine.precision import WeightFormat
from evalsvc.engine.quantize import Int4Weight, quantize, quantize_fp8, quantize_int4
from evalsvc.errors import ConfigError

BF16_HALF_STEP = 2.0**-8  # relative; scales and minima are bf16


def weights(out: int = 48, inputs: int = 256) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(out, inputs, generator=g) * torch.exp(torch.randn(out, 1, generator=g))


def test_codes_are_packed_along_k_least_significant_nibble_first():
    row = [-8.0, -7, -1, 0, 1, 2, 6, 7]
    words = torch.tensor([[0xFEA98710 - 2**32] + [0x88888888 - 2**32] * 3], dtype=torch.int32)
    assert Int4Weight(words, torch.ones(1, 1), None).dequantize()[0].tolist() == row + [0.0] * 24
    again = quantize_int4(torch.tensor([[-7.5, -7, -1, 0, 1, 2, 6, 7] + [0.0] * 24]), 32, True)
    assert torch.equal(again.packed, words)
    assert again.scale.item() == 1.0


def test_the_symmetric_scale_is_absmax_over_seven_and_a_half():
    """In fp32 the fifth would be 0.2 / 0.13333 = 1.5, to even 2; the scale is bf16, 0.13379, and it is 1."""
    row = torch.tensor([-1, -0.5, 0, 0.1, 0.2, 0.5, 0.9, 0.95])
    held = quantize_int4(torch.cat([row, torch.zeros(24)])[None], 32, True)
    assert held.scale.item() == 0.1337890625
    assert int(held.packed[0, 0]) & 0xFFFFFFFF == 0xFFC99841


@pytest.mark.parametrize("group", [32, 64, 128])
def test_symmetric_int4_errs_by_half_a_step(group):
    w = weights()
    held = quantize_int4(w, group, True)
    step = held.scale.float().repeat_interleave(group, dim=1)
    error = (held.dequantize() - w).abs()
    # The extremes: 7.5 steps are cut to 7; a scale rounded by half a bf16 step adds 7.5 * 2^-8 of a step.
    assert bool((error <= step * (0.5 + 7.5 * BF16_HALF_STEP)).all())
    assert error.max() > 0.3 * step.min()  # int4, and not something finer
    assert len(held.dequantize()[0, :group].unique()) <= 16


@pytest.mark.parametrize("group", [32, 128])
def test_asymmetric_int4_errs_by_half_a_step_and_the_roundings_of_its_ends(group):
    w = weights() + 3
    held = quantize_int4(w, group, False)
    assert held.minimum is not None
    step, low = (t.float().repeat_interleave(group, dim=1) for t in (held.scale, held.minimum))
    error = (held.dequantize() - w).abs()
    assert bool((error <= step * (0.5 + 15 * BF16_HALF_STEP) + low.abs() * BF16_HALF_STEP).all())
    assert len(held.dequantize()[0, :group].unique()) <= 16


def test_a_minimum_is_worth_more_than_a_sign_where_values_lie_on_one_side():
    w = weights() * 0.1 + 3

    def err(symmetric: bool) -> float:
        return float((quantize_int4(w, 32, symmetric).dequantize() - w).square().mean())

    assert err(False) < err(True) / 4


@pytest.mark.parametrize("symmetric", [True, False])
def test_zero_and_constant_groups_stay_finite(symmetric):
    w = torch.zeros(2, 64)
    w[1] = 0.5
    read = quantize_int4(w, 32, symmetric).dequantize()
    assert read[0].eq(0).all()
    assert torch.allclose(read[1], w[1], rtol=0.07)


def test_a_group_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"g128 does not divide the 576 inputs of layers.3.q_proj.*g32, g64"):
        quantize_int4(torch.zeros(4, 576), 128, True, "layers.3.q_proj")
    with pytest.raises(ConfigError, match="none of the groups does"):
        quantize_int4(torch.zeros(4, 100), 32, True)


def test_fp8_errs_by_half_a_step_of_its_channel():
    w = weights()
    held = quantize_fp8(w)
    error = (held.dequantize() - w).abs()
    assert bool((error <= torch.maximum(w.abs() * 2**-4, held.scale * 2**-10) * (1 + 1e-5)).all())
    assert error.max() > w.abs().max() * 2**-7


@pytest.mark.parametrize(
    ("fmt", "bits"),
    [
        (WeightFormat("fp32"), 32.0),
        (WeightFormat("bf16"), 16.0),
        (WeightFormat("fp8", "w8a8"), 8 + 32 / 256),
        (WeightFormat("int4", "", 32, True), 4 + 16 / 32),
        (WeightFormat("int4", "", 64, False), 4 + 32 / 64),
    ],
)
def test_every_format_takes_the_bytes_that_it_promises(fmt, bits):
    held = quantize(weights(48, 256), fmt)
    tensors = [held] if isinstance(held, torch.Tensor) else held.tensors()
    assert sum(t.numel() * t.element_size() for t in tensors) * 8 == 48 * 256 * bits


@pytest.mark.parametrize(
    "fmt",
    [
        *(WeightFormat("int4", "", group, symmetric) for group in (32, 64, 128) for symmetric in (True, False)),
        WeightFormat("fp8", "w8a8"),
        WeightFormat("fp8", "w8a16"),
    ],
)
def test_the_tensors_alone_tell_the_format(fmt):
    held = quantize(weights(48, 256), fmt)
    assert not isinstance(held, torch.Tensor)
    assert held.stored == fmt.stored
    assert held.rows(slice(0, 1)).stored == fmt.stored
