"""Tags of pages: who wrote a slot. Pure Python: stamps and hashes are `guard.py`'s.

A page gets a tag from one process-wide counter whenever it is allocated; a sequence remembers the tags of its pages.
The writer of a token stores its own tag and the token's position with the keys and values, for each slot and layer, and
a reader compares both with what its sequence expects before it uses them. A tag that was stored when a page is
allocated could not see a late writer, and a page's one tag would be put right by its owner's next token: hence slots,
and writers.

- `tags` compares tag and position.
- `content` also compares a keyed hash of every byte and scale; `content:first` of the first bytes of each head alone.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from evalsvc.errors import ConfigError

MODES = ("tags", "off", "content", "content:first")


class Holder(Protocol):
    """Who holds tags that must not be issued a second time."""

    def held_tags(self) -> Iterable[int]:
        """All of them."""
        ...


class Issuer:
    """Tags 1, 2, ... `last`, and from the start again, without those that somebody still holds.

    After a turn all tags in page tables and stamps are those of the turn before: they are collected once, when a turn
    begins, and left out of it. Tags of the turn itself come once.
    """

    def __init__(self, last: int = 2**31 - 1):
        """Args: `last` is the largest tag, at least 1."""
        self._last, self._next = last, 1
        self._held: set[int] = set()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def register(self, holder: Holder) -> None:
        """Asks a holder for its tags from now on, whenever a turn begins."""
        self._holders.add(holder)

    def issue(self) -> int:
        """The next tag."""
        for _ in range(2):
            while self._next <= self._last:
                tag, self._next = self._next, self._next + 1
                if tag not in self._held:
                    return tag
            self._next = 1
            self._held = {tag for holder in self._holders for tag in holder.held_tags()}
        raise RuntimeError(f"all {self._last} tags are held")


TAGS = Issuer()
"""The process's own."""


def check_mode(mode: object) -> None:
    """Refuses what is no mode.

    Raises:
        ConfigError: Names the modes.
    """
    if mode not in MODES:
        raise ConfigError(f"integrity is {mode!r}; it must be one of {', '.join(MODES)}")


@dataclass(frozen=True)
class Bad:
    """A slot that does not hold what its reader expects.

    Attributes:
        expected: Tag and position that were expected; `found` are those that were there.
        content: Tag and position are right, and the hash of what was stored is not.
    """

    layer: int
    slot: int
    expected: tuple[int, int]
    found: tuple[int, int]
    content: bool = False
