"""A matrix held in a plan's weights format, and the product that goes with it.

One form of product per format, whatever the batch. As torch: that of `products.py` where activations are quantized,
else bf16 (or fp32) from a decoded copy. As Triton: that of `launches.py`, from the packed form itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsvc.kernels import dispatch
from evalsvc.kernels.dispatch import ran

from .blocks import row_blocks
from .packed.base import Packed
from .precision import WeightFormat
from .products import PRODUCTS, Product
from .quantize import quantize


def stored_as(dtype: torch.dtype) -> str:
    """A plain tensor's format, spelled as `WeightFormat.stored`."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))


class PlanMatrix:
    """`y = x W^T` with W in `fmt`.

    Attributes:
        packed: What a device would hold; the truth.
        launch: The Triton product, which reads the packed form; None where the torch form runs.
        kept: Whether it is a checkpoint's own form, which was not rounded again.
    """

    def __init__(self, weight: Tensor | Packed, fmt: WeightFormat, name: str):
        """Packs a matrix, or keeps one that is packed.

        Args:
            weight: Shape: (out, in).
            fmt: The format.
            name: For errors.

        Raises:
            ConfigError: The format does not fit the matrix's shape.
        """
        self.fmt = fmt
        self.kept = not isinstance(weight, Tensor)
        self.packed = quantize(weight, fmt, name) if isinstance(weight, Tensor) else weight
        self.shape: tuple[int, int] = tuple(weight.shape)  # pyright: ignore[reportAttributeAccessIssue]
        self.launch = _launch(self.packed, fmt)
        self._read = None if self.launch is not None else self._copy(self.shape)

    @property
    def weight(self) -> Tensor:
        """What the torch form reads, made when first asked for where another runs. Shape: (out, in).

        The same tensor as `packed` for bf16 and fp32, and as its codes for int8 with quantized activations.
        """
        if self._read is None:
            self._read = self._copy(self.shape)
        return self._read

    @weight.setter
    def weight(self, weight: Tensor) -> None:
        self._read = weight

    def resident(self) -> list[Tensor]:
        """The tensors that this process holds: the packed form, and what is decoded of it."""
        return [*self.packed_tensors(), *([] if self._read is None else [self._read])]

    @property
    def dtype(self) -> torch.dtype:
        """Compute type of the product: what activations and biases are held in."""
        return torch.float32 if self.fmt.kind == "fp32" else torch.bfloat16

    def _product(self) -> Product | None:
        """The product of quantized activations; None where the format quantizes none, or nothing is packed."""
        return None if isinstance(self.packed, Tensor) else PRODUCTS.get(self.fmt.product)

    def _copy(self, shape: tuple[int, ...]) -> Tensor:
        if isinstance(self.packed, Tensor):
            return self.packed
        product = self._product()
        if product is not None and product.reads_codes:
            return self.packed.tensors()[0]
        by_inputs = product is not None and product.by_inputs
        copy = torch.empty(shape[::-1] if by_inputs else shape, dtype=torch.bfloat16)
        copy = copy.T if by_inputs else copy
        for rows in row_blocks(shape):
            copy[rows] = self._decoded(self.packed.rows(rows))
        return copy

    def _decoded(self, packed: Packed | Tensor) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        product = self._product()
        return packed.dequantize().to(torch.bfloat16) if product is None else product.decode(packed)

    def dequantized(self) -> Tensor:
        """The matrix's values, scales included. Shape: (out, in), fp32 or, for a plain tensor, its own dtype."""
        return self.packed if isinstance(self.packed, Tensor) else self.packed.dequantize()

    def reads_what_is_packed(self) -> bool:
        """Whether the first and the last row of what the torch form reads, where it is held, are the packed form's."""
        packed = self.packed
        if self._read is None:
            return True
        for row in (slice(0, 1), slice(-1, None)):
            part = packed[row] if isinstance(packed, Tensor) else packed.rows(row)
            if not torch.equal(self._read[row], self._decoded(part)):
                return False
        return True

    @property
    def stored(self) -> str:
        """The format of the packed form as its tensors alone tell it, spelled as `WeightFormat.stored`."""
        if isinstance(self.packed, Tensor):
            return stored_as(self.packed.dtype)
        return self.packed.stored

    def packed_tensors(self) -> list[Tensor]:
        """The tensors of the packed form."""
        return [self.packed] if isinstance(self.packed, Tensor) else self.packed.tensors()

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, with a bias added before its last rounding. Shape: (..., in) -> (..., out), dtype of `x`."""
        if self.launch is not None:
            ran(f"linear.{self.fmt.kernel}.triton")
            return self._rounded(self.launch(x.flatten(0, -2).contiguous(), self.packed), x, bias)
        product = self._product()
        if product is None:
            ran(f"linear.{'fp32' if self.weight.dtype == torch.float32 else 'bf16'}.torch")
            return functional.linear(x, self.weight, bias)
        ran(f"linear.{self.fmt.product}.torch")
        return self._rounded(product.run(x.flatten(0, -2), self.weight, self.packed), x, bias)

    @staticmethod
    def _rounded(y: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        y = y.unflatten(0, x.shape[:-1])
        return (y if bias is None else y + bias).to(x.dtype)


def _launch(packed: Packed | Tensor, fmt: WeightFormat) -> Callable[[Tensor, Any], Tensor] | None:
    if isinstance(packed, Tensor) or dispatch.form(packed.tensors()[0].device.type) == "torch":
        return None
    from .launches import LAUNCHES

    return LAUNCHES.get(fmt.kernel)
