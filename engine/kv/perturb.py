"""Planted faults: what happened to pages of real servers, done on purpose, to prove that it is seen.

A fault is done to what lies in memory, or to a sequence's page table, behind the back of whoever keeps account of it:

- `swapped`: two entries of page tables are exchanged, of one sequence or of two.
- `stale`: an entry names another page than the sequence's own: one that is free, or that somebody else holds.
- `late_write`: a former holder's token is written into a page that belongs to another now.
- `dropped_write`: the write of one token in one layer does not take place. A replayed graph calls no write that could
  be left out: it is planted where graphs are off.
- `truncated_handoff`: tokens from some place on do not arrive in a layer.
- `flipped_exponent`, `flipped_mantissa`, `flipped_sign`: one bit of a stored number.
- `scale`: a token's scale, or one that the tokens of a layer share, is another one.
- `forged`: what another token wrote, under the right tag and position; with the other token's hash, or the right one's.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from .guard import GuardedPages
from .pages import PAGE, Sequence

BY_TAGS = ("swapped", "stale", "late_write", "dropped_write", "truncated_handoff")
BY_CONTENT = ("flipped_exponent", "flipped_mantissa", "flipped_sign", "scale", "forged")
KINDS = (*BY_TAGS, *BY_CONTENT)
_ARMED = {"dropped_write": "write", "truncated_handoff": "store"}
# By type in which a number is stored, fp8 in bytes: the integer type of its size, its mantissa's bits, its exponent's.
_BITS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.float32: (torch.int32, 23, 8),
    torch.bfloat16: (torch.int16, 7, 8),
    torch.uint8: (torch.uint8, 3, 4),
    torch.int8: (torch.uint8, 7, 0),
}


@dataclass
class Planted:
    """A fault.

    Attributes:
        kind: One of KINDS.
        pages: Where it will be read.
        undo: Takes it away again, where a page's next holder does not.
    """

    kind: str
    pages: set[int]
    undo: Callable[[], None] = lambda: None


class _Slot:
    """All that belongs to one slot of a layer."""

    def __init__(self, pool: GuardedPages, layer: int, slot: int):
        assert pool.guard is not None
        numbers, scales = pool.layer_tensors(layer)
        self.contents = [tensor[slot] for tensor in (*numbers, *scales)]
        self.stamp = pool.guard.stamps[layer, slot]
        self.sums = [] if pool.guard.sums is None else [pool.guard.sums[layer, slot]]

    def read(self) -> list[Tensor]:
        """A copy of it."""
        return [part.clone() for part in (*self.contents, self.stamp, *self.sums)]

    def write(self, held: Seq[Tensor]) -> None:
        """Puts back what `read` gave."""
        for part, old in zip((*self.contents, self.stamp, *self.sums), held, strict=True):
            part.copy_(old)


def plant(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    """Plants a fault in what sequences will read.

    Args:
        kind: One of KINDS.
        rng: Chooses where.
        pool: Which holds the sequences, with a guard. Its next write is concerned where that is the fault.
        sequences: Those that will be read again.

    Returns:
        Where it is: of a write or a handoff that is still to come, once it has come. None: there is no place for it.
    """
    if kind in _ARMED:
        return _arm(kind, rng, pool)
    held = [sequence for sequence in sequences if sequence.length]
    return _PLANTS[kind](kind, rng, pool, held) if held else None


def _somewhere(rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> tuple[int, int, Sequence, int]:
    """A layer, and a slot that a sequence reads, with the sequence and the position."""
    assert pool.guard is not None
    sequence = rng.choice(sequences)
    position = rng.randrange(sequence.length)
    return rng.randrange(pool.guard.layers), sequence.slots(position, position + 1)[0], sequence, position


def _swap(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    entries = [(sequence, i) for sequence in sequences for i in range(len(sequence.pages))]
    (one, i), (other, j) = rng.choice(entries), rng.choice(entries)
    pages = one.pages[i], other.pages[j]
    if pages[0] == pages[1]:
        return None
    one.pages[i], other.pages[j] = pages[1], pages[0]
    return Planted(kind, set(pages))


def _stale(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    sequence, page = rng.choice(sequences), rng.randrange(pool.n_pages)
    i = rng.randrange(len(sequence.pages))
    if page == sequence.pages[i]:
        return None
    sequence.pages[i] = page
    return Planted(kind, {page})


def _late_write(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    layer, slot, sequence, position = _somewhere(rng, pool, sequences)
    old = rng.randint(1, sequence.tags[position // PAGE])
    if old == sequence.tags[position // PAGE]:
        return None
    late = rng.randrange(8) * PAGE + slot % PAGE
    rows = pool.rows(layer, torch.tensor([rng.randrange(pool.n_pages * PAGE)]))
    pool.store(layer, torch.tensor([slot]), rows, torch.tensor([[old, late]], dtype=torch.int32))
    return Planted(kind, {slot // PAGE})


def _flip(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    layer, slot, _, _ = _somewhere(rng, pool, sequences)
    numbers, _ = pool.layer_tensors(layer)
    whole, mantissa, exponent = _BITS[(part := rng.choice(numbers)).dtype]
    places = {
        "flipped_mantissa": range(mantissa),
        "flipped_exponent": range(mantissa, mantissa + exponent),
        "flipped_sign": [mantissa + exponent],
    }[kind]
    if not places:
        return None
    stored = part[slot].view(-1).view(whole)
    at, bit = rng.randrange(len(stored)), rng.choice(list(places))
    sign = bit == 8 * stored.element_size() - 1 and whole != torch.uint8
    stored[at] ^= -(1 << bit) if sign else 1 << bit
    return Planted(kind, {slot // PAGE})


def _scale(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    layer, slot, _, _ = _somewhere(rng, pool, sequences)
    own, shared = pool.layer_tensors(layer)[1], pool.shared_scales(layer)
    if not own and not shared:
        return None
    scale = rng.choice(own)[slot].view(-1) if own else rng.choice(shared).view(-1)
    at, factor = rng.randrange(len(scale)), rng.choice([0.5, 1.0625, 2.0, -1.0])
    was = scale[at].clone()
    scale[at] = was * factor
    if own:
        return Planted(kind, {slot // PAGE})
    pages = {page for sequence in sequences for page in sequence.pages}

    def undo() -> None:
        scale[at] = was

    return Planted(kind, pages, undo)


def _forge(kind: str, rng: Random, pool: GuardedPages, sequences: Seq[Sequence]) -> Planted | None:
    layer, slot, _, _ = _somewhere(rng, pool, sequences)
    _, other, _, _ = _somewhere(rng, pool, sequences)
    mine, theirs = _Slot(pool, layer, slot), _Slot(pool, layer, other)
    if all(torch.equal(a, b) for a, b in zip(mine.contents, theirs.contents, strict=True)):
        return None
    keeps_hash = bool(rng.getrandbits(1))
    for a, b in zip(mine.contents, theirs.contents, strict=True):
        a.copy_(b)
    for a, b in zip(mine.sums, theirs.sums, strict=True):
        a.copy_(a if keeps_hash else b)
    return Planted(kind, {slot // PAGE})


def _arm(kind: str, rng: Random, pool: GuardedPages) -> Planted:
    """Replaces the pool's write (or store) until it has gone wrong once; `undo` takes that back."""
    name, planted = _ARMED[kind], Planted(kind, set())
    real: Any = getattr(pool, name)
    assert pool.guard is not None
    wanted = rng.randrange(pool.guard.layers)

    def once(layer: int, slots: Tensor, *rest: Any, **options: Any) -> None:
        if layer != wanted or not len(slots):
            return real(layer, slots, *rest, **options)
        chosen = slots.tolist()
        lost = [rng.choice(chosen)] if kind == "dropped_write" else chosen[rng.randrange(len(chosen)) :]
        kept = [(_Slot(pool, layer, slot), _Slot(pool, layer, slot).read()) for slot in dict.fromkeys(lost)]
        real(layer, slots, *rest, **options)
        for slot, before in kept:
            slot.write(before)
        planted.pages |= {slot // PAGE for slot in lost}
        return planted.undo()

    planted.undo = lambda: pool.__dict__.pop(name, None)
    setattr(pool, name, once)
    return planted


_PLANTS: dict[str, Callable[[str, Random, GuardedPages, Seq[Sequence]], Planted | None]] = {
    "swapped": _swap,
    "stale": _stale,
    "late_write": _late_write,
    "flipped_exponent": _flip,
    "flipped_mantissa": _flip,
    "flipped_sign": _flip,
    "scale": _scale,
    "forged": _forge,
}
