"""Packed weights by their bytes, and error bounds that follow from the format."""

import pytest
import torch

from evalsvc.engine import quantize as module
from evalsvc.engine.packed.fp8 import Fp8BlockWeight, quantize_fp8_block
from evalsvc.engine.packed.int8 import Int8Weight, quantize_int8_weight
from evalsvc.engine.packed.nvfp4 import Nvfp4Weight
from evalsvc.engine.precision import WeightFormat
from evalsvc.engine.quantize import Int4Weight, quantize, quantize_fp8, quantize_int4
from evalsvc.errors import ConfigError

PACKED = {
    "int4 sym": WeightFormat("int4", "", 32, True),
    "int4 asym": WeightFormat("int4", "", 64, False),
    "fp8": WeightFormat("fp8", "w8a8"),
    "fp8 block": WeightFormat("fp8", "w8a8", 128),
    "int8": WeightFormat("int8", "w8a8"),
    "nvfp4": WeightFormat("nvfp4", "w4a4", 16),
}
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
    assert held.offset is not None
    step, low = (t.float().repeat_interleave(group, dim=1) for t in (held.scale, held.offset))
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
        (WeightFormat("fp8", "w8a8", 128), 8 + 32 * 2 / (48 * 256)),
        (WeightFormat("int8", "w8a16"), 8 + 32 / 256),
        (WeightFormat("nvfp4", "w4a16", 16), 4 + 8 / 16 + 32 / (48 * 256)),
    ],
)
def test_every_format_takes_the_bytes_that_it_promises(fmt, bits):
    held = quantize(weights(48, 256), fmt)
    tensors = [held] if isinstance(held, torch.Tensor) else held.tensors()
    assert sum(t.numel() * t.element_size() for t in tensors) * 8 == 48 * 256 * bits
    assert fmt.format_bytes(48, 256) * 8 == 48 * 256 * bits


def test_blocks_that_are_not_full_take_a_whole_scale():
    fmt = PACKED["fp8 block"]
    held = quantize(weights(130, 576), fmt)
    assert isinstance(held, Fp8BlockWeight) and held.scale.shape == (2, 5)
    assert fmt.format_bytes(130, 576) == 130 * 576 + 4 * 10 == sum(t.nbytes for t in held.tensors())


@pytest.mark.parametrize(
    "fmt",
    [
        *(WeightFormat("int4", "", group, symmetric) for group in (32, 64, 128) for symmetric in (True, False)),
        WeightFormat("fp8", "w8a8"),
        WeightFormat("fp8", "w8a16"),
        WeightFormat("fp8", "w8a8", 128),
        WeightFormat("int8", "w8a8"),
        WeightFormat("nvfp4", "w4a4", 16),
    ],
)
def test_the_tensors_alone_tell_the_format(fmt):
    held = quantize(weights(48, 256), fmt)
    assert not isinstance(held, torch.Tensor)
    assert held.stored == fmt.stored
    assert held.rows(slice(0, 1)).stored == fmt.stored


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("name", PACKED)
def test_rounding_some_rows_at_a_time_changes_no_byte(name, monkeypatch):
    """Rows that share a scale or a global are many; the largest value lies in the last ones."""
    w = weights(700, 576)
    w[-1] *= 50
    whole = quantize(w, PACKED[name])
    monkeypatch.setattr(module, "row_blocks", lambda shape, multiple=1: blocks(shape[0], multiple))
    parts = quantize(w, PACKED[name])
    assert not isinstance(whole, torch.Tensor) and not isinstance(parts, torch.Tensor)
    assert all(same(a, b) for a, b in zip(whole.tensors(), parts.tensors(), strict=True))


def blocks(rows: int, multiple: int):
    step = max(97 // multiple, 1) * multiple
    yield from (slice(start, start + step) for start in range(0, rows, step))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("some", [slice(0, 1), slice(-1, None), slice(100, 300), slice(128, 256), slice(299, None)])
def test_some_rows_read_as_the_same_rows_of_the_whole(name, some):
    held = quantize(weights(300, 576), PACKED[name])
    assert not isinstance(held, torch.Tensor)
    part = held.rows(some)
    assert torch.equal(part.dequantize(), held.dequantize()[some]) and part.stored == held.stored
    assert torch.equal(part.rows(slice(-1, None)).dequantize(), held.dequantize()[some][-1:])


def test_int8_errs_by_half_a_step_of_its_channel():
    """The largest magnitude is 127.5 steps: 128 below zero, and cut to 127 above."""
    w = weights()
    held = quantize_int8_weight(w)
    assert bool(((held.dequantize() - w).abs() <= held.scale * 0.5 * (1 + 1e-4)).all())
    assert held.codes.min() == -128 and held.codes.max() == 127


def test_a_block_shares_one_scale_and_the_last_ones_hold_what_is_left():
    w = weights(130, 576)
    held = quantize_fp8_block(w)
    for i in range(2):
        for j in range(5):
            assert held.scale[i, j] == w[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128].abs().max() / 448
    step = held.scale.repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :576]
    error = (held.dequantize() - w).abs()
    assert bool((error <= torch.maximum(w.abs() * 2**-4, step * 2**-10) * (1 + 1e-5)).all())


def test_nvfp4_refuses_inputs_that_its_blocks_do_not_divide_and_says_what_fits():
    with pytest.raises(ConfigError, match=r"do not divide the 100 inputs of layers.3.q_proj; use fp8 or int8"):
        quantize(torch.zeros(4, 100), PACKED["nvfp4"], "layers.3.q_proj")


@pytest.mark.parametrize("name", ["fp8", "fp8 block", "int8", "nvfp4"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_never_reads_as_a_number(name, value):
    w = weights(300, 576)
    w[200, 300] = value
    held = quantize(w, PACKED[name])
    assert not isinstance(held, torch.Tensor) and not held.dequantize()[200, 300].isfinite()


def test_the_other_half_of_a_byte_is_another_matrix():
    w = weights()
    held = quantize(w, PACKED["nvfp4"])
    assert isinstance(held, Nvfp4Weight)
    swapped = Nvfp4Weight(held.codes << 4 | held.codes >> 4, held.scale, held.divisor)
    assert (held.dequantize() - w).norm() < 0.12 * w.norm() < (swapped.dequantize() - w).norm()


@pytest.mark.parametrize("seed", range(4))
def test_codes_and_scales_are_those_of_compressed_tensors(seed):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    utils = pytest.importorskip("compressed_tensors.quantization.utils")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    w = torch.randn(200, 288, generator=torch.Generator().manual_seed(seed)) * torch.exp(2 * weights(200, 1))

    def theirs(grouped: torch.Tensor, dims, dtype, divisor=None, **how) -> tuple[torch.Tensor, torch.Tensor]:
        args = quantization.QuantizationArgs(symmetric=True, **how)
        scale, zero = utils.calculate_qparams(grouped.amin(dims), grouped.amax(dims), args, global_scale=divisor)
        return forward.quantize(w, scale, zero, args, dtype=dtype, global_scale=divisor), scale

    int8, block, nvfp4 = (quantize(w, PACKED[name]) for name in ("int8", "fp8 block", "nvfp4"))
    assert isinstance(int8, Int8Weight) and isinstance(block, Fp8BlockWeight) and isinstance(nvfp4, Nvfp4Weight)
    codes, scale = theirs(w[:, None], -1, torch.int8, num_bits=8, type="int", strategy="channel")
    assert same(codes, int8.codes) and same(scale, int8.scale)

    padded = torch.nn.functional.pad(w, (0, -288 % 128, 0, -200 % 128)).view(2, 128, 3, 128)
    how = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    codes, scale = theirs(padded, (1, 3), torch.float8_e4m3fn, **how)
    assert same(codes, block.codes) and same(scale, block.scale)

    divisor = utils.generate_gparam(w.amin(), w.amax())
    how = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    how |= {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
    codes, scale = theirs(w.unflatten(-1, (-1, 16)), -1, None, divisor, **how)
    assert same(divisor, nvfp4.divisor) and same(scale.to(torch.float8_e4m3fn), nvfp4.scale)
    assert same(helpers.pack_fp4_to_uint8(codes.float()), nvfp4.codes)
