"""Ragged requests over scattered pages in which whatever nobody wrote is NaN, and kernels on a GPU where one is."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from evalsvc.kernels.fp8 import quantize_e4m3
from evalsvc.kernels.int8 import INT8_NAN, quantize_int8
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable
from evalsvc.kernels.paged_reference import _by_key, _values

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
KV_HEADS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def there(kernel: Callable[..., Any], device: str = DEVICE) -> Callable[..., Any]:
    """The kernel on a device: its arguments are taken there, and what it returns and what it wrote into them back."""

    def run(*args: Any, **options: Any) -> Any:
        moved: list[tuple[Tensor, Tensor]] = []

        def take(given: Any) -> Any:
            if isinstance(given, Tensor) and not given.is_meta:
                moved.append((given, given.to(device, copy=True)))
                return moved[-1][1]
            if isinstance(given, PageTable | Guarding):
                held = {f.name: getattr(given, f.name) for f in fields(given) if f.init}
                return replace(given, **{name: take(value) for name, value in held.items()})
            return given

        out = kernel(*map(take, args), **{name: take(value) for name, value in options.items()})
        for mine, theirs in moved:
            mine.copy_(theirs)
        return out if out is None else out.cpu()

    return run


@dataclass(frozen=True)
class Paged:
    """Arguments of attention over pages, in its order."""

    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    table: PageTable
    scaling: float

    def arguments(self) -> tuple:
        return self.q, self.k_pages, self.v_pages, self.k_scale, self.v_scale, self.table, self.scaling


def paged(
    requests: list[tuple[int, int]],
    group: int,
    dim: int,
    v_dim: int | None = None,
    kind: str = "bf16",
    per: str = "",
    queries: str = "bf16",
    seed: int = 0,
    kv_heads: int = KV_HEADS,
) -> Paged:
    """Requests of (keys, queries).

    Args:
        kind: How pages are held; `per` whose elements share a scale: `tensor`, `head`, `token-head` or nobody's.
    """
    g = torch.Generator().manual_seed(seed)
    needed = [-(-keys // PAGE) for keys, _ in requests]
    order = (torch.randperm(sum(needed) + 2, generator=g)).tolist()
    rows = [[order.pop() for _ in range(n)] for n in needed]
    table = PageTable.of(rows, [keys for keys, _ in requests], [n for _, n in requests])
    slots, v_dim = (sum(needed) + 2) * PAGE, v_dim or dim
    written = torch.cat([table.slots(i) for i in range(len(requests))])
    shape = {"": (), "tensor": (), "head": (kv_heads,), "token-head": (slots, kv_heads)}[per]
    held: list[Tensor] = []
    scales: list[Tensor | None] = []
    for width in (dim, v_dim):
        x = torch.randn(slots, kv_heads, width, generator=g) + 0.2
        scale = (0.5 + torch.rand(shape, generator=g)) * 4 / {"fp8": 448, "int8": 127}.get(kind, 1)
        spread = scale[..., None] if per in ("head", "token-head") else scale
        full = torch.full(x.shape, INT8_NAN if kind == "int8" else torch.nan).to(DTYPES[kind])
        code = {"fp8": quantize_e4m3, "int8": quantize_int8}[kind](x, spread) if per else x.to(DTYPES[kind])
        raw, new = (t.view(torch.uint8) if kind == "fp8" else t for t in (full, code))
        raw[written] = new[written]
        if per == "token-head":
            kept = torch.full_like(scale, torch.nan)
            kept[written] = scale[written]
            scale = kept
        held.append(full)
        scales.append(scale if per else None)
    tokens = sum(n for _, n in requests)
    q = torch.randn(tokens, kv_heads * group, dim, generator=g).to(DTYPES[queries])
    return Paged(q, *held, *scales, table, dim**-0.5)


def textbook(case: Paged, window=None, softcap=None, sinks=None, magnitudes: bool = False) -> Tensor:
    """The formula in float64; with `magnitudes`, of the values' magnitudes."""
    rows = []
    group = case.q.shape[1] // case.k_pages.shape[1]
    for i, q in enumerate(case.q.split(list(case.table.counts))):
        slots = case.table.slots(i)
        k, v = (_values(pages, slots).double() for pages in (case.k_pages, case.v_pages))
        score = torch.einsum("qhgd,khd->hgqk", q.double().unflatten(1, (-1, group)), k) * case.scaling
        score = score * _by_key(case.k_scale, slots)
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        key, place = torch.arange(len(slots)), torch.arange(len(slots) - len(q), len(slots))[:, None]
        seen = (key <= place) if window is None else (key <= place) & (key > place - window)
        score = score.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            extra = sinks.double().view(-1, group)[:, :, None, None].expand(*score.shape[:3], 1)
            score = torch.cat([score, extra], -1)
        weight = score.softmax(-1)[..., : len(slots)] * _by_key(case.v_scale, slots)
        value = v.abs() if magnitudes else v
        rows.append(torch.einsum("hgqk,khd->hgqd", weight, value).permute(2, 0, 1, 3).flatten(1, 2))
    return torch.cat(rows)


def tolerance(case: Paged, **options) -> Tensor:
    """How far a result may be from `textbook`, element by element.

    A weight and a result are rounded to bf16, each by half a step, 2^-8 of what is weighed, where queries are bf16;
    with pages of fp32 the result alone. fp32 sums of n products err by some n 2^-24 of their magnitudes: of scores,
    which then move weights, and of weighed values.
    """
    weighed = textbook(case, **options, magnitudes=True)
    keys = int(case.table.lengths.max())
    size = float(case.q.abs().max()) * 8 * case.scaling * case.q.shape[-1]
    step = 2**-24 * (keys + case.q.shape[-1] * max(size, 1.0))
    if case.q.dtype == torch.bfloat16:
        step += 2**-8 * (2 if case.k_pages.dtype != torch.float32 else 1)
    return weighed * step + 1e-30
