"""Triton products of packed matrices, by the format's name of them; the torch forms are in `products.py`.

They read the packed form itself: no decoded copy is held. Formats without an entry have their torch form everywhere.
"""

from collections.abc import Callable
from typing import Any

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
    "int4_w4a16": lambda x, held: linear_int4(x, held.packed, held.scale, held.minimum),
    "nvfp4_w4a4": lambda x, held: linear_nvfp4_w4a4(x, held.codes, held.scale, held.divisor),
    "nvfp4_w4a16": lambda x, held: linear_nvfp4(x, held.codes, held.scale, held.divisor),
}
