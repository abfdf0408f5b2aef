"""Planted faults on the page layer: pools and sequences without a model."""

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from evalsvc.engine.kv.guard import Check, stamps_in
from evalsvc.engine.kv.handoff import HandoffFault, handoff
from evalsvc.engine.kv.latent_pool import LatentPool
from evalsvc.engine.kv.pages import PAGE, Sequence
from evalsvc.engine.kv.perturb import Planted, plant
from evalsvc.engine.kv.pool import KVPool
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.sizes import LatentShape

LAYERS, HEADS = 2, 2
PAGES = 24


@dataclass(frozen=True)
class Counts:
    """Faults that were planted and read, those that were caught, and alarms where there was none."""

    planted: int
    caught: int
    false_alarms: int


class World:
    """A pool in which sequences come, grow, fork and go, at random.

    Attributes:
        checked: Slots whose check found what was expected.
    """

    def __init__(self, fmt: str, mode: str, seed: int, head_dim: int = 16):
        """`fmt` is a KV format, or `latent`."""
        self._rng, self._generator = Random(seed), torch.Generator().manual_seed(seed)
        self._sizes = (HEADS, head_dim)
        if fmt == "latent":
            shape = LatentShape(layers=LAYERS, rank=128, rope=16, index=16, index_layers=(1,))
            kv = parse_plan("kv=fp8:latent128").decode.kv
            self.pool, self._target = (LatentPool(kv, shape, PAGES * PAGE, integrity=mode) for _ in range(2))
        else:
            kv = parse_plan(f"kv={fmt}").decode.kv
            sizes = kv, LAYERS, HEADS, head_dim, PAGES * PAGE
            self.pool, self._target = (KVPool(*sizes, poison=True, integrity=mode) for _ in range(2))
        self._sequences: list[Sequence] = []
        self.checked = 0

    def has(self, kind: str) -> bool:
        """Whether there is a place for a kind of fault in this format."""
        dtypes = [tensor.dtype for tensor in self.pool.layer_tensors(0)[0]]
        if kind == "scale":
            return bool(self.pool.layer_tensors(0)[1] or self.pool.shared_scales(0))
        return kind != "flipped_exponent" or torch.int8 not in dtypes

    def campaign(self, kind: str, faults: int) -> Counts:
        """Plants so many faults of a kind, each in another state of the world, and looks at what reading finds."""
        caught = false = 0
        done = 0
        while done < faults:
            for _ in range(self._rng.randint(1, 3)):
                self._live()
            if kind == "truncated_handoff":
                found = self._cut_handoff()
                caught += found
                done += 1
                continue
            planted = plant(kind, self._rng, self.pool, self._sequences)
            if planted is None:
                continue
            if kind == "dropped_write":
                self._grow()
            if not planted.pages:
                planted.undo()
                continue
            seen, alarms = self._read(planted)
            caught, false, done = caught + seen, false + alarms, done + 1
        return Counts(done, caught, false)

    def live_on(self, slots: int) -> int:
        """Runs without faults until so many slots were checked; returns the false alarms."""
        alarms, goal = 0, self.checked + slots
        while self.checked < goal:
            self._live()
            alarms += self._read(None)[1]
        return alarms

    # -- what happens --------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """One random event."""
        rng = self._rng
        while self.pool.available < 8 and self._sequences:
            self.pool.free(self._sequences.pop(rng.randrange(len(self._sequences))))
        event = rng.random()
        if event < 0.3 or not self._sequences:
            self._sequences.append(Sequence())
            self._grow(self._sequences[-1])
        elif event < 0.6:
            self._grow(rng.choice(self._sequences))
        elif event < 0.8:
            self._sequences.append(self.pool.fork(rng.choice(self._sequences)))
        else:
            self.pool.free(self._sequences.pop(rng.randrange(len(self._sequences))))

    def _grow(self, sequence: Sequence | None = None) -> None:
        if sequence is None:
            if not self._sequences:
                self._sequences.append(Sequence())
            sequence = self._rng.choice(self._sequences)
        tokens, start = self._rng.choice([1, 1, 2, PAGE, PAGE + 3]), sequence.length
        slots = torch.tensor(self.pool.extend(sequence, tokens))
        stamps = stamps_in(sequence, start, sequence.length)
        for layer in range(LAYERS):
            self.pool.write(layer, slots, *self._numbers(layer, tokens), stamps=stamps)

    def _numbers(self, layer: int, tokens: int) -> tuple[torch.Tensor, ...]:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(tokens, *shape, generator=self._generator)

        if isinstance(self.pool, LatentPool):
            shape = self.pool.shape
            numbers = draw(shape.rank), draw(shape.rope)
            return (*numbers, draw(shape.index)) if layer in shape.index_layers else numbers
        return draw(*self._sizes), draw(*self._sizes)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _read(self, planted: Planted | None) -> tuple[bool, int]:
        """Reads every sequence once. Returns whether a fault was met, and how many alarms there were elsewhere."""
        met, alarms, ended = False, 0, []
        for sequence in self._sequences:
            found = self._unsound_pages(sequence)
            if not found:
                continue
            ended.append(sequence)
            fits = planted is not None and found <= planted.pages
            met, alarms = met or fits, alarms + (not fits)
        if planted is not None:
            ended += [s for s in self._sequences if s not in ended and planted.pages & set(s.pages)]
            planted.undo()
        for sequence in ended:
            self._sequences.remove(sequence)
            self.pool.free(sequence)
        self.pool.check()
        return met, alarms

    def _unsound_pages(self, sequence: Sequence) -> set[int]:
        guard = self.pool.guard
        assert guard is not None
        slots = torch.tensor(sequence.slots(0, sequence.length))
        check = Check(guard, slots, stamps_in(sequence, 0, sequence.length))
        for layer in range(LAYERS):
            check.layer(layer)
        self.checked += int(check.sound.sum())
        return {bad.slot // PAGE for _, bad in check.found()}

    def _cut_handoff(self) -> bool:
        sequence: Any = self._rng.choice(self._sequences) if self._sequences else None
        if sequence is None:
            self._grow()
            sequence = self._sequences[-1]
        planted = plant("truncated_handoff", self._rng, self._target, [])
        assert planted is not None
        copy = Sequence()
        try:
            handoff(self.pool, sequence, self._target, copy)
        except HandoffFault as fault:
            return fault.arrived and fault.bad.slot // PAGE in planted.pages
        finally:
            planted.undo()
            self._target.free(copy)
        return False
