"""What lies in the pages after a write."""

import pytest
import torch

from evalsvc.kernels.fp8 import dequantize_e4m3
from evalsvc.kernels.int8 import dequantize_int8
from evalsvc.kernels.kv_write import kv_write

SLOTS, HEADS, DIM = 40, 3, 8


def new_keys(seed: int = 0) -> torch.Tensor:
    """Token 1's head 2 is zero: its scale cannot be its largest magnitude."""
    x = torch.randn(4, HEADS, DIM, generator=torch.Generator().manual_seed(seed))
    x[1, 2] = 0
    return x.bfloat16()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_pages_hold_the_values_and_nothing_else_changes(dtype):
    pages = torch.full((SLOTS, HEADS, DIM), torch.nan, dtype=dtype)
    slots = torch.tensor([17, 3, 39, 0])
    kv_write(pages, None, slots, new_keys())
    assert torch.equal(pages[slots], new_keys().to(dtype))
    assert int(pages.isnan().all(dim=(1, 2)).sum()) == SLOTS - 4


CODES = {
    "fp8": (torch.float8_e4m3fn, 448, dequantize_e4m3, 0x7F),
    "int8": (torch.int8, 127, dequantize_int8, 0x80),
}


def nan_pages(kind: str) -> torch.Tensor:
    dtype, _, _, nan = CODES[kind]
    return torch.full((SLOTS, HEADS, DIM), nan, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("kind", CODES)
def test_one_scale_divides_on_the_way_in_and_saturates(kind):
    _, largest, decode, _ = CODES[kind]
    pages = nan_pages(kind)
    x = torch.full((1, HEADS, DIM), 4.0)
    x[0, 0, 0] = 1000.0
    x[0, 0, 1] = -1000.0
    kv_write(pages, torch.tensor(2.0), torch.tensor([5]), x)
    stored = decode(pages[5:6])[0]
    assert stored[0, :2].tolist() == [largest, -largest] and stored[1:].eq(2).all()
    assert int(decode(pages).isnan().all(dim=(1, 2)).sum()) == SLOTS - 1


@pytest.mark.parametrize("kind", CODES)
def test_each_head_is_divided_by_its_own_fixed_scale(kind):
    """Head dimension, heads and tokens differ in number, so that a scale along the wrong one cannot pass."""
    pages, scales = nan_pages(kind), torch.tensor([0.5, 1.0, 4.0])
    kv_write(pages, scales, torch.tensor([3, 7]), torch.full((2, HEADS, DIM), 8.0))
    stored = CODES[kind][2](pages[[3, 7]])
    assert stored[:, :, 0].tolist() == [[16, 8, 2]] * 2
    assert scales.tolist() == [0.5, 1.0, 4.0]


@pytest.mark.parametrize("kind", CODES)
def test_each_token_and_head_gets_its_own_scale(kind):
    _, largest, decode, _ = CODES[kind]
    pages = nan_pages(kind)
    scales = torch.full((SLOTS, HEADS), torch.nan)
    slots = torch.tensor([17, 3, 39, 0])
    x = new_keys()
    x[0] *= 1000  # a large token leaves the others' precision alone
    kv_write(pages, scales, slots, x)
    wanted = x.float().abs().amax(-1) / largest
    wanted[1, 2] = 1.0
    assert torch.equal(scales[slots], wanted)
    assert int(scales.isnan().all(dim=1).sum()) == SLOTS - 4
    read = decode(pages[slots]) * scales[slots][:, :, None]
    half_step = {"fp8": 2**-4, "int8": 0.501 / 127}[kind]
    assert bool(((read - x.float()).abs() <= x.float().abs().amax(-1, keepdim=True) * half_step).all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("scales", ["scalar", "head", "token-head"])
@pytest.mark.parametrize("kind", CODES)
def test_what_is_not_finite_stays_visible_in_its_token_and_in_no_other(kind, scales, value):
    pages = nan_pages(kind)
    given = {"scalar": torch.tensor(1.0), "head": torch.ones(HEADS), "token-head": torch.ones(SLOTS, HEADS)}[scales]
    x = torch.ones(2, HEADS, DIM)
    x[0, 1, 4] = value
    kv_write(pages, given, torch.tensor([3, 7]), x)
    read = CODES[kind][2](pages[[3, 7]]) * (given[[3, 7]][:, :, None] if scales == "token-head" else 1.0)
    assert read[0, 1, 4].isnan()
    assert read[1].isfinite().all() and read[0, [0, 2]].isfinite().all()


@pytest.mark.parametrize("kind", CODES)
def test_pages_of_codes_without_scales_are_refused(kind):
    with pytest.raises(ValueError, match="scales"):
        kv_write(nan_pages(kind), None, torch.tensor([0]), new_keys()[:1])
