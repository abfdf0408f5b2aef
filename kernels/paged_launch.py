"""What launches of kernels over pages share: arguments, and what is compiled in."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .page_table import Guarding, PageTable
from .paged_parts import BF16, BY_HEAD, BY_TOKEN, E4M3, E4M3_BYTES, FP32, INT8, NO_SCALE, ONE

FP8_CAPABILITY = (8, 9)
_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float8_e4m3fn: E4M3, torch.int8: INT8}
Sizes = Callable[[int, int, int, int, bool, bool], dict[str, int]]
"""Sides of tiles by queries a head of keys, head_dim, v_dim, how pages are held, whether products are in fp32, and
whether the hardware has fp8."""


def parts(dim: int) -> tuple[int, int]:
    """Sizes of the two tiles that hold a head; 0 for a second one that is not needed."""
    first = max(16, 1 << (dim.bit_length() - 1))
    rest = dim - first
    return first, 0 if rest <= 0 else max(16, 1 << (rest - 1).bit_length())


def head_sides(dim: int, v_dim: int) -> dict[str, int]:
    """What kernels take of a head's sizes, each held in two parts."""
    (d, d_rest), (v, v_rest) = parts(dim), parts(v_dim)
    return {"DIM": dim, "D": d, "D_REST": d_rest, "V_DIM": v_dim, "V": v, "V_REST": v_rest}


def is_long(sides: dict[str, int]) -> bool:
    """Whether a key and a value together take many registers: more than 256 numbers."""
    return sum(sides[name] for name in ("D", "D_REST", "V", "V_REST")) > 256


def has_fp8(device: torch.device) -> bool:
    """Whether the hardware knows e4m3; so does torch on a CPU."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def held(pages: Tensor) -> tuple[Tensor, int]:
    """Pages as a kernel takes them, and how they are held: e4m3 as bytes where the hardware does not know it."""
    kind = _KINDS[pages.dtype]
    if kind == E4M3 and not has_fp8(pages.device):
        return pages.view(torch.uint8), E4M3_BYTES
    return pages, kind


def scale_kind(scale: Tensor | None) -> int:
    """Whose elements share a scale."""
    return NO_SCALE if scale is None else (ONE, BY_HEAD, BY_TOKEN)[scale.ndim]


def constants_of(q: Tensor, k_pages: Tensor, v_pages: Tensor, k_scale: Tensor | None, sizes: Sizes) -> dict[str, Any]:
    """What of the shapes and types is compiled in."""
    group, dim, v_dim = q.shape[1] // k_pages.shape[1], k_pages.shape[2], v_pages.shape[2]
    wide, kind = torch.float32 in (q.dtype, k_pages.dtype), held(k_pages)[1]
    return sizes(group, dim, v_dim, kind, wide, has_fp8(q.device)) | {
        "KIND": kind,
        "HALF": kind == E4M3 and not wide,
        "SCALE": scale_kind(k_scale),
        "WIDE": wide,
        "FP32": q.dtype == torch.float32,
    }


def switches(
    window: int | None, softcap: float | None, sinks: Tensor | None, guarding: Guarding | None
) -> dict[str, bool]:
    """Which options are compiled in."""
    given = {"WINDOWED": window, "CAPPED": softcap, "SINKS": sinks, "GUARDED": guarding}
    return {name: value is not None for name, value in given.items()}


def pointers(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    table: PageTable,
    sinks: Tensor | None,
    guarding: Guarding | None,
    out: Tensor,
) -> tuple[Tensor, ...]:
    """The tensors that every kernel over pages takes; for what is not given, another one that is not read."""
    findings = (table.lengths,) * 4 if guarding is None else guarding.tensors()
    given = (q if t is None else t for t in (k_scale, v_scale))
    keys, values = held(k_pages)[0], held(v_pages)[0]
    return q, keys, values, *given, table.pages, table.lengths, q if sinks is None else sinks, *findings, out
