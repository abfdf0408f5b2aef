"""Weights to a format and back. The packed form is the truth; products on CPU run from what it decodes to.

int4, compressed-tensors' packing: unsigned codes, eight to an int32, least significant nibble first along K.
    symmetric:   scale = max|w| / 7.5,            code = clamp(round(w / scale), -8, 7) + 8,   w = (code - 8) * scale
    asymmetric:  scale = (max - min) / 15,        code = clamp(round((w - min) / scale), 0, 15),  w = code * scale + min
  Scales and minima are bf16, one per group of inputs, as int4 weight-only kernels hold them (torch's
  `_weight_int4pack_mm` has the same pair).
fp8, per output channel:   scale = max|w| / 448,   w = e4m3(w / scale) * scale
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import ConfigError
from evalsvc.kernels.fp8 import absmax_scale, dequantize_e4m3, quantize_e4m3

from .blocks import row_blocks
from .precision import INT4_GROUPS, WeightFormat


@dataclass(frozen=True)
class Int4Weight:
    """Packed int4 matrix.

    Attributes:
        packed: Shape: (out, in / 8), int32.
        scale: Shape: (out, in / group), bf16.
        minimum: As `scale`, or None when symmetric.
    """

    packed: Tensor
    scale: Tensor
    minimum: Tensor | None

    def rows(self, some: slice) -> "Int4Weight":
        """Some rows of the matrix."""
        return Int4Weight(self.packed[some], self.scale[some], None if self.minimum is None else self.minimum[some])

    def tensors(self) -> list[Tensor]:
        """What a device would hold."""
        return [t for t in (self.packed, self.scale, self.minimum) if t is not None]

    @property
    def stored(self) -> str:
        """The format as the tensors alone tell it, spelled as `WeightFormat.stored`."""
        group = self.packed.shape[1] * 8 // self.scale.shape[1]
        return f"int4:g{group}:{'sym' if self.minimum is None else 'asym'}"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        codes = (self.packed[:, :, None] >> shifts) & 0xF
        out, groups = self.scale.shape
        codes = codes.view(out, groups, -1).float()
        scale = self.scale.float()[:, :, None]
        if self.minimum is None:
            return ((codes - 8) * scale).view(out, -1)
        return (codes * scale + self.minimum.float()[:, :, None]).view(out, -1)


@dataclass(frozen=True)
class Fp8Weight:
    """e4m3 matrix with one scale per output channel.

    Attributes:
        codes: Shape: (out, in), float8_e4m3fn.
        scale: Shape: (out, 1), fp32.
    """

    codes: Tensor
    scale: Tensor

    def rows(self, some: slice) -> "Fp8Weight":
        """Some rows of the matrix."""
        return Fp8Weight(self.codes[some], self.scale[some])

    def tensors(self) -> list[Tensor]:
        """What a device would hold."""
        return [self.codes, self.scale]

    @property
    def stored(self) -> str:
        """As in `Int4Weight`."""
        return "fp8:channel" if self.scale.shape == (len(self.codes), 1) else f"fp8:{tuple(self.scale.shape)}"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        return dequantize_e4m3(self.codes) * self.scale


def quantize_int4(weight: Tensor, group: int, symmetric: bool, name: str = "weight") -> Int4Weight:
    """Rounds a matrix to int4.

    Args:
        weight: Shape: (out, in).
        group: Inputs that share a scale; must divide `in`.
        symmetric: No minimum.
        name: For the error.

    Raises:
        ConfigError: The group does not divide `in`; the message lists those that do.
    """
    out, inputs = weight.shape
    if inputs % group:
        fitting = [g for g in INT4_GROUPS if inputs % g == 0]
        remedy = f"groups that do: {', '.join(f'g{g}' for g in fitting)}" if fitting else "none of the groups does"
        raise ConfigError(f"int4:g{group} does not divide the {inputs} inputs of {name}; {remedy}")
    blocks = weight.float().view(out, inputs // group, group)
    if symmetric:
        scale = _positive(blocks.abs().amax(-1) / 7.5)
        codes = (blocks / scale.float()[:, :, None]).round().clamp_(-8, 7) + 8
        minimum = None
    else:
        low = blocks.amin(-1)
        minimum = low.to(torch.bfloat16)
        scale = _positive((blocks.amax(-1) - low) / 15)
        codes = ((blocks - minimum.float()[:, :, None]) / scale.float()[:, :, None]).round().clamp_(0, 15)
    nibbles = codes.to(torch.int32).view(out, inputs // 8, 8)
    packed = torch.zeros(out, inputs // 8, dtype=torch.int32)
    for i in range(8):
        packed |= nibbles[:, :, i] << (4 * i)
    return Int4Weight(packed, scale, minimum)


def quantize_fp8(weight: Tensor) -> Fp8Weight:
    """Rounds a matrix of shape (out, in) to e4m3 with one scale per output channel."""
    scale = absmax_scale(weight, dim=1)
    return Fp8Weight(quantize_e4m3(weight, scale), scale)


def quantize(weight: Tensor, fmt: WeightFormat, name: str = "weight") -> Int4Weight | Fp8Weight | Tensor:
    """The packed form of a matrix in a format; fp32 and bf16 are plain tensors.

    In every format a row is rounded without regard to the others, so some rows are done at a time.
    """
    if fmt.kind == "int4":
        parts = [quantize_int4(weight[rows], fmt.group, fmt.symmetric, name) for rows in row_blocks(weight.shape)]
        minima = [part.minimum for part in parts if part.minimum is not None]
        packed, scale = torch.cat([part.packed for part in parts]), torch.cat([part.scale for part in parts])
        return Int4Weight(packed, scale, torch.cat(minima) if minima else None)
    if fmt.kind == "fp8":
        blocks = [quantize_fp8(weight[rows]) for rows in row_blocks(weight.shape)]
        return Fp8Weight(torch.cat([block.codes for block in blocks]), torch.cat([block.scale for block in blocks]))
    return weight.to(torch.float32 if fmt.kind == "fp32" else torch.bfloat16)


def _positive(scale: Tensor) -> Tensor:
    """bf16 scale, 1.0 where a group is constant."""
    return torch.where(scale > 0, scale, torch.ones_like(scale)).to(torch.bfloat16)
