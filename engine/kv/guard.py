"""Stamps and hashes of a pool's slots: stored by who writes them, compared by who reads them. See `tags.py`."""

import weakref
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from evalsvc.errors import EngineError
from evalsvc.kernels.content import HEADER, content_hash, first_bytes, words_of
from evalsvc.kernels.page_table import Guarding, PageTable
from evalsvc.kernels.stamps import NO_TAG, sound_slots, write_stamps

from .pages import PAGE, Pages, Sequence
from .tags import Bad, check_mode

UNSOUND = (NO_TAG, -1)


class Guard:
    """Stamps and hashes of one pool's slots.

    Attributes:
        mode: One of MODES, not `off`.
        stamps: Shape: (layers, slots, 2), int32.
        sums: Hashes. Shape: (layers, slots), int32; None for `tags`.
    """

    def __init__(self, pool: "GuardedPages", mode: str, layers: int, slots: int):
        """All slots are as nobody has written them."""
        self.mode, self.layers = mode, layers
        self.stamps = torch.full((layers, slots, 2), NO_TAG, dtype=torch.int32)
        self.sums = torch.zeros((layers, slots), dtype=torch.int32) if mode.startswith("content") else None
        self._pool = weakref.proxy(pool)
        self._keys = self._secret()

    def _secret(self) -> Tensor:
        slot = torch.zeros(1, dtype=torch.long)
        held = [[*self._pool.shared_scales(i), *self._pool.rows(i, slot)] for i in range(self.layers)]
        words = HEADER + max(sum(words_of(part.reshape(1, -1)) for part in parts) for parts in held)
        generator = torch.Generator("cpu")
        generator.seed()
        drawn = torch.randint(-(2**63), 2**63 - 1, (words,), generator=generator, dtype=torch.long, device="cpu")
        return drawn.to(slot.device)

    def hash_rows(self, layer: int, rows: list[Tensor], stamps: Tensor) -> Tensor:
        """Hashes of whole tokens that are, or are to be, in slots of a layer. Shape: (tokens,), int32.

        Args:
            layer: Which.
            rows: As `GuardedPages.rows` gives them.
            stamps: Tag and position of each. Shape: (tokens, 2), int32.
        """
        return content_hash(rows, self._pool.shared_scales(layer), stamps, layer, self._keys)

    def hashes(self, layer: int, slots: Tensor, stamps: Tensor) -> Tensor:
        """Hashes, as far as the mode goes, of what slots hold now, as of tokens with these stamps."""
        if self.mode != "content:first":
            return self.hash_rows(layer, self._pool.rows(layer, slots), stamps)
        numbers, scales = self._pool.layer_tensors(layer)
        rows = [part.index_select(0, slots) for part in (*map(first_bytes, numbers), *scales)]
        return self.hash_rows(layer, rows, stamps)

    def seal(self, layer: int, slots: Tensor, new: Tensor) -> None:
        """Stores the stamps, and the hashes, of tokens that were just written.

        Args:
            layer: Where.
            slots: Shape: (tokens,).
            new: Tag and position of each. Shape: (tokens, 2), int32.
        """
        write_stamps(self.stamps[layer], slots, new)
        if self.sums is not None:
            self.sums[layer, slots] = self.hashes(layer, slots, new)

    def sound(self, layer: int, slots: Tensor, wanted: Tensor) -> Tensor:
        """Which slots hold what their reader wants. Shape: (tokens,), bool.

        Args:
            layer: Where.
            slots: Shape: (tokens,).
            wanted: Tag and position of each. Shape: (tokens, 2), int32.
        """
        sound = sound_slots(self.stamps[layer], slots, wanted)
        if self.sums is not None:
            sound &= self.hashes(layer, slots, wanted) == self.sums[layer].index_select(0, slots)
        return sound

    def bad(self, layer: int, slots: Tensor, wanted: Tensor, sound: Tensor) -> list[Bad]:
        """What is wrong with the slots that are not sound. Arguments as in `sound`, and what that returned."""
        which = (~sound).nonzero().view(-1)
        found = self.stamps[layer, slots[which]].tolist()
        rows = zip(slots[which].tolist(), wanted[which].tolist(), found, strict=True)
        return [Bad(layer, slot, (w[0], w[1]), (f[0], f[1]), w == f) for slot, w, f in rows]

    def copy(self, source: Seq[int], target: Seq[int], old: Tensor, new: Tensor) -> list[Bad]:
        """Stamps of copied slots: those of their new owner where the source was sound, else of nobody.

        Args:
            source: Slots whose contents were copied into those of `target`.
            target: As many.
            old: What the source's owner expects there. Shape: (tokens, 2), int32.
            new: What the target's owner will expect, alike.

        Returns:
            What was not sound.
        """
        origin, place = torch.tensor(source), torch.tensor(target)
        bad: list[Bad] = []
        for layer in range(self.layers):
            sound = self.sound(layer, origin, old)
            self.seal(layer, place, torch.where(sound[:, None], new, torch.tensor(UNSOUND, dtype=torch.int32)))
            bad += self.bad(layer, origin, old, sound)
        return bad

    def held_tags(self) -> set[int]:
        """Tags that are in stamps."""
        return set(self.stamps[..., 0].unique().tolist())

    def resident_bytes(self) -> int:
        """Bytes that this process holds for it."""
        return sum(t.numel() * t.element_size() for t in (self.stamps, self.sums) if t is not None)


def stamps_of(tag: int, start: int, count: int) -> Tensor:
    """Stamps of `count` positions from `start` under one tag. Shape: (count, 2), int32."""
    return torch.tensor([[tag, position] for position in range(start, start + count)], dtype=torch.int32)


def stamps_in(sequence: Sequence, start: int, stop: int) -> Tensor:
    """Stamps that a sequence expects of positions start..stop-1. Shape: (stop - start, 2), int32."""
    wanted = [[sequence.tags[position // PAGE], position] for position in range(start, stop)]
    return torch.tensor(wanted, dtype=torch.int32).view(-1, 2)


class GuardedPages(Pages):
    """Pages whose slots are stamped. A pool gives it `layer_tensors`, and `shared_scales` where it has some.

    Attributes:
        guard: Stamps and hashes of the slots; None where integrity is off.
    """

    guard: Guard | None = None

    def set_guard(self, mode: str, layers: int) -> None:
        """Begins to stamp, in one of `tags.MODES`, once the pool's tensors are there.

        Raises:
            ConfigError: No such mode.
        """
        check_mode(mode)
        self.guard = None if mode == "off" else Guard(self, mode, layers, self.n_slots)

    def layer_tensors(self, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """Numbers, as bytes where fp8, and scales of each slot of one layer. Shape of each: (slots, ...)."""
        raise NotImplementedError

    def rows(self, layer: int, slots: Tensor) -> list[Tensor]:
        """What some slots of a layer hold: numbers, then scales. Shape of each: (tokens, ...)."""
        numbers, scales = self.layer_tensors(layer)
        return [tensor.index_select(0, slots) for tensor in (*numbers, *scales)]

    def shared_scales(self, layer: int) -> list[Tensor]:
        """Scales that all tokens of a layer share."""
        return []

    def store(self, layer: int, slots: Tensor, rows: list[Tensor], stamps: Tensor | None) -> None:
        """Stores what `rows` gave of some slots of a layer, or would give, and whose it is. `stamps` as of `write`."""
        numbers, scales = self.layer_tensors(layer)
        for tensor, part in zip((*numbers, *scales), rows, strict=True):
            tensor.index_copy_(0, slots, part)
        if self.guard is not None and stamps is not None:
            self.guard.seal(layer, slots, stamps)

    def copy_stamps(self, source: list[int], target: list[int], start: int, old_tag: int, new_tag: int) -> None:
        """Who reads a copy of what was not sound finds nobody's stamp there; the page that lied is in quarantine."""
        if self.guard is not None:
            old, new = (stamps_of(tag, start, len(source)) for tag in (old_tag, new_tag))
            for slot in {bad.slot for bad in self.guard.copy(source, target, old, new)}:
                self.quarantine(slot // PAGE)

    def held_tags(self) -> set[int]:
        """Tags of pages and of stamps."""
        return super().held_tags() | (set() if self.guard is None else self.guard.held_tags())


class Check:
    """What the reads of one step found, layer by layer.

    Attributes:
        slots: What is read. Shape: (read,).
        sound: By layer how many of them were found sound, counted where they are compared. Shape: (layers,), int64.
    """

    def __init__(self, guard: Guard, slots: Tensor, wanted: Tensor):
        """Args as in `Guard.sound`."""
        self.slots, self.sound = slots, torch.zeros(guard.layers, dtype=torch.long)
        self._guard, self._wanted = guard, wanted
        self._masks: dict[int, Tensor] = {}
        self._reads: dict[int, int] = {}
        self._by_kernel: dict[int, Guarding] = {}

    def by_kernel(self, layer: int, expected: Tensor, table: PageTable, window: int | None) -> Guarding | None:
        """What a kernel is to compare while it reads a layer; None where it cannot: that is compared here, before.

        Args:
            layer: Which.
            expected: Tag of each page of the table, int32.
            table: What the kernel reads by.
            window: Keys that a query reads; None: all.
        """
        self._reads[layer] = table.reads(window)
        if self._guard.sums is not None:
            self.layer(layer)
            return None
        self._by_kernel[layer] = Guarding.over(self._guard.stamps[layer], expected)
        return self._by_kernel[layer]

    def hear(self, layer: int, guarding: Guarding, reads: int) -> None:
        """Notes where a kernel's findings of a layer are, and how many slots it is to have found sound."""
        self._by_kernel[layer], self._reads[layer] = guarding, reads

    def _hear_kernels(self) -> None:
        """Takes over what kernels found; where they found a slot that is not sound, which one is looked up here.

        Raises:
            EngineError: What a kernel compared is not what it read.
        """
        for layer, guarding in self._by_kernel.items():
            found = guarding.first_bad().tolist()
            if any(found):
                self.layer(layer)
                if bool(self._masks[layer].all()):
                    raise EngineError(f"layer {layer}: a kernel read a slot that was not sound, and now is ({found})")
            elif (compared := int(guarding.sound.sum())) != self._reads[layer]:
                raise EngineError(f"layer {layer} read {self._reads[layer]} slots and compared {compared}")
            else:
                self.sound[layer] = len(self.slots)

    def layer(self, layer: int) -> None:
        """Compares what is read of one layer; called before it is used. Nobody waits for a device here."""
        self._masks[layer] = sound = self._guard.sound(layer, self.slots, self._wanted)
        self.sound[layer] = sound.sum()

    def found(self) -> list[tuple[int, Bad]]:
        """What was not sound, each with its index in `slots`, in order of layers and positions.

        Raises:
            EngineError: A layer's slots were used and not compared.
        """
        self._hear_kernels()
        found: list[tuple[int, Bad]] = []
        for layer in (self.sound != len(self.slots)).nonzero().view(-1).tolist():
            if layer not in self._masks:
                raise EngineError(f"layer {layer} read {len(self.slots)} slots and compared {int(self.sound[layer])}")
            sound = self._masks[layer]
            bad = self._guard.bad(layer, self.slots, self._wanted, sound)
            found += zip((~sound).nonzero().view(-1).tolist(), bad, strict=True)
        return found

    def compared(self) -> int:
        """Slots that were read and compared, over all layers, once `found` has returned: then none was left out."""
        return sum(self._reads.get(layer, len(self.slots)) for layer in range(self._guard.layers))


class Findings:
    """In place of `Check` where a decode step is captured: kernels put all that they find into one tensor.

    Attributes:
        found: By layer `Guarding.faults` and `Guarding.sound`. Shape: (layers, 2, requests), int32.
    """

    def __init__(self, guard: Guard, requests: int):
        """With nothing found yet."""
        self.found = torch.zeros((guard.layers, 2, requests), dtype=torch.int32, device=guard.stamps.device)
        self._guard = guard

    def by_kernel(self, layer: int, expected: Tensor, table: PageTable, window: int | None) -> Guarding:
        """As in `Check`; asks the device nothing."""
        return Guarding(self._guard.stamps[layer], expected, *self.found[layer])

    def layer(self, layer: int) -> None:
        """What the host compares is not captured.

        Raises:
            EngineError: Always.
        """
        raise EngineError(f"layer {layer} is not read by a kernel: its stamps cannot be compared in a captured step")
