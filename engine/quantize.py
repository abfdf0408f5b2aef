"""Weights to a format. The packed form is the truth; products on CPU run from what it decodes to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evalsvc.kernels.fp8_block import BLOCK
from evalsvc.kernels.nvfp4 import global_divisor

from .blocks import row_blocks
from .packed.base import Packed
from .packed.fp8 import Fp8BlockWeight, Fp8Weight, quantize_fp8, quantize_fp8_block
from .packed.int4 import Int4Weight, check_int4, quantize_int4
from .packed.int8 import Int8Weight, quantize_int8_weight
from .packed.nvfp4 import Nvfp4Weight, check_nvfp4, quantize_nvfp4_weight
from .precision import WeightFormat

__all__ = ["Fp8Weight", "Int4Weight", "quantize", "quantize_fp8", "quantize_int4"]


def quantize(weight: Tensor, fmt: WeightFormat, name: str = "weight") -> Packed | Tensor:
    """The packed form of a matrix in a format; fp32 and bf16 are plain tensors.

    Some rows are rounded at a time, without regard to the others: what rows share (a block's scale, nvfp4's global)
    lies within them or is known before.

    Args:
        weight: Shape: (out, in).
        fmt: The format.
        name: For errors.

    Raises:
        ConfigError: The format does not fit the shape.
    """
    if fmt.kind == "int4":
        return Int4Weight(*_by_rows(weight, lambda some: quantize_int4(some, fmt.group, fmt.symmetric, name)))
    if fmt.kind == "int8":
        return Int8Weight(*_by_rows(weight, quantize_int8_weight))
    if fmt.kind == "fp8" and fmt.group:
        return Fp8BlockWeight(*_by_rows(weight, quantize_fp8_block, BLOCK)[:2])
    if fmt.kind == "fp8":
        return Fp8Weight(*_by_rows(weight, quantize_fp8))
    if fmt.kind == "nvfp4":
        check_nvfp4(weight.shape[1], name)
        divisor = global_divisor(_amax(weight))
        codes, scale, _ = _by_rows(weight, lambda some: quantize_nvfp4_weight(some, divisor, name))
        return Nvfp4Weight(codes, scale, divisor)
    return weight.to(torch.float32 if fmt.kind == "fp32" else torch.bfloat16)


def check_inputs(fmt: WeightFormat, inputs: int, name: str, together: int = 0) -> None:
    """Refuses a format that `quantize` will refuse for a matrix of so many inputs; args as in `check_int4`.

    Raises:
        ConfigError: Groups or blocks that do not divide them.
    """
    if fmt.kind == "int4":
        check_int4(inputs, fmt.group, name, together)
    if fmt.kind == "nvfp4":
        check_nvfp4(inputs, name)


def _by_rows(weight: Tensor, pack: Callable[[Tensor], Any], multiple: int = 1) -> list[Any]:
    """The fields of a packed matrix, joined from those of its parts; a field without rows is None."""
    parts = [vars(pack(weight[rows])) for rows in row_blocks(weight.shape, multiple)]
    return [
        torch.cat([part[key] for part in parts]) if isinstance(value, Tensor) else None
        for key, value in parts[0].items()
    ]


def _amax(weight: Tensor) -> Tensor:
    """Largest magnitude of a matrix, NaN where one of its values is. Shape: (1,)."""
    return torch.stack([weight[rows].abs().amax() for rows in row_blocks(weight.shape)]).amax().float()[None]
