"""fp8: e4m3 codes with a scale per output channel or per block of 128 x 128.

    scale = max|w| / 448 of a channel or block,   w = e4m3(w / scale) * scale

DeepSeek names its block scale `weight_scale_inv`; it is a multiplier all the same.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from evalsvc.kernels.fp8 import E4M3_MAX, absmax_scale, amax_scale, dequantize_e4m3, quantize_e4m3
from evalsvc.kernels.fp8_block import BLOCK, block_amax, blocks_of, expand

from .base import ByChannel, Coded


@dataclass(frozen=True)
class Fp8Weight(ByChannel):
    """float8_e4m3fn matrix with one scale per output channel."""

    name = "fp8"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        return dequantize_e4m3(self.codes) * self.scale


@dataclass(frozen=True)
class Fp8BlockWeight(Coded):
    """e4m3 matrix with one scale per block of 128 x 128; the last blocks hold what is left.

    Attributes:
        codes: Shape: (out, in), float8_e4m3fn.
        scale: Shape: (ceil(out / 128), ceil(in / 128)), fp32.
        skipped: Rows of the first block that lie before `codes`.
    """

    skipped: int = 0

    def rows(self, some: slice) -> "Fp8BlockWeight":
        """Some rows of the matrix."""
        start, stop, _ = some.indices(len(self.codes))
        first, end = start + self.skipped, stop + self.skipped
        return Fp8BlockWeight(self.codes[some], self.scale[first // BLOCK : blocks_of(end)], first % BLOCK)

    @property
    def stored(self) -> str:
        """As in `Packed`."""
        out, inputs = self.codes.shape
        fits = self.scale.shape == (blocks_of(out + self.skipped), blocks_of(inputs))
        return "fp8:block128" if fits else f"fp8:{tuple(self.scale.shape)}"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        out, inputs = self.codes.shape
        scale = expand(expand(self.scale, self.skipped + out, 0), inputs, 1)
        return dequantize_e4m3(self.codes) * scale[self.skipped :]


def quantize_fp8(weight: Tensor) -> Fp8Weight:
    """Rounds a matrix of shape (out, in) to e4m3 with one scale per output channel."""
    scale = absmax_scale(weight, dim=1)
    return Fp8Weight(quantize_e4m3(weight, scale), scale)


def quantize_fp8_block(weight: Tensor) -> Fp8BlockWeight:
    """Rounds a matrix of shape (out, in) to e4m3 with one scale per block of 128 x 128."""
    amax = block_amax(weight)
    amax = functional.pad(amax, (0, 0, 0, -len(weight) % BLOCK)).unflatten(0, (-1, BLOCK)).amax(1)
    scale = amax_scale(amax, E4M3_MAX)
    return Fp8BlockWeight(quantize_e4m3(weight, expand(expand(scale, len(weight), 0), weight.shape[1], 1)), scale)
