"""A stage: weights in a format, a KV pool in a format, and the forward that joins them.

`PrefillStage` computes prompts in tiles of 16 queries; `DecodeStage` computes one token a sequence a step and reads
only its own pool.
"""

from collections.abc import Sequence as Seq
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import IntegrityError
from evalsvc.kernels.dispatch import counting, form
from evalsvc.kernels.paged_decode import paged_decode
from evalsvc.kernels.paged_prefill import paged_prefill

from .attention import ByPages, Step, stepping
from .batch import Chunk, Reading, never_one_row, pack, tables
from .devices import finish, on
from .graphs import Capture
from .kv.guard import Check
from .kv.latent_pool import LatentPool
from .kv.pages import PAGE
from .kv.pool import KVPool, Scales, Sequence
from .kv.prefix import PrefixCache
from .kv.tags import Bad
from .layout import Layout
from .precision import KVFormat, StagePlan
from .replay import DecodeSteps, why_eager
from .requests import Incident
from .weights import WeightSet
from .work import Work


def pool_for(
    layout: Layout,
    fmt: KVFormat,
    kv_tokens: int,
    scales: Scales | None = None,
    k_read_factor: float = 1.0,
    poison: bool = False,
    integrity: str = "off",
    spare: int = 0,
) -> KVPool | LatentPool:
    """An empty pool for what a model's attention keeps. Args and errors as in `KVPool` and `LatentPool`."""
    if layout.latent is not None:
        return LatentPool(fmt, layout.latent, kv_tokens, scales, k_read_factor, poison, integrity, spare)
    heads = layout.kv_heads, layout.head_dim
    return KVPool(fmt, layout.layers, *heads, kv_tokens, scales, k_read_factor, poison, integrity, spare)


class Stage:
    """What both stages share.

    Attributes:
        plan: Formats of this stage.
        key: What makes two stages the same.
        cache: Full pages that can be used again.
        work: What it computed, for all arms that share it.
        absorbs: Whether latent attention takes its absorbed form.
        device: Where its pages are.
        steps: Those that are captured and replayed; None: all are eager.
        eager_because: Why.
    """

    name = ""
    tile_rows = 0
    absorbs = False
    kernel = staticmethod(paged_prefill)
    steps: DecodeSteps | None = None
    eager_because = "prompts are computed in chunks of all lengths"

    def __init__(
        self,
        weights: WeightSet,
        plan: StagePlan,
        kv_tokens: int,
        scales: Scales | None = None,
        k_read_factor: float = 1.0,
        poison: bool = False,
        key: str = "",
        integrity: str = "tags",
        spare: int = 0,
    ):
        """Args as in `KVPool`; `kv_tokens` is the pool's capacity in tokens."""
        self.weights, self.plan, self.key = weights, plan, key
        self.pool = pool_for(weights.layout, plan.kv, kv_tokens, scales, k_read_factor, poison, integrity, spare)
        self.device = self.pool.stored()[0].device
        self.cache = PrefixCache(self.pool)
        self.work = Work()

    def forward(self, chunks: Seq[Chunk]) -> Tensor:
        """As `run`, for who has no use for a part of the logits.

        Raises:
            IntegrityError: A slot that was read is not sound.
            PoolFull: As `run`.
        """
        with on(self.device):
            logits, faults = self.run(chunks)
        if faults:
            raise IntegrityError(str(next(iter(faults.values()))))
        return logits

    def run(self, chunks: Seq[Chunk]) -> tuple[Tensor, dict[int, Incident]]:
        """Computes new tokens, writing their keys and values.

        Args:
            chunks: Each sequence at most once.

        Returns:
            fp32 logits of the rows that the chunks ask for, in their order. Shape: (rows, vocabulary).
            By index of a chunk the first slot that it read and that was not sound: its logits are of no use.

        Raises:
            PoolFull: No room; nothing was written.
            EngineError: Attention read slots whose integrity it did not check.
        """
        astray = {} if self.pool.guard is None else self._astray(chunks)
        if not astray:
            return self._run(chunks)
        served = [i for i in range(len(chunks)) if i not in astray]
        rows, faults = self._run([chunks[i] for i in served]) if served else (torch.empty(0), {})
        parts = iter(rows.split([chunks[i].logits for i in served])) if served else iter(())
        width = self.weights.model.config.vocab_size
        whole = [torch.zeros(c.logits, width) if i in astray else next(parts) for i, c in enumerate(chunks)]
        self.work.faults += len(astray)
        return torch.cat(whole), astray | {served[i]: incident for i, incident in faults.items()}

    def _astray(self, chunks: Seq[Chunk]) -> dict[int, Incident]:
        """Chunks whose first new token would be written into a page that is not their sequence's."""
        pool, guard, found = self.pool, self.pool.guard, {}
        for i, chunk in enumerate(chunks):
            sequence, last = chunk.sequence, chunk.sequence.length - 1
            if sequence.length % PAGE and pool.tags[sequence.pages[-1]] != sequence.tags[-1]:
                assert guard is not None
                slot = sequence.slots(last, last + 1)[0]
                tag, position = guard.stamps[0, slot].tolist()
                found[i] = self.incident(Bad(0, slot, (sequence.tags[-1], last), (tag, position)))
        return found

    @torch.inference_mode()
    def _run(self, chunks: Seq[Chunk]) -> tuple[Tensor, dict[int, Incident]]:
        started = perf_counter()
        found = self._compute(chunks)
        finish(self.device)
        self.work.seconds += perf_counter() - started
        return found

    def _compute(self, chunks: Seq[Chunk]) -> tuple[Tensor, dict[int, Incident]]:
        """As `run`, of chunks that are written where they are to be."""
        batch = pack(self.pool, chunks, self.tile_rows)
        wanted = len(batch.logit_rows)
        self.work.tokens += len(batch.token_ids)
        self.work.forwards += 1
        batch = never_one_row(batch)
        inputs = {
            "input_ids": batch.token_ids[None],
            "position_ids": batch.positions[None],
            "use_cache": False,
        }
        guard, reading = self.pool.guard, batch.reading
        check = None if guard is None else Check(guard, reading.slots, reading.wanted)
        stamps = None if guard is None else batch.stamps
        by_pages = None
        if form(self.device.type) == "triton":
            by_pages = ByPages(*tables(batch, chunks), self.kernel)
        step = Step(self.pool, batch.slots, batch.tiles, stamps, check, absorbs=self.absorbs, by_pages=by_pages)
        with stepping(step), counting(self.work.kernels):
            if wanted:
                logits = self.weights.model(**inputs, logits_to_keep=batch.logit_rows).logits[0, :wanted].float()
            else:
                self.weights.model.base_model(**inputs)
                logits = torch.empty(0, self.weights.model.config.vocab_size)
        if by_pages is None:
            return logits, self._faults(check, reading, self.weights.layout.layers * len(reading.slots))
        return logits, self._faults(check, reading, step.slots_read(), len(by_pages.table.counts) // len(chunks))

    def _faults(self, check: Check | None, reading: Reading, read: int, times: int = 1) -> dict[int, Incident]:
        """By chunk the first slot that was not sound; counts what was read and what of it was checked.

        Args:
            check: What compared it, if anything did.
            reading: Who reads what.
            read: How many slots were read; `times` each, where the only token was put in twice.
        """
        self.work.slots_read += read // times
        if check is None:
            return {}
        found = check.found()
        self.work.slots_checked += check.compared() // times
        faults: dict[int, Incident] = {}
        for index, bad in found:
            for chunk in reading.readers[int(reading.blocks[index])]:
                faults.setdefault(chunk, self.incident(bad))
        self.work.faults += len(faults)
        return faults

    def incident(self, bad: Bad, where: str = "") -> Incident:
        """What a request met in this stage's pool; `where` it was not its forward."""
        return Incident(
            stage=where or self.name,
            page=bad.slot // PAGE,
            slot=bad.slot,
            layer=bad.layer,
            expected=bad.expected,
            found=bad.found,
            content=bad.content,
            step=self.work.forwards,
        )


class PrefillStage(Stage):
    """Computes prompts, in chunks. Its cache holds the pages of earlier prompts."""

    name = "prefill"
    tile_rows = 16

    def prefill(self, prompts: Seq[Seq[int]], logits: bool = True, chunk: int = 512) -> tuple[list[Sequence], Tensor]:
        """Computes prompts one after the other, outside of the engine's loop and without the cache.

        Args:
            prompts: Token ids.
            logits: Whether the logits of each prompt's last token are wanted.
            chunk: Most tokens in one forward. It changes no bit of the result.

        Returns:
            A sequence for each prompt, and logits of shape (prompts, vocabulary) (empty without `logits`).

        Raises:
            PoolFull: No room; nothing is held.
        """
        sequences: list[Sequence] = []
        rows = [torch.empty(0, self.weights.model.config.vocab_size, device=self.device)]
        try:
            for ids in prompts:
                sequences.append(Sequence())
                for start in range(0, len(ids), chunk):
                    last = logits and start + chunk >= len(ids)
                    rows.append(self.forward([Chunk(sequences[-1], ids[start : start + chunk], int(last))]))
        except BaseException:
            for sequence in sequences:
                self.pool.free(sequence)
            raise
        return sequences, torch.cat(rows)


class DecodeStage(Stage):
    """Computes one token a sequence a step. Its cache holds pages that were handed over, and no others."""

    name = "decode"
    tile_rows = 1
    absorbs = True
    kernel = staticmethod(paged_decode)

    def __init__(self, *args: Any, capture: Capture | None = None, **options: Any):
        """Args as in `Stage`, and how steps are captured, as `graphs.capture_for` says it: a spare page for them."""
        super().__init__(*args, spare=int(capture is not None), **options)
        self.eager_because = why_eager(capture, self.weights, self.pool)
        if capture is not None and not self.eager_because:
            self.steps = DecodeSteps(self.weights, self.pool, self.kernel, capture)

    def _compute(self, chunks: Seq[Chunk]) -> tuple[Tensor, dict[int, Incident]]:
        if self.steps is None or not self.steps.serves(chunks):
            return super()._compute(chunks)
        step = self.steps.run(chunks)
        self.work.tokens += len(chunks)
        self.work.forwards += 1
        self.work.replays += 1
        self.work.kernels.update(step.ran)
        wanted = [i for i, chunk in enumerate(chunks) if chunk.logits]
        logits = step.logits if len(wanted) == len(chunks) else step.logits[wanted]
        if step.unsound is not None:
            return logits, self._faults(*step.unsound, step.slots_read)
        self.work.slots_read += step.slots_read
        self.work.slots_checked += step.slots_checked
        return logits, {}

    def step(self, sequences: Seq[Sequence], tokens: Seq[int]) -> Tensor:
        """Writes one token of each sequence and returns logits of shape (sequences, vocabulary)."""
        return self.forward([Chunk(s, [t]) for s, t in zip(sequences, tokens, strict=True)])
