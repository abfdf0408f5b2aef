"""A stage: weights in a format, a KV pool in a format, and the forward that joins them.

`PrefillStage` computes prompts in tiles of 16 queries and keeps the pages of shared prefixes; `DecodeStage` computes
one token a sequence a step and reads only its own pool.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor

from evalsvc.kernels.dispatch import counting

from .attention import Step, stepping
from .batch import Chunk, never_one_row, pack
from .kv.pool import KVPool, PoolFull, Scales, Sequence
from .kv.prefix import PrefixStore
from .precision import StagePlan
from .weights import WeightSet


@dataclass
class Work:
    """What a stage computed.

    Attributes:
        kernels: Runs of each kernel.
        tokens: Tokens that went through the forward.
        forwards: Forwards, whatever their size.
        seconds: Wall clock inside the forwards.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0

    def copy(self) -> "Work":
        """The work so far, unmoved by what follows."""
        return replace(self, kernels=self.kernels.copy())

    def since(self, start: "Work") -> "Work":
        """What came after `start`."""
        return Work(
            self.kernels - start.kernels,
            self.tokens - start.tokens,
            self.forwards - start.forwards,
            self.seconds - start.seconds,
        )


class Stage:
    """What both stages share.

    Attributes:
        plan: Formats of this stage.
        work: What it computed, for all arms that share it.
    """

    name = ""
    tile_rows = 0

    def __init__(
        self,
        weights: WeightSet,
        plan: StagePlan,
        kv_tokens: int,
        scales: Scales | None = None,
        k_read_factor: float = 1.0,
        poison: bool = False,
    ):
        """Args as in `KVPool`; `kv_tokens` is the pool's capacity in tokens."""
        layout = weights.layout
        self.weights, self.plan = weights, plan
        self.pool = KVPool(
            plan.kv,
            layout.layers,
            layout.kv_heads,
            layout.head_dim,
            kv_tokens,
            scales,
            k_read_factor,
            poison,
        )
        self.work = Work()

    @torch.inference_mode()
    def forward(self, chunks: Seq[Chunk]) -> Tensor:
        """Computes new tokens, writing their keys and values.

        Args:
            chunks: Each sequence at most once.

        Returns:
            fp32 logits of the rows that the chunks ask for, in their order. Shape: (rows, vocabulary).

        Raises:
            PoolFull: No room; nothing was written.
        """
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
        with stepping(Step(self.pool, batch.slots, batch.tiles)), counting(self.work.kernels):
            if wanted:
                logits = self.weights.model(**inputs, logits_to_keep=batch.logit_rows).logits[0, :wanted].float()
            else:
                self.weights.model.base_model(**inputs)
                logits = torch.empty(0, self.weights.model.config.vocab_size)
        self.work.seconds += perf_counter() - started
        return logits


class PrefillStage(Stage):
    """Computes prompts, in chunks, each shared prefix once."""

    name = "prefill"
    tile_rows = 16

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prefixes = PrefixStore(self.pool)

    def prefill(
        self, prompts: Seq[tuple[Seq[int], int]], logits: bool = True, chunk: int = 512
    ) -> tuple[list[Sequence], Tensor]:
        """Computes prompts side by side.

        Args:
            prompts: Token ids, and how many leading ids are a shared prefix (less than all of them).
            logits: Whether the logits of each prompt's last token are wanted.
            chunk: Most tokens in one forward. It changes no bit of the result.

        Returns:
            A sequence for each prompt, and logits of shape (prompts, vocabulary) (empty without `logits`).

        Raises:
            PoolFull: No room, even after the prefixes that nobody uses were dropped; nothing is held.
        """
        for last_try in (False, True):
            sequences: list[Sequence] = []
            try:
                for ids, shared in prompts:
                    sequences.append(self._prefix(tuple(ids[:shared]), chunk) if shared else Sequence())
                return sequences, self._compute(sequences, [ids for ids, _ in prompts], logits, chunk)
            except BaseException as error:
                for sequence in sequences:
                    self.pool.free(sequence)
                if not isinstance(error, PoolFull) or last_try or not self.prefixes.drop_all():
                    raise
        raise AssertionError("unreachable")

    def _prefix(self, ids: tuple[int, ...], chunk: int) -> Sequence:
        held = self.prefixes.get(ids)
        if held is None:
            held = Sequence()
            try:
                self._compute([held], [ids], False, chunk)
            except BaseException:
                self.pool.free(held)
                raise
            self.prefixes.put(ids, held)
        return self.pool.fork(held)

    def _compute(self, sequences: list[Sequence], prompts: list[Seq[int]], logits: bool, chunk: int) -> Tensor:
        last: dict[int, Tensor] = {}
        pending: list[tuple[int, Chunk]] = []
        room = chunk
        for i, (sequence, ids) in enumerate(zip(sequences, prompts, strict=True)):
            start = sequence.length
            while start < len(ids):
                if room == 0 or (pending and pending[-1][0] == i):
                    self._flush(pending, last)
                    room = chunk
                stop = min(start + room, len(ids))
                wanted = int(logits and stop == len(ids))
                pending.append((i, Chunk(sequence, ids[start:stop], wanted)))
                room -= stop - start
                start = stop
        self._flush(pending, last)
        return torch.stack([last[i] for i in range(len(sequences))]) if logits else torch.empty(0)

    def _flush(self, pending: list[tuple[int, Chunk]], last: dict[int, Tensor]) -> None:
        if not pending:
            return
        rows = iter(self.forward([chunk for _, chunk in pending]))
        for i, chunk in pending:
            if chunk.logits:
                last[i] = next(rows)
        pending.clear()

    def rows(self, chunks: Seq[Chunk], limit: int = 512) -> Iterator[Tensor]:
        """Logits that the chunks ask for, row after row, at most `limit` tokens in one forward.

        A caller that reduces rows as they come never holds the logits of everything.
        """
        group: list[Chunk] = []
        room = limit
        for chunk in chunks:
            if group and room < len(chunk.tokens):
                yield from self.forward(group)
                group, room = [], limit
            group.append(chunk)
            room -= len(chunk.tokens)
        if group:
            yield from self.forward(group)


class DecodeStage(Stage):
    """Computes one token a sequence a step."""

    name = "decode"
    tile_rows = 1

    def step(self, sequences: Seq[Sequence], tokens: Seq[int]) -> Tensor:
        """Writes one token of each sequence and returns logits of shape (sequences, vocabulary)."""
        return self.forward([Chunk(s, [t]) for s, t in zip(sequences, tokens, strict=True)])
