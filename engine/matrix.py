"""A matrix held in a plan's weights format, and the product that goes with it.

One form of product per format, whatever the batch: bf16 (or fp32) from the decoded copy; for `fp8:w8a8` the activation
is quantized per token for real, the product runs over the exact e4m3 values in bf16, and both scales follow it.

torch's bf16 product on CPU ends in bf16, so w8a8 is rounded once before its scales and once after. Measured on a 135M
Llama, 800 tokens: KL from the same codes with all other arithmetic in fp32 is 0.0183 nats; with an exact product,
rounded once, 0.0188; with the product's residual added by a second one, 0.0182 at twice the time. What rounding
activations to e4m3 does to the next layer's codes hides the difference, and so the plain product stays.
"""

import torch
from torch import Tensor
from torch.nn import functional

from evalsvc.kernels.dispatch import ran
from evalsvc.kernels.fp8 import absmax_scale, e4m3_as_bf16, quantize_e4m3

from .blocks import row_blocks
from .precision import WeightFormat
from .quantize import Fp8Weight, Int4Weight, quantize


def stored_as(dtype: torch.dtype) -> str:
    """A plain tensor's format, spelled as `WeightFormat.stored`."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))


class PlanMatrix:
    """`y = x W^T` with W in `fmt`.

    Attributes:
        packed: What a device would hold; the truth.
        weight: What the product reads on this device. Shape: (out, in). The same tensor as `packed` for bf16 and fp32.
    """

    def __init__(self, weight: Tensor, fmt: WeightFormat, name: str):
        """Packs a matrix.

        Args:
            weight: Shape: (out, in).
            fmt: The format.
            name: For errors.

        Raises:
            ConfigError: The format does not fit the matrix's shape.
        """
        self.fmt = fmt
        self.packed = quantize(weight, fmt, name)
        self.weight = self._copy(tuple(weight.shape))

    def _copy(self, shape: tuple[int, ...]) -> Tensor:
        if isinstance(self.packed, Tensor):
            return self.packed
        copy = torch.empty(shape, dtype=torch.bfloat16)
        for rows in row_blocks(shape):
            copy[rows] = self._decoded(self.packed.rows(rows))
        return copy

    def _decoded(self, packed: Int4Weight | Fp8Weight | Tensor) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, Fp8Weight) and self.fmt.activations == "w8a8":
            return e4m3_as_bf16(packed.codes)  # the scales follow the product
        return packed.dequantize().to(torch.bfloat16)

    def dequantized(self) -> Tensor:
        """The matrix's values, scales included. Shape: (out, in), fp32 or, for a plain tensor, its own dtype."""
        return self.packed if isinstance(self.packed, Tensor) else self.packed.dequantize()

    def reads_what_is_packed(self) -> bool:
        """Whether the first and the last row that the product reads decode from the packed form."""
        packed = self.packed
        for row in (slice(0, 1), slice(-1, None)):
            part = packed[row] if isinstance(packed, Tensor) else packed.rows(row)
            if not torch.equal(self.weight[row], self._decoded(part)):
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
        if isinstance(self.packed, Fp8Weight) and self.fmt.activations == "w8a8":
            ran("linear.fp8_w8a8.torch")
            x_scale = absmax_scale(x, dim=-1)
            codes = e4m3_as_bf16(quantize_e4m3(x, x_scale))
            y = functional.linear(codes, self.weight).float() * x_scale * self.packed.scale.squeeze(1)
            if bias is not None:
                y = y + bias
            return y.to(x.dtype)
        ran(f"linear.{'fp32' if self.weight.dtype == torch.float32 else 'bf16'}.torch")
        return functional.linear(x, self.weight, bias)
