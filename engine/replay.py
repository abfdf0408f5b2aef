"""Decode steps of one stage as graphs: what the host knows of a step goes into buffers, all else is launches.

A captured forward is the stage's own, by kernels for GPUs: it reads tokens, positions, slots, page tables and expected
tags from buffers, makes the new tokens' stamps of them, and leaves logits and what its kernels found of stamps. The
host reads that after a replay, once for all layers.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from evalsvc.kernels.dispatch import counting, form
from evalsvc.kernels.page_table import Guarding, PageTable, slots_read
from evalsvc.kernels.tiles import Tiles

from .attention import ByPages, Step, stepping
from .batch import Chunk, Reading, reading, reserve
from .graphs import BUCKETS, Capture, DecodeGraphs, Inputs, Nobody, Outputs
from .kv.guard import Check, Findings
from .kv.latent_pool import LatentPool
from .kv.pages import PAGE
from .kv.pool import KVPool, Sequence
from .weights import WeightSet

NOBODYS_TAG = -1  # none that is ever issued
_NOTHING = torch.empty(0, dtype=torch.long)
_NO_TILES = Tiles(_NOTHING, _NOTHING, _NOTHING, _NOTHING, (), ())  # kernels read by pages


@dataclass(frozen=True)
class Replayed:
    """What a step gave.

    Attributes:
        logits: Shape: (requests, vocabulary).
        ran: Kernels that were launched.
        slots_read: As kernels count them, over all layers.
        slots_checked: Those of them that were compared, and all sound.
        unsound: What is to be looked into where one was not, or was not compared.
    """

    logits: Tensor
    ran: Counter[str]
    slots_read: int
    slots_checked: int = 0
    unsound: tuple[Check, Reading] | None = None


def why_eager(capture: Capture | None, weights: WeightSet, pool: KVPool | LatentPool) -> str:
    """Why no decode step is captured; empty where steps are."""
    guard = pool.guard
    reasons = {
        "graphs are off, or this is no GPU": capture is None,
        "kernels run as torch": form(pool.stored()[0].device.type) != "triton",
        "experts that are not packed are computed one by one": weights.asks(),
        "hashes of contents are compared outside of kernels": guard is not None and guard.sums is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class DecodeSteps:
    """The captured steps of a decode stage, whose pool has a spare page.

    Attributes:
        graphs: What was captured.
    """

    def __init__(self, weights: WeightSet, pool: KVPool | LatentPool, kernel: Callable[..., Tensor], capture: Capture):
        """Captures nothing yet; `kernel` as in `ByPages`."""
        self._weights, self._pool, self._kernel = weights, pool, kernel
        self._read: list[Tensor] = []
        device = pool.stored()[0].device
        nobody = Nobody(pool.n_pages, pool.n_pages * PAGE, NOBODYS_TAG)
        sizes = BUCKETS[-1], pool.n_pages, device
        self.graphs = DecodeGraphs(self._forward, self._watched, nobody, *sizes, capture)

    def serves(self, chunks: Seq[Chunk]) -> bool:
        """Whether a step is one that is captured: one token a sequence, and no more of them than the largest bucket."""
        alone = all(len(chunk.tokens) == 1 for chunk in chunks)
        return alone and self._pool.amax is None and self.graphs.bucket(len(chunks)) is not None

    def run(self, chunks: Seq[Chunk]) -> Replayed:
        """Computes a step, writing its tokens' keys and values.

        Raises:
            PoolFull: No room; nothing was written.
        """
        slots = [slot for (slot,) in reserve(self._pool, chunks)]
        step = inputs(chunks, slots)
        return self._outcome([chunk.sequence for chunk in chunks], step, self.graphs.run(step))

    def _outcome(self, sequences: Seq[Sequence], step: Inputs, out: Outputs) -> Replayed:
        """Reads once what kernels found, of all layers."""
        lengths = [sequence.length for sequence in sequences]
        reads = {layer: slots_read(lengths, [1] * len(lengths), window) for layer, window in out.windows.items()}
        total, guard = sum(reads.values()), self._pool.guard
        if guard is None or out.found is None:
            return Replayed(out.logits, out.ran, total)
        found = out.found.cpu()
        compared = dict(enumerate(found[:, 1].sum(dim=1).tolist()))
        if compared == reads and not found[:, 0].any():
            return Replayed(out.logits, out.ran, total, total)
        read = reading(sequences)
        check = Check(guard, read.slots, read.wanted)
        for layer, count in reads.items():
            check.hear(layer, Guarding(guard.stamps[layer], step.expected, *found[layer]), count)
        return Replayed(out.logits, out.ran, total, unsound=(check, read))

    def _forward(self, given: Inputs) -> Outputs:
        pool, rows = self._pool, len(given.token_ids)
        findings = stamps = None
        if pool.guard is not None:
            findings = Findings(pool.guard, rows)
            tags = given.expected.gather(1, given.positions[:, None] // PAGE)
            stamps = torch.cat([tags, given.positions[:, None].int()], dim=1)
        by_pages = ByPages(PageTable(given.pages, given.lengths, (1,) * rows), given.expected, self._kernel)
        step = Step(pool, given.slots, _NO_TILES, stamps, findings, absorbs=True, by_pages=by_pages)
        ran: Counter[str] = Counter()
        with stepping(step), counting(ran):
            ids, positions = given.token_ids[None], given.positions[None]
            found = self._weights.model(input_ids=ids, position_ids=positions, use_cache=False)
        self._read = self._weights.read_tensors()
        return Outputs(found.logits[0].float(), None if findings is None else findings.found, ran, step.windows)

    def _watched(self) -> list[Tensor]:
        stamps = [] if self._pool.guard is None else [self._pool.guard.stamps]
        return [*self._pool.stored(), *self._pool.fixed_scales(), *stamps, *self._read]


def inputs(chunks: Seq[Chunk], slots: Seq[int]) -> Inputs:
    """A step of chunks of one token, which are written already; all of it one tensor, so that a GPU gets it at once.

    Its numbers go through numpy: of 16 requests of 131,072 tokens torch made a tensor in 67 ms, and this way in 3.

    Args:
        chunks: One token each.
        slots: Where each token goes.
    """
    sequences = [chunk.sequence for chunk in chunks]
    rows, columns = len(chunks), max(len(sequence.pages) for sequence in sequences)
    lengths = [sequence.length for sequence in sequences]
    of_rows = [chunk.tokens[0] for chunk in chunks], [length - 1 for length in lengths], slots, lengths
    pages = [[*s.pages, *[-1] * (columns - len(s.pages))] for s in sequences]
    tags = [[*s.tags, *[0] * (columns - len(s.tags))] for s in sequences]
    numbers = np.fromiter(chain(*of_rows, *pages, *tags), np.int32)
    flat = torch.from_numpy(numbers).to(torch.get_default_device())
    narrow, wide = flat[: 4 * rows].view(4, rows), flat[4 * rows :].view(2, rows, columns)
    return Inputs(*narrow, *wide)
