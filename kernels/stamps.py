"""Who wrote a slot, and for which position: written with keys and values, compared before they are used.

    stamp[slot] = (tag, position)        the writer's tag and the token's place in its sequence, two int32
    sound[slot] = stamp[slot] == (expected[position // page], position)

A reader that finds another stamp reads what was not written for it: a page of somebody else, a page before it was
written, or one that a late writer has touched. How many slots were found sound is counted where they are compared; the
host holds that against what the lengths say was read, so that a kernel which compares nothing is found out.
"""

import torch
from torch import Tensor

from .dispatch import ran

NO_TAG = 0
"""Of what nobody wrote, or was copied from a slot that was not sound; no page ever has it."""


def write_stamps(stamps: Tensor, slots: Tensor, new: Tensor) -> None:
    """Stores the stamps of one layer's new tokens.

    Args:
        stamps: Shape: (slots, 2), int32. Written in place.
        slots: Shape: (tokens,); where each token goes.
        new: Tag and position of each. Shape: (tokens, 2), int32.
    """
    ran("write_stamps.torch")
    _pairs(stamps)[slots] = _pairs(new)


def sound_slots(stamps: Tensor, slots: Tensor, wanted: Tensor) -> Tensor:
    """Which slots of one layer hold the stamps that their reader wants.

    Args:
        stamps: Shape: (slots, 2), int32.
        slots: Shape: (tokens,); those that are read.
        wanted: Tag and position of each. Shape: (tokens, 2), int32.

    Returns:
        Shape: (tokens,), bool.
    """
    ran("sound_slots.torch")
    return _pairs(stamps).index_select(0, slots) == _pairs(wanted)


def check_pages(
    stamps: Tensor, table: Tensor, expected: Tensor, lengths: Tensor, page: int, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What a kernel that reads by page tables says of each request's slots: the form that others are held against.

    Args:
        stamps: One layer's. Shape: (slots, 2), int32.
        table: Page numbers. Shape: (requests, pages); what lies past a request's length is not looked at.
        expected: Tags, shaped as `table`, int32.
        lengths: Tokens that are read up to, the new one included. Shape: (requests,).
        page: Slots in a page.
        first: First position that is read (a sliding window's). Shape: (requests,); None: 0.

    Returns:
        `faults`: 0 where all slots are sound, else 1 + the first position that is not. Shape: (requests,), int32.
        `sound`: How many slots were found sound. Shape: (requests,), int32.
    """
    positions = torch.arange(table.shape[1] * page, dtype=torch.int32, device=stamps.device)
    read = positions < lengths[:, None]
    if first is not None:
        read &= positions >= first[:, None]
    slots = (table.long().repeat_interleave(page, dim=1) * page + positions % page).where(read, 0)
    wanted = torch.stack([expected.repeat_interleave(page, dim=1), positions.expand(slots.shape)], dim=-1)
    sound = (stamps[slots] == wanted).all(dim=-1) & read
    bad = read & ~sound
    faults = torch.where(bad.any(dim=1), 1 + bad.int().argmax(dim=1), 0)
    return faults.int(), sound.sum(dim=1, dtype=torch.int32)


def _pairs(stamps: Tensor) -> Tensor:
    """Stamps as one int64 each. Shape: (n, 2) -> (n,)."""
    return stamps.view(torch.int64).squeeze(-1)
