"""A stage: weights in a format, a KV pool in a format, and the forward that joins them.

`PrefillStage` computes prompts in tiles of 16 queries; `DecodeStage` computes one token a sequence a step and reads
only its own pool.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from time import perf_counter

import torch
from torch import Tensor

from evalsvc.errors import IntegrityError
from evalsvc.kernels.dispatch import counting, form
from evalsvc.kernels.page_table import Guarding, slots_read
from evalsvc.kernels.paged_decode import paged_decode
from evalsvc.kernels.paged_prefill import paged_prefill

from .attention import ByPages, Step, stepping
from .batch import Chunk, Reading, never_one_row, pack, reading, tables
from .devices import finish, on
from .graphs import Capture, Inputs, Outputs
from .kv.guard import Check
from .kv.latent_pool import LatentPool
from .kv.pages import PAGE
from .kv.pool import KVPool, Scales, Sequence
from .kv.prefix import PrefixCache
from .kv.tags import Bad
from .layout import Layout
from .precision import KVFormat, StagePlan
from .replay import DecodeSteps
from .requests import Incident
from .weights import WeightSet


@dataclass
class Work:
    """What a stage computed.

    Attributes:
        kernels: Runs of each kernel.
        tokens: Tokens that went through the forward.
        forwards: Forwards, whatever their size.
        seconds: Wall clock inside the forwards.
        replays: Those of them that were a captured graph's.
        slots_read: Slots that attention read, over all layers, once for all that shared them in a forward; in a replay
            as kernels count them, for each that reads them, without what windows hide.
        slots_checked: Those of them whose integrity was checked.
        faults: Requests in forwards that met a slot which was not sound.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    forwards: int = 0
    replays: int = 0
    seconds: float = 0.0
    slots_read: int = 0
    slots_checked: int = 0
    faults: int = 0

    def copy(self) -> "Work":
        """The work so far, unmoved by what follows."""
        return replace(self, kernels=self.kernels.copy())

    def since(self, start: "Work") -> "Work":
        """What came after `start`."""
        counts = [field.name for field in fields(self) if field.name != "kernels"]
        grown = {name: getattr(self, name) - getattr(start, name) for name in counts}
        return Work(self.kernels - start.kernels, **grown)


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
    """

    name = ""
    tile_rows = 0
    absorbs = False
    kernel = staticmethod(paged_prefill)

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
        capture: Capture | None = None,
    ):
        """Args as in `KVPool`; `kv_tokens` is the pool's capacity in tokens; `capture` as in `graphs.capture_for`."""
        self.weights, self.plan, self.key = weights, plan, key
        options = scales, k_read_factor, poison, integrity, int(capture is not None)
        self.pool = pool_for(weights.layout, plan.kv, kv_tokens, *options)
        self.device = self.pool.stored()[0].device
        self.cache = PrefixCache(self.pool)
        self.work = Work()
        self.eager_because = self._eager_because(capture)
        self.steps: DecodeSteps | None = None
        if capture is not None and not self.eager_because:
            self.steps = DecodeSteps(weights, self.pool, self.kernel, capture)

    def _eager_because(self, capture: Capture | None) -> str:
        """Why no step of this stage is captured; empty where steps are."""
        return "prompts are computed in chunks of all lengths"

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
        faults = self._faults(check, reading)
        finish(self.device)
        self.work.seconds += perf_counter() - started
        return logits, faults

    def _faults(self, check: Check | None, reading: Reading) -> dict[int, Incident]:
        """By chunk the first slot that was not sound; counts what was checked."""
        layers = self.weights.layout.layers
        self.work.slots_read += layers * len(reading.slots)
        if check is None:
            return {}
        found = check.found()
        self.work.slots_checked += int(check.sound.sum()) + len(found)
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

    def _eager_because(self, capture: Capture | None) -> str:
        latent, guard = self.weights.layout.latent, self.pool.guard
        reasons = {
            "graphs are off, or this is no GPU": capture is None,
            "kernels run as torch": form(self.device.type) != "triton",
            "keys of sparse attention are chosen by tiles": latent is not None and bool(latent.index),
            "experts that are not packed are computed one by one": self.weights.asks(),
            "hashes of contents are compared outside of kernels": guard is not None and guard.sums is not None,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @torch.inference_mode()
    def _run(self, chunks: Seq[Chunk]) -> tuple[Tensor, dict[int, Incident]]:
        if self.steps is None or not self.steps.serves(chunks):
            return super()._run(chunks)
        started = perf_counter()
        step, out = self.steps.run(chunks)
        self.work.tokens += len(chunks)
        self.work.forwards += 1
        self.work.replays += 1
        self.work.kernels.update(out.ran)
        wanted = [i for i, chunk in enumerate(chunks) if chunk.logits]
        logits = out.logits if len(wanted) == len(chunks) else out.logits[wanted]
        faults = self._found([chunk.sequence for chunk in chunks], step, out)
        finish(self.device)
        self.work.seconds += perf_counter() - started
        return logits, faults

    def _found(self, sequences: Seq[Sequence], step: Inputs, out: Outputs) -> dict[int, Incident]:
        """As `_faults`, of a replay: what kernels found is read once, and looked into where it is not as it must be."""
        guard, lengths = self.pool.guard, [sequence.length for sequence in sequences]
        reads = {layer: slots_read(lengths, [1] * len(lengths), window) for layer, window in out.windows.items()}
        if guard is None or out.found is None:
            self.work.slots_read += sum(reads.values())
            return {}
        found = out.found.cpu()
        compared = dict(enumerate(found[:, 1].sum(dim=1).tolist()))
        if compared == reads and not found[:, 0].any():
            self.work.slots_read += sum(reads.values())
            self.work.slots_checked += sum(compared.values())
            return {}
        read = reading(sequences)
        check = Check(guard, read.slots, read.wanted)
        for layer, count in reads.items():
            check.hear(layer, Guarding(guard.stamps[layer], step.expected, *found[layer]), count)
        return self._faults(check, read)

    def step(self, sequences: Seq[Sequence], tokens: Seq[int]) -> Tensor:
        """Writes one token of each sequence and returns logits of shape (sequences, vocabulary)."""
        return self.forward([Chunk(s, [t]) for s, t in zip(sequences, tokens, strict=True)])
