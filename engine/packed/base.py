"""What every packed form offers."""

from typing import Protocol, Self

from torch import Tensor


class Packed(Protocol):
    """A matrix of shape (out, in) in a format."""

    def rows(self, some: slice) -> Self:
        """Some rows of the matrix."""
        ...

    def tensors(self) -> list[Tensor]:
        """What a device would hold; the codes come first."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix: (out, in)."""
        ...

    @property
    def stored(self) -> str:
        """The format as the tensors alone tell it, spelled as `WeightFormat.stored`."""
        ...

    def dequantize(self) -> Tensor:
        """Shape: (out, in), fp32."""
        ...
