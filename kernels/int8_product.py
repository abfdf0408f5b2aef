"""Product of int8 matrices in int32: exact whatever the order of summation, so whatever the batch.

y[m, n] = sum over k of x[m, k] * w[n, k].   |y| <= 2^14 K fits int32 for K < 2^17.
"""

from functools import cache

import torch
from torch import Tensor

_EXACT_IN_FP32 = 2**24 // 2**14  # products of two int8 that fp32 sums without rounding


def int8_product(x: Tensor, w: Tensor) -> Tensor:
    """Exact product.

    Args:
        x: int8. Shape: (rows, K).
        w: int8. Shape: (out, K).

    Returns:
        int32. Shape: (rows, out).

    Raises:
        ValueError: K is too large for sums in int32.
    """
    if x.shape[1] >= 2**17:
        raise ValueError(f"int8 products of {x.shape[1]} numbers may not fit int32")
    return torch.ops.aten._int_mm(x, w.t()) if x.device.type == "cpu" and _library_is_exact() else _in_fp32(x, w)


@cache
def _library_is_exact() -> bool:
    """Whether this CPU's product keeps 32 bits: without VNNI some add pairs in 16 bits, which saturate."""
    ends = torch.tensor([-128, 127], dtype=torch.int8)
    x, w = ends.repeat_interleave(16)[:, None].expand(32, 256), ends.repeat(16)[:, None].expand(32, 256)
    x, w = x.contiguous(), w.contiguous()
    return torch.equal(torch.ops.aten._int_mm(x, w.t()), _in_fp32(x, w))


def _in_fp32(x: Tensor, w: Tensor) -> Tensor:
    """As `int8_product`, in sums short enough for fp32 to be exact."""
    parts = zip(x.split(_EXACT_IN_FP32, dim=1), w.split(_EXACT_IN_FP32, dim=1), strict=True)
    y = torch.zeros(len(x), len(w), dtype=torch.int32, device=x.device)
    for mine, theirs in parts:
        y += (mine.float() @ theirs.float().T).int()
    return y
