"""What every packed form offers, and what forms with a whole code for each input share."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

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


@dataclass(frozen=True)
class Coded:
    """A code for each element, and scales.

    Attributes:
        codes: Shape: (out, in).
        scale: fp32; whose elements share one is the format's.
    """

    codes: Tensor
    scale: Tensor

    def tensors(self) -> list[Tensor]:
        """As in `Packed`."""
        return [self.codes, self.scale]

    @property
    def shape(self) -> tuple[int, int]:
        """As in `Packed`."""
        return (len(self.codes), self.codes.shape[1])


@dataclass(frozen=True)
class ByChannel(Coded):
    """One scale per output channel. Shape: (out, 1)."""

    name: ClassVar[str]

    def rows(self, some: slice) -> Self:
        """As in `Packed`."""
        return type(self)(self.codes[some], self.scale[some])

    @property
    def stored(self) -> str:
        """As in `Packed`."""
        fits = self.scale.shape == (len(self.codes), 1)
        return f"{self.name}:channel" if fits else f"{self.name}:{tuple(self.scale.shape)}"
