"""nvfp4 weights: `evalsvc.kernels.nvfp4` with one global for the whole matrix, as compressed-tensors stores them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import ConfigError
from evalsvc.kernels.nvfp4 import BLOCK, nvfp4_values, quantize_nvfp4


@dataclass(frozen=True)
class Nvfp4Weight:
    """e2m1 matrix in blocks of 16 along its inputs.

    Attributes:
        codes: Two to a byte, the even input in the low half. Shape: (out, in / 2), uint8.
        scale: Shape: (out, in / 16), float8_e4m3fn.
        divisor: The global, by which values are divided. Shape: (1,), fp32.
    """

    codes: Tensor
    scale: Tensor
    divisor: Tensor

    def rows(self, some: slice) -> "Nvfp4Weight":
        """Some rows of the matrix."""
        return Nvfp4Weight(self.codes[some], self.scale[some], self.divisor)

    def tensors(self) -> list[Tensor]:
        """What a device would hold."""
        return [self.codes, self.scale, self.divisor]

    @property
    def shape(self) -> tuple[int, int]:
        """As in `Packed`."""
        return (len(self.codes), 2 * self.codes.shape[1])

    @property
    def stored(self) -> str:
        """As in `Packed`."""
        out, half = self.codes.shape
        fits = self.scale.shape == (out, 2 * half // BLOCK) and self.scale.dtype == torch.float8_e4m3fn
        return "nvfp4" if fits else f"nvfp4:{tuple(self.scale.shape)}:{self.scale.dtype}"

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        return nvfp4_values(self.codes, self.scale).float() / self.divisor


def quantize_nvfp4_weight(weight: Tensor, divisor: Tensor, name: str = "weight") -> Nvfp4Weight:
    """Rounds a matrix, or some rows of one.

    Args:
        weight: Shape: (out, in).
        divisor: Of the whole matrix. Shape: (1,).
        name: For the error.

    Raises:
        ConfigError: 16 does not divide `in`.
    """
    check_nvfp4(weight.shape[1], name)
    return Nvfp4Weight(*quantize_nvfp4(weight, divisor), divisor)


def check_nvfp4(inputs: int, name: str) -> None:
    """Refuses a matrix whose inputs do not fill blocks of 16."""
    if inputs % BLOCK:
        raise ConfigError(
            f"nvfp4 has blocks of {BLOCK}, which do not divide the {inputs} inputs of {name}; "
            "use fp8 or int8, which fit any number"
        )
