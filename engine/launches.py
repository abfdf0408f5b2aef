"""Triton products of packed matrices, by the format's name of them; the torch forms are in `products.py`.

They read the packed form itself: no decoded copy is held. Formats without an entry have their torch form everywhere.
Those of a mixture's experts take the tensors of all experts, stacked, and rows in the order of experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from evalsvc.kernels.linear_fp8 import linear_fp8, linear_fp8_w8a16
from evalsvc.kernels.linear_int4 import linear_int4
from evalsvc.kernels.linear_int8 import linear_int8
from evalsvc.kernels.linear_nvfp4 import linear_nvfp4, linear_nvfp4_w4a4

LAUNCHES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "fp8_w8a8": lambda x, held: linear_fp8(x, held.codes, held.scale, "channel"),
    "fp8_block128_w8a8": lambda x, held: linear_fp8(x, held.codes, held.scale, "block", held.skipped),
    "fp8_w8a16": lambda x, held: linear_fp8_w8a16(x, held.codes, held.scale, "channel"),
    "int8_w8a8": lambda x, held: linear_int8(x, held.codes, held.scale),
    "int4_w4a16": lambda x, held: linear_int4(x, held.packed, held.scale, held.offset),
    "nvfp4_w4a4": lambda x, held: linear_nvfp4_w4a4(x, held.codes, held.scale, held.divisor),
    "nvfp4_w4a16": lambda x, held: linear_nvfp4(x, held.codes, held.scale, held.divisor),
}

GROUPED: dict[str, Callable[..., Tensor]] = {
    "fp8_w8a8": lambda x, counts, codes, scale: linear_fp8(x, codes, scale, "channel", counts=counts),
    "fp8_block128_w8a8": lambda x, counts, codes, scale: linear_fp8(x, codes, scale, "block", counts=counts),
    "fp8_w8a16": lambda x, counts, codes, scale: linear_fp8_w8a16(x, codes, scale, "channel", counts),
    "int8_w8a8": lambda x, counts, codes, scale: linear_int8(x, codes, scale, counts),
    "int4_w4a16": lambda x, counts, *held: linear_int4(x, *held, counts=counts),
    "nvfp4_w4a4": lambda x, counts, *held: linear_nvfp4_w4a4(x, *held, counts=counts),
    "nvfp4_w4a16": lambda x, counts, *held: linear_nvfp4(x, *held, counts=counts),
}


def stack(packed: Sequence[Any]) -> tuple[list[Tensor], list[Any]]:
    """Stacks the tensors of packed matrices of one shape.

    Returns:
        The stacked tensors, and the matrices again as views of them: nothing is held twice once the old ones are gone.
    """
    stacked = [torch.stack(parts) for parts in zip(*(one.tensors() for one in packed), strict=True)]
    names = [f.name for f in fields(packed[0]) if isinstance(getattr(packed[0], f.name), Tensor)]
    views = [replace(one, **dict(zip(names, parts, strict=True))) for one, *parts in zip(packed, *stacked, strict=True)]
    return stacked, views
