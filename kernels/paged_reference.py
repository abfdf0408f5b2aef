"""Attention over one request's keys, plainly: what kernels over pages are held against.

    S = scaling * (q . k) * k_scale, or cap * tanh(S / cap) of it;   p = exp(S - max);   out = (p * v_scale) v / sum p

in fp32, but that p * v_scale is rounded to bf16 where queries are bf16 and pages narrower than fp32. A sink is a score
without a key.
"""

import torch
from torch import Tensor

from .fp8 import dequantize_e4m3
from .int8 import dequantize_int8


def attend_request(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    slots: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Causal attention of a request's last queries.

    Args:
        q: Shape: (queries, heads, head_dim); the last of them stands at the last key.
        slots: Of the request's keys, in order of position. Shape: (keys,).
        k_pages: As in `paged_decode`, with all that follows.

    Returns:
        Shape: (queries, heads, v_dim), dtype of `q`.
    """
    queries, heads, _ = q.shape
    group = heads // k_pages.shape[1]
    query = q.float().unflatten(1, (-1, group))
    score = torch.einsum("qhgd,khd->hgqk", query, _values(k_pages, slots)) * scaling
    score = score * _by_key(k_scale, slots)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    key, place = torch.arange(len(slots)), torch.arange(len(slots) - queries, len(slots))[:, None]
    hidden = key > place
    if window is not None:
        hidden |= key <= place - window
    score = score.masked_fill(hidden.to(score.device), -torch.inf)
    peak = score.amax(-1, keepdim=True)
    if sinks is None:
        weight = (score - peak).exp()
        total = weight.sum(-1, keepdim=True)
    else:
        sink = sinks.float().view(-1, group)[:, :, None, None]
        peak = torch.maximum(peak, sink)
        weight = (score - peak).exp()
        total = weight.sum(-1, keepdim=True) + (sink - peak).exp()
    weight = weight * _by_key(v_scale, slots)
    if torch.float32 not in (q.dtype, v_pages.dtype):
        weight = weight.bfloat16().float()
    out = torch.einsum("hgqk,khd->hgqd", weight, _values(v_pages, slots)) / total
    return out.permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)


def _values(pages: Tensor, slots: Tensor) -> Tensor:
    """Unscaled, in fp32. Shape: (keys, kv_heads, dim)."""
    if pages.dtype == torch.float8_e4m3fn:
        return dequantize_e4m3(pages.view(torch.uint8)[slots].view(torch.float8_e4m3fn))
    return dequantize_int8(pages[slots]) if pages.dtype == torch.int8 else pages[slots].float()


def _by_key(scale: Tensor | None, slots: Tensor) -> Tensor | float:
    """A scale as it multiplies scores of shape (kv_heads, group, queries, keys)."""
    if scale is None:
        return 1.0
    if scale.ndim == 2:
        return scale[slots].T[:, None, None]
    return scale[:, None, None, None] if scale.ndim == 1 else scale
