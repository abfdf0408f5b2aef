"""Writes new keys and values into pages, in the type of the pages.

bf16, fp32:        pages[slot] = x
fp8, per tensor:   pages[slot] = e4m3(x / scale)
fp8, token-head:   scale[slot, head] = max|x| / 448;  pages[slot] = e4m3(x / scale)
"""

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import absmax_scale, quantize_e4m3


def kv_write(pages: Tensor, scales: Tensor | None, slots: Tensor, x: Tensor) -> None:
    """Stores one layer's new keys (or values).

    Args:
        pages: Shape: (slots, kv_heads, head_dim); fp32, bf16 or float8_e4m3fn. Written in place.
        scales: None for fp32 and bf16 pages; a scalar fp32 tensor (one scale per tensor); or fp32 of shape
            (slots, kv_heads), written in place (dynamic scale per token and head).
        slots: Shape: (tokens,); where each token goes.
        x: Shape: (tokens, kv_heads, head_dim).
    """
    ran("kv_write.torch")
    if pages.dtype != torch.float8_e4m3fn:
        pages[slots] = x.to(pages.dtype)
        return
    if scales is None:
        raise ValueError("fp8 pages need scales")
    if scales.ndim == 0:
        pages[slots] = quantize_e4m3(x, scales)
        return
    scale = absmax_scale(x, dim=-1)
    scales[slots] = scale.squeeze(-1)
    pages[slots] = quantize_e4m3(x, scale)
