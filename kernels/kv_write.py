"""Writes new keys and values into pages, in the type of the pages.

bf16, fp32:             pages[slot] = x
fp8, int8, fixed:       pages[slot] = code(x / scale)
fp8, int8, token-head:  scale[slot, head] = max|x| / largest code;  pages[slot] = code(x / scale)
"""

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import E4M3_MAX, absmax_scale, quantize_e4m3
from .int8 import INT8_MAX, quantize_int8

_LARGEST = {torch.float8_e4m3fn: E4M3_MAX, torch.int8: INT8_MAX}
_ROUND = {torch.float8_e4m3fn: quantize_e4m3, torch.int8: quantize_int8}


def kv_encode(dtype: torch.dtype, scales: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """What pages store of one layer's keys (or values).

    Args:
        dtype: Of the pages: fp32, bf16, float8_e4m3fn or int8.
        scales: As of `kv_write`; of one a token and head only the shape is looked at.
        x: Shape: (tokens, kv_heads, head_dim).

    Returns:
        Codes, shaped as `x`; and each token's and head's scale, shape (tokens, kv_heads), None where scales are fixed.
    """
    if dtype not in _LARGEST:
        return x.to(dtype), None
    if scales is None:
        raise ValueError(f"{dtype} pages need scales")
    if scales.ndim == 2:
        scale = absmax_scale(x, -1, _LARGEST[dtype])
        return _ROUND[dtype](x, scale), scale.squeeze(-1)
    return _ROUND[dtype](x, scales if scales.ndim == 0 else scales[:, None]), None


def kv_write(pages: Tensor, scales: Tensor | None, slots: Tensor, x: Tensor) -> None:
    """Stores one layer's new keys (or values).

    Args:
        pages: Shape: (slots, kv_heads, head_dim); fp32, bf16, float8_e4m3fn or int8. Written in place.
        scales: fp32; None for fp32 and bf16 pages. One for the layer: a scalar. One a head: shape (kv_heads,). One a
            token and head: shape (slots, kv_heads), written in place.
        slots: Shape: (tokens,); where each token goes.
        x: Shape: (tokens, kv_heads, head_dim).
    """
    ran("kv_write.torch")
    pages[slots], scale = kv_encode(pages.dtype, scales, x)
    if scales is not None and scale is not None:
        scales[slots] = scale
