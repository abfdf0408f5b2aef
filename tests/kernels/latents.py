"""Ragged requests over scattered pages of latents in which whatever nobody wrote is NaN."""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.kernels.fp8 import quantize_e4m3
from evalsvc.kernels.page_table import PAGE, PageTable

NAMES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Latents:
    """Pages, their table, and random numbers for queries.

    Attributes:
        scale: As kernels take it: None, a scalar, or (slots, tiles).
    """

    latent: Tensor
    rope: Tensor
    scale: Tensor | None
    table: PageTable
    generator: torch.Generator

    @property
    def pages(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """In the order in which kernels take them."""
        return self.latent, self.rope, self.scale

    def random(self, *shape: int, dtype: str = "fp32") -> Tensor:
        return torch.randn(shape, generator=self.generator).to(NAMES[dtype])

    def stamps(self) -> tuple[Tensor, Tensor]:
        """Of all written slots, and the tags that the table's pages are to have."""
        table = self.table
        stamps = torch.full((len(self.latent), 2), -7, dtype=torch.int32)
        expected = torch.arange(1, 1 + table.pages.numel(), dtype=torch.int32).view_as(table.pages)
        for i, length in enumerate(table.lengths.tolist()):
            position = torch.arange(length)
            stamps[table.slots(i), 0], stamps[table.slots(i), 1] = expected[i, position // PAGE], position.int()
        return stamps, expected


def scattered(lengths: list[int], counts: list[int], generator: torch.Generator) -> PageTable:
    """A table of requests of so many keys and queries, pages in any order, two of them nobody's."""
    needed = [-(-n // PAGE) for n in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    return PageTable.of([[order.pop() for _ in range(n)] for n in needed], lengths, counts)


def slots_of(table: PageTable) -> int:
    """Slots of the pages that `scattered` made."""
    return (int((table.pages >= 0).sum()) + 2) * PAGE


def latents(
    rank: int, rope: int, kind: str, per: str, lengths: list[int], counts: list[int] | None = None, seed: int = 0
) -> Latents:
    """Pages in `kind`; `per` whose numbers share a scale: `one`, `tile` or nobody's."""
    g = torch.Generator().manual_seed(rank + seed)
    table = scattered(lengths, counts or [1] * len(lengths), g)
    slots = slots_of(table)
    written = torch.cat([table.slots(i) for i in range(len(lengths))])
    rows = torch.full((slots, rank + rope), torch.nan)
    rows[written] = torch.randn(len(written), rank + rope, generator=g)
    latent, keys, scale = rows[:, :rank].contiguous(), rows[:, rank:].contiguous(), None
    if kind == "fp8":
        tiles = max(rank // 128, 2)
        scale = torch.tensor(0.013) if per == "one" else 0.01 + 0.01 * torch.rand(slots, tiles, generator=g)
        spread = scale if per == "one" else scale.repeat_interleave(rank // tiles, dim=1)
        latent = quantize_e4m3(latent, spread)
        keys = quantize_e4m3(keys, scale) if per == "one" else keys.bfloat16()
    else:
        latent, keys = latent.to(NAMES[kind]), keys.to(NAMES[kind])
    return Latents(latent, keys, scale, table, g)
