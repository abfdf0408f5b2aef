"""int8, one scale per output channel, compressed-tensors' symmetric form.

scale = max|w| / 127.5,   code = clamp(round_half_even(w / scale), -128, 127),   w = code * scale
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.kernels.fp8 import absmax_scale

from .base import ByChannel

HALF_RANGE = 127.5


@dataclass(frozen=True)
class Int8Weight(ByChannel):
    """int8 matrix with one scale per output channel, NaN or infinity where the channel held such a value."""

    name = "int8"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        return self.codes.float() * self.scale


def quantize_int8_weight(weight: Tensor) -> Int8Weight:
    """Rounds a matrix of shape (out, in) to int8; a channel that is not finite gets a scale of NaN."""
    scale = absmax_scale(weight, dim=1, largest=HALF_RANGE)
    scale = torch.where(scale.isfinite(), scale, torch.full_like(scale, torch.nan))
    codes = (weight.float() / scale).round_().clamp_(-128, 127).nan_to_num_(0.0)
    return Int8Weight(codes.to(torch.int8), scale)
