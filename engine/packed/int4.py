"""int4, compressed-tensors' packing: unsigned codes, eight to an int32, least significant nibble first along K.

    symmetric:   scale = max|w| / 7.5,            code = clamp(round(w / scale), -8, 7) + 8,   w = (code - 8) * scale
    asymmetric:  scale = (max - min) / 15,        code = clamp(round((w - min) / scale), 0, 15),  w = code * scale + min

Scales and minima are bf16, one per group of inputs, as int4 weight-only kernels hold them (torch's
`_weight_int4pack_mm` has the same pair). Checkpoints may have scales in fp16, and zero points in place of minima,
w = (code - zero) * scale: those are held as they are, in as many bytes.
"""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from evalsvc.errors import ConfigError
from evalsvc.kernels.int4 import int4_values

from ..precision import INT4_GROUPS


@dataclass(frozen=True)
class Int4Weight:
    """Packed int4 matrix.

    Attributes:
        packed: Shape: (out, in / 8), int32.
        scale: Shape: (out, in / group), bf16 or fp16.
        offset: Minima in bf16 or zero points in int16, as `scale`; None when symmetric.
    """

    packed: Tensor
    scale: Tensor
    offset: Tensor | None

    def rows(self, some: slice) -> "Int4Weight":
        """Some rows of the matrix."""
        return Int4Weight(self.packed[some], self.scale[some], None if self.offset is None else self.offset[some])

    def tensors(self) -> list[Tensor]:
        """What a device would hold."""
        return [t for t in (self.packed, self.scale, self.offset) if t is not None]

    @property
    def shape(self) -> tuple[int, int]:
        """As in `Packed`."""
        return (len(self.packed), 8 * self.packed.shape[1])

    @property
    def stored(self) -> str:
        """The format as the tensors alone tell it, spelled as `WeightFormat.stored`."""
        group = self.packed.shape[1] * 8 // self.scale.shape[1]
        return f"int4:g{group}:{'sym' if self.offset is None else 'asym'}"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        return int4_values(self.packed, self.scale, self.offset)


def quantize_int4(weight: Tensor, group: int, symmetric: bool, name: str = "weight") -> Int4Weight:
    """Rounds a matrix to int4.

    Args:
        weight: Shape: (out, in).
        group: Inputs that share a scale; must divide `in`.
        symmetric: No minimum.
        name: For the error.

    Raises:
        ConfigError: As `check_int4`.
    """
    out, inputs = weight.shape
    check_int4(inputs, group, name)
    blocks = weight.float().view(out, inputs // group, group)
    if symmetric:
        scale = _positive(blocks.abs().amax(-1) / 7.5)
        codes = (blocks / scale.float()[:, :, None]).round_().clamp_(-8, 7).add_(8)
        minimum = None
    else:
        low = blocks.amin(-1)
        minimum = low.to(torch.bfloat16)
        scale = _positive((blocks.amax(-1) - low) / 15)
        codes = (blocks - minimum.float()[:, :, None]).div_(scale.float()[:, :, None]).round_().clamp_(0, 15)
    nibbles = codes.to(torch.int32).view(out, inputs // 8, 8)
    packed = torch.zeros(out, inputs // 8, dtype=torch.int32)
    for i in range(8):
        packed |= nibbles[:, :, i] << (4 * i)
    return Int4Weight(packed, scale, minimum)


def check_int4(inputs: int, group: int, name: str, together: int = 0) -> None:
    """Refuses a group that does not divide a matrix's inputs.

    Args:
        inputs: Of the matrix.
        group: Inputs that share a scale.
        name: For the error.
        together: What divides the inputs of every matrix that is held alike; 0: of this one alone.

    Raises:
        ConfigError: It does not; the message lists those groups that do, for all of them.
    """
    if inputs % group:
        fitting = [f"g{g}" for g in INT4_GROUPS if gcd(inputs, together) % g == 0]
        remedy = f"groups that do: {', '.join(fitting)}" if fitting else "none of the groups does; use fp8 or int8"
        raise ConfigError(f"int4:g{group} does not divide the {inputs} inputs of {name}; {remedy}")


def _positive(scale: Tensor) -> Tensor:
    """bf16 scale, 1.0 where a group is constant."""
    return torch.where(scale > 0, scale, torch.ones_like(scale)).to(torch.bfloat16)
