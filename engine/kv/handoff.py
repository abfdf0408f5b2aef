"""From the prefill stage's pages to the decode stage's, in the decode stage's format."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from evalsvc.errors import IntegrityError

from .guard import Guard, stamps_in
from .latent_pool import LatentPool
from .pool import KVPool, Sequence
from .tags import Bad

Pool = KVPool | LatentPool


def same_storage(source: Pool, target: Pool) -> bool:
    """Whether the stored bytes of one pool mean the same in the other."""
    ours, theirs = source.fmt, target.fmt
    if (ours.kind, ours.per) != (theirs.kind, theirs.per):
        return False
    pairs = zip(source.fixed_scales(), target.fixed_scales(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class HandoffFault(IntegrityError):
    """A token that cannot be handed over.

    Attributes:
        bad: The slot, in the source's pool or, with `arrived`, in the target's.
    """

    def __init__(self, bad: Bad, arrived: bool):
        super().__init__(f"slot {bad.slot} of layer {bad.layer} is not sound{' at arrival' if arrived else ''}")
        self.bad, self.arrived = bad, arrived


def convert(
    source: Pool,
    source_slots: Seq[int],
    target: Pool,
    target_slots: Seq[int],
    stamps: Tensor | None = None,
) -> None:
    """Copies tokens into another pool: bytes where the storage is equal, else decoded and quantized again.

    Args:
        source: Left as it is.
        source_slots: Where the tokens are.
        target: Another pool, of as many layers, heads and dimensions.
        target_slots: Where each of them goes; the caller holds these pages.
        stamps: What they are stamped with there; None: nobody's. Shape: (tokens, 2), int32.

    Raises:
        HandoffFault: What arrived is not what was sent, by a checksum of each token.
    """
    origin, slots = (torch.tensor(s, dtype=torch.long) for s in (source_slots, target_slots))
    alike = same_storage(source, target)
    for layer in range(len(source.stored()[0])):
        sent = source.rows(layer, origin) if alike else target.encode(layer, *source.read(layer, origin))
        target.store(layer, slots, sent, stamps)
        if target.guard is not None and stamps is not None:
            _check_arrival(target.guard, layer, slots, sent, target.rows(layer, slots), stamps)


def _check_arrival(
    guard: Guard, layer: int, slots: Tensor, sent: list[Tensor], arrived: list[Tensor], stamps: Tensor
) -> None:
    sound = guard.hash_rows(layer, sent, stamps) == guard.hash_rows(layer, arrived, stamps)
    sound &= (guard.stamps[layer, slots] == stamps).all(dim=-1)
    for bad in guard.bad(layer, slots, stamps, sound)[:1]:
        raise HandoffFault(bad, arrived=True)


def _check_source(guard: Guard, slots: Seq[int], wanted: Tensor) -> None:
    where = torch.tensor(slots, dtype=torch.long)
    for layer in range(guard.layers):
        for bad in guard.bad(layer, where, wanted, guard.sound(layer, where, wanted))[:1]:
            raise HandoffFault(bad, arrived=False)


def handoff(source: Pool, sequence: Sequence, target: Pool, held: Sequence | None = None) -> Sequence:
    """Copies a sequence into another pool.

    Args:
        source: The prefill stage's pool; left as it is.
        sequence: Tokens in `source`.
        target: The decode stage's pool.
        held: What `target` holds of it already: leading full pages of an earlier handoff. It becomes the result.

    Returns:
        The sequence in `target`, of the same length.

    Raises:
        PoolFull: `target` has no room; nothing more is held there.
        HandoffFault: A token is not sound in `source`, or did not arrive as it was sent. `held` may have grown.
    """
    copy = held or Sequence()
    start = copy.length
    slots, origin = target.extend(copy, sequence.length - start), sequence.slots(start, sequence.length)
    if source.guard is not None:
        _check_source(source.guard, origin, stamps_in(sequence, start, sequence.length))
    convert(source, origin, target, slots, stamps_in(copy, start, copy.length))
    return copy
