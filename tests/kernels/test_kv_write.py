"""What lies in the pages after a write."""

import pytest
import torch

from evalsvc.kernels.fp8 import dequantize_e4m3
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


def test_one_scale_divides_on_the_way_in_and_saturates():
    pages = torch.full((SLOTS, HEADS, DIM), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    x = torch.full((1, HEADS, DIM), 3.0)
    x[0, 0, 0] = 1000.0
    kv_write(pages, torch.tensor(2.0), torch.tensor([5]), x)
    stored = dequantize_e4m3(pages[5:6])[0]
    assert stored[0, 0] == 448 and stored[1:].eq(1.5).all()


def test_each_token_and_head_gets_its_own_scale():
    pages = torch.empty(SLOTS, HEADS, DIM, dtype=torch.float8_e4m3fn)
    scales = torch.full((SLOTS, HEADS), torch.nan)
    slots = torch.tensor([17, 3, 39, 0])
    x = new_keys()
    x[0] *= 1000  # a large token leaves the others' precision alone
    kv_write(pages, scales, slots, x)
    wanted = x.float().abs().amax(-1) / 448
    wanted[1, 2] = 1.0
    assert torch.equal(scales[slots], wanted)
    assert int(scales.isnan().all(dim=1).sum()) == SLOTS - 4
    read = dequantize_e4m3(pages[slots]) * scales[slots][:, :, None]
    assert bool(((read - x.float()).abs() <= x.float().abs().amax(-1, keepdim=True) * 2**-4).all())


def test_fp8_pages_without_scales_are_refused():
    with pytest.raises(ValueError, match="scales"):
        kv_write(torch.empty(SLOTS, HEADS, DIM, dtype=torch.float8_e4m3fn), None, torch.tensor([0]), new_keys()[:1])
