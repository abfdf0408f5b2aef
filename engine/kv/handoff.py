"""From the prefill stage's pages to the decode stage's, in the decode stage's format."""

from collections.abc import Sequence as Seq

import torch

from .latent_pool import LatentPool
from .pool import KVPool, Sequence

Pool = KVPool | LatentPool


def same_storage(source: Pool, target: Pool) -> bool:
    """Whether the stored bytes of one pool mean the same in the other."""
    ours, theirs = source.fmt, target.fmt
    if (ours.kind, ours.per) != (theirs.kind, theirs.per):
        return False
    pairs = zip(source.fixed_scales(), target.fixed_scales(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def convert(source: Pool, source_slots: Seq[int], target: Pool, target_slots: Seq[int]) -> None:
    """Copies tokens into another pool: bytes where the storage is equal, else decoded and quantized again.

    Args:
        source: Left as it is.
        source_slots: Where the tokens are.
        target: Another pool, of as many layers, heads and dimensions.
        target_slots: Where each of them goes; the caller holds these pages.
    """
    origin, slots = (torch.tensor(s, dtype=torch.long) for s in (source_slots, target_slots))
    if same_storage(source, target):
        for mine, theirs in zip(source.stored(), target.stored(), strict=True):
            theirs[:, slots] = mine[:, origin]
        return
    for layer in range(len(source.stored()[0])):
        target.write(layer, slots, *source.read(layer, origin))


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
    """
    copy = held or Sequence()
    start = copy.length
    slots = target.extend(copy, sequence.length - start)
    convert(source, sequence.slots(start, sequence.length), target, slots)
    return copy
