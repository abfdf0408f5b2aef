"""From the prefill stage's pages to the decode stage's, in the decode stage's format."""

from collections.abc import Sequence as Seq

import torch

from .pool import KVPool, Sequence


def same_storage(source: KVPool, target: KVPool) -> bool:
    """Whether the stored bytes of one pool mean the same in the other."""
    ours, theirs = source.fmt, target.fmt
    if (ours.kind, ours.per) != (theirs.kind, theirs.per):
        return False
    if ours.per in ("", "token-head"):
        return True
    pairs = ((source.k_scale, target.k_scale), (source.v_scale, target.v_scale))
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def convert(source: KVPool, source_slots: Seq[int], target: KVPool, target_slots: Seq[int]) -> None:
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
    for layer in range(source.k.shape[0]):
        key, value = source.read(layer, origin)
        target.write(layer, slots, key, value)


def handoff(source: KVPool, sequence: Sequence, target: KVPool, held: Sequence | None = None) -> Sequence:
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
