"""Who holds which page. Pure Python: the tensors are `pool.py`'s.

A page is PAGE consecutive tokens of one sequence, all layers. Sequences may share full pages (counted references); a
partly filled page belongs to one sequence alone. Invariant: free + held = all. A page that only a prefix cache holds
is idle: it counts as available and is taken back when somebody needs it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from evalsvc.errors import EngineError

PAGE = 16


class PoolFull(EngineError):
    """No free page; the request waits or is refused, nothing is overwritten."""


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are in pages.

    Attributes:
        pages: In order of position.
        length: Tokens written.
    """

    pages: list[int] = field(default_factory=list)
    length: int = 0

    def slots(self, start: int, stop: int) -> list[int]:
        """Slots of positions start..stop-1."""
        pages = self.pages
        return [pages[i // PAGE] * PAGE + i % PAGE for i in range(start, stop)]


def pages_for(tokens: int) -> int:
    """Pages that so many tokens of one sequence occupy."""
    return -(-tokens // PAGE)


class Pages:
    """The pages of one pool.

    Attributes:
        n_pages: How many there are.
        idle: Pages that a cache holds and nobody else.
        peak: Most pages that were ever held.
        reclaim: Called when free pages run out, to give one idle page back; set by a cache.
    """

    def __init__(self, tokens: int):
        """Args: `tokens` is the capacity, rounded up to whole pages."""
        self.n_pages = pages_for(tokens)
        self._free = list(range(self.n_pages - 1, -1, -1))
        self._references = [0] * self.n_pages
        self._cached = [False] * self.n_pages
        self.idle = 0
        self.peak = 0
        self.reclaim: Callable[[], None] = self._nothing_to_reclaim

    @staticmethod
    def _nothing_to_reclaim() -> None:
        raise PoolFull("no idle page")

    def copy_slots(self, source: list[int], target: list[int]) -> None:
        """Copies what is stored; without tensors there is nothing to copy."""

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Pages that can be had: free ones and idle ones."""
        return len(self._free) + self.idle

    def references(self, page: int) -> int:
        """How many hold a page, a cache included."""
        return self._references[page]

    def retain(self, pages: Iterable[int]) -> None:
        """One more holder of pages that somebody holds."""
        for page in pages:
            if self._references[page] == 1 and self._cached[page]:
                self.idle -= 1
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less."""
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)
            elif self._references[page] == 1 and self._cached[page]:
                self.idle += 1

    def cache(self, page: int) -> None:
        """A cache becomes a holder of a full page that a sequence holds."""
        self._cached[page] = True
        self._references[page] += 1

    def uncache(self, page: int) -> None:
        """The cache lets go of a page."""
        if self._references[page] == 1:
            self.idle -= 1
        self._cached[page] = False
        self.release([page])

    def extend(self, sequence: Sequence, tokens: int) -> list[int]:
        """Room for `tokens` more; returns their slots and counts them as written.

        Raises:
            PoolFull: Not enough pages; the sequence is unchanged.
        """
        stop = sequence.length + tokens
        needed = pages_for(stop) - len(sequence.pages)
        if needed > self.available:
            raise PoolFull(f"the KV pool of {self.n_pages * PAGE} tokens is full; raise `kv_tokens`")
        for _ in range(needed):
            if not self._free:
                self.reclaim()
            page = self._free.pop()
            self._references[page] = 1
            sequence.pages.append(page)
        self.peak = max(self.peak, self.n_pages - self.available)
        start, sequence.length = sequence.length, stop
        return sequence.slots(start, stop)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forgets the tokens from `length` on; pages that held nothing else are given back."""
        keep = pages_for(length)
        tail = sequence.pages[keep:]
        sequence.pages, sequence.length = sequence.pages[:keep], length
        self.release(tail)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same tokens: full pages are shared, a partly filled last page is copied."""
        full = sequence.length // PAGE
        child = Sequence(sequence.pages[:full], full * PAGE)
        self.retain(child.pages)
        rest = sequence.length - child.length
        if rest:
            try:
                target = self.extend(child, rest)
            except PoolFull:
                self.free(child)
                raise
            self.copy_slots(sequence.slots(full * PAGE, sequence.length), target)
        return child

    def free(self, sequence: Sequence) -> None:
        """Gives the sequence's pages back."""
        pages, sequence.pages, sequence.length = sequence.pages, [], 0
        self.release(pages)

    def check(self) -> None:
        """Raises AssertionError unless free + held = all, no free page is referenced, and idle pages are counted."""
        held = sum(1 for count in self._references if count > 0)
        assert held + len(self._free) == self.n_pages, (held, len(self._free), self.n_pages)
        assert all(self._references[page] == 0 for page in self._free)
        assert len(set(self._free)) == len(self._free)
        idle = sum(cached and count == 1 for cached, count in zip(self._cached, self._references, strict=True))
        assert idle == self.idle, (idle, self.idle)
