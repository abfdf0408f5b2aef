"""Rounding to e4m3 in Triton against torch's bytes."""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels.fp8 import dequantize_e4m3
from evalsvc.kernels.round_fp8 import round_fp8, round_fp8_torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def both(x: torch.Tensor, in_groups: bool) -> tuple[torch.Tensor, ...]:
    mine, theirs = round_fp8(x.to(DEVICE), in_groups), round_fp8_torch(x, in_groups)
    return mine[0].cpu().view(torch.uint8), theirs[0].view(torch.uint8), mine[1].cpu(), theirs[1]


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("inputs", [1, 64, 576, 1500])
def test_bytes_and_scales_are_torchs(inputs, in_groups):
    x = torch.randn(5, inputs, generator=torch.Generator().manual_seed(inputs))
    x = (x * torch.tensor([[1.0], [1e-30], [1e30], [0.0], [3.0]])).bfloat16()
    mine, theirs, scale, expected = both(x, in_groups)
    assert torch.equal(mine, theirs) and torch.equal(scale, expected)


def test_every_code_and_every_tie_between_two_rounds_as_torch_has_it():
    """A row that holds 448 has scale 1: then values are rounded as they are."""
    values = dequantize_e4m3(torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn))
    middles = (values[1:] + values[:-1]) / 2
    near = torch.cat(
        [values, middles, middles.nextafter(torch.tensor(torch.inf)), middles.nextafter(torch.tensor(0.0))]
    )
    x = torch.cat([near, -near])[None]
    mine, theirs, scale, _ = both(x, False)
    assert torch.equal(mine, theirs) and scale.item() == 1


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_nan_in_its_own_scale_alone(value, in_groups):
    x = torch.ones(3, 300)
    x[1, 140] = value
    codes, scale = round_fp8(x.to(DEVICE), in_groups)
    read = dequantize_e4m3(codes.cpu()) * (scale.cpu().repeat_interleave(128, 1)[:, :300] if in_groups else scale.cpu())
    lost = torch.zeros(3, 300, dtype=torch.bool)
    lost[1, slice(128, 256) if in_groups else slice(None)] = True
    assert torch.equal(read.isfinite(), ~lost)


def test_no_rows_are_no_work_and_other_types_are_refused():
    assert round_fp8(torch.ones(0, 8).to(DEVICE), False)[0].shape == (0, 8)
    with pytest.raises(CapabilityError, match=r"round_fp8: x is torch\.float16; it takes bf16 or fp32"):
        round_fp8(torch.ones(1, 8).half(), False)
