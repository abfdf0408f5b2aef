"""What launches of kernels over pages share: arguments, what is compiled in, and the cases compiled without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .page_table import Guarding, PageTable
from .paged_parts import BF16, BY_HEAD, BY_TOKEN, E4M3, E4M3_BYTES, FP32, INT8, NO_SCALE, ONE

FP8_CAPABILITY = (8, 9)
_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float8_e4m3fn: E4M3, torch.int8: INT8}
Sizes = Callable[[int, int, int, int, bool], dict[str, int]]
"""Sides of tiles by queries a head of keys, head_dim, v_dim, how pages are held, whether products are in fp32."""


def parts(dim: int) -> tuple[int, int]:
    """Sizes of the two tiles that hold a head; 0 for a second one that is not needed."""
    first = max(16, 1 << (dim.bit_length() - 1))
    rest = dim - first
    return first, 0 if rest <= 0 else max(16, 1 << (rest - 1).bit_length())


def held(pages: Tensor) -> tuple[Tensor, int]:
    """Pages as a kernel takes them, and how they are held: e4m3 as bytes where the hardware does not know it."""
    kind = _KINDS[pages.dtype]
    if kind == E4M3 and pages.is_cuda and torch.cuda.get_device_capability(pages.device) < FP8_CAPABILITY:
        return pages.view(torch.uint8), E4M3_BYTES
    return pages, kind


def scale_kind(scale: Tensor | None) -> int:
    """Whose elements share a scale."""
    return NO_SCALE if scale is None else (ONE, BY_HEAD, BY_TOKEN)[scale.ndim]


def constants_of(q: Tensor, k_pages: Tensor, v_pages: Tensor, k_scale: Tensor | None, sizes: Sizes) -> dict[str, Any]:
    """What of the shapes and types is compiled in."""
    group, dim, v_dim = q.shape[1] // k_pages.shape[1], k_pages.shape[2], v_pages.shape[2]
    wide, kind = torch.float32 in (q.dtype, k_pages.dtype), held(k_pages)[1]
    return sizes(group, dim, v_dim, kind, wide) | {
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


@dataclass(frozen=True)
class Case:
    """A configuration of a kernel over pages that is compiled without a GPU, to see that it spills nothing.

    Attributes:
        name: Says what is special.
        kind: How pages are held; `scale` whose elements share a scale.
        options: Of WINDOWED, CAPPED, SINKS and GUARDED those that are on.
    """

    name: str
    kind: int = BF16
    scale: int = NO_SCALE
    group: int = 4
    dim: int = 128
    v_dim: int = 128
    options: tuple[str, ...] = ()

    @property
    def needs_fp8(self) -> bool:
        """Whether the hardware must know e4m3."""
        return self.kind == E4M3

    @property
    def wide(self) -> bool:
        """Whether products are in fp32."""
        return self.kind == FP32

    def constants(self, sizes: Sizes) -> dict[str, Any]:
        """What is compiled in; `sizes` gives the sides of tiles."""
        switches = dict.fromkeys(("WINDOWED", "CAPPED", "SINKS", "GUARDED"), False) | dict.fromkeys(self.options, True)
        kinds = {"KIND": self.kind, "SCALE": self.scale, "WIDE": self.wide, "HALF": self.needs_fp8, "FP32": self.wide}
        return sizes(self.group, self.dim, self.v_dim, self.kind, self.wide) | kinds | switches

    def pointers(self) -> dict[str, str]:
        """Triton's types of the tensors that every kernel over pages takes."""
        number, pages = "*fp32" if self.wide else "*bf16", ("*fp32", "*bf16", "*fp8e4nv", "*u8", "*i8")[self.kind]
        scale = "*fp32" if self.scale else number
        found = {
            "q": number,
            "k": pages,
            "v": pages,
            "k_scale": scale,
            "v_scale": scale,
            "sinks": number,
            "out": number,
        }
        return found | dict.fromkeys(("pages", "lengths", "stamps", "expected", "faults", "sound"), "*i32")


_ALL = ("WINDOWED", "CAPPED", "SINKS", "GUARDED")
CASES = (
    Case("bf16, guarded", options=("GUARDED",)),
    Case("bf16, head 80, all options", group=1, dim=80, v_dim=80, options=_ALL),
    Case("bf16, heads 192 and 128", group=1, dim=192),
    Case("bf16, head 256, 16 queries a key", group=16, dim=256, v_dim=256),
    Case("e4m3, scale of a token and head, guarded", E4M3, BY_TOKEN, options=("GUARDED",)),
    Case("e4m3, heads 192 and 128", E4M3, BY_TOKEN, group=1, dim=192),
    Case("e4m3, scale of a head, all options", E4M3, BY_HEAD, group=8, options=_ALL),
    Case("e4m3 as bytes, head 256", E4M3_BYTES, ONE, dim=256, v_dim=256),
    Case("int8, scale of a token and head, all options", INT8, BY_TOKEN, options=_ALL),
    Case("fp32, all options", FP32, options=_ALL),
)
