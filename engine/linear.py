"""A linear layer held in a plan's weights format: a matrix and a bias."""

from torch import Tensor, nn

from .matrix import PlanMatrix
from .packed.base import Packed
from .precision import WeightFormat


class PlanLinear(nn.Module):
    """`y = x W^T + bias`.

    Attributes:
        matrix: W in a format.
        bias: At the compute type, or None.
    """

    def __init__(self, weight: Tensor | Packed, bias: Tensor | None, fmt: WeightFormat, name: str):
        super().__init__()
        self.matrix = PlanMatrix(weight, fmt, name)
        self.bias = None if bias is None else bias.to(self.matrix.dtype)

    @property
    def weight(self) -> Tensor:
        """What the product reads, as in `PlanMatrix`."""
        return self.matrix.weight

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (..., in) -> (..., out), dtype of `x`."""
        return self.matrix(x, self.bias)
