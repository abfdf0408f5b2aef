"""Who holds which page. Pure Python: the tensors are `pool.py`'s.

A page is PAGE consecutive tokens of one sequence, all layers. Sequences may share full pages (counted references); a
partly filled page belongs to one sequence alone. A page that only a prefix cache holds is idle: it counts as available
and is taken back when somebody needs it. A page that was found to lie is in quarantine: whoever holds it gives it back,
and nobody gets it again. Invariant: free + held + lost (in quarantine, and held by nobody) = all.

Each allocation gives a page a new tag, which its sequence remembers: what a sequence holds is what its tags say, should
its page numbers ever say something else.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from evalsvc.errors import EngineError

from .tags import TAGS, Issuer

PAGE = 16


class PoolFull(EngineError):
    """No free page; the request waits or is refused, nothing is overwritten."""


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are in pages.

    Attributes:
        pages: In order of position.
        length: Tokens written.
        tags: By page the tag that its slots are to have.
    """

    pages: list[int] = field(default_factory=list)
    length: int = 0
    tags: list[int] = field(default_factory=list)

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
        spare: Pages behind those, which nobody ever holds: what fills captured decode steps up is written there.
        tags: By page the tag of its last allocation.
        idle: Pages that a cache holds and nobody else.
        peak: Most pages that were ever held.
        quarantined: Pages that nobody gets again.
        reclaim: Called when free pages run out, to give one idle page back; set by a cache.
        forget: Called with a page that is not to be served again; set by a cache.
    """

    def __init__(self, tokens: int, issuer: Issuer = TAGS, spare: int = 0):
        """Args: `tokens` is the capacity, rounded up to whole pages; `issuer` gives tags; `spare` as in the class."""
        self.n_pages, self.spare = pages_for(tokens), spare
        self.tags = [0] * self.n_pages
        self.quarantined: set[int] = set()
        self._lost = 0
        self._issuer = issuer
        issuer.register(self)
        self._free = list(range(self.n_pages - 1, -1, -1))
        self._references = [0] * self.n_pages
        self._cached = [False] * self.n_pages
        self.idle = 0
        self.peak = 0
        self.reclaim: Callable[[], None] = self._nothing_to_reclaim
        self.forget: Callable[[int], None] = lambda page: None

    @staticmethod
    def _nothing_to_reclaim() -> None:
        raise PoolFull("no idle page")

    def held_tags(self) -> set[int]:
        """Tags that may not be issued again."""
        return set(self.tags)

    def copy_slots(self, source: list[int], target: list[int]) -> None:
        """Copies what is stored; without tensors there is nothing to copy."""

    def copy_stamps(self, source: list[int], target: list[int], start: int, old_tag: int, new_tag: int) -> None:
        """Stamps what `copy_slots` copied as its new holder's; without tensors there are no stamps.

        Args:
            source: Slots of one page.
            target: As many, of another page.
            start: Position of the first one.
            old_tag: What the source's holder expects there.
            new_tag: Of the target's page.
        """

    @property
    def n_slots(self) -> int:
        """Slots of all pages, spare ones included."""
        return (self.n_pages + self.spare) * PAGE

    @property
    def usable_pages(self) -> int:
        """Pages that can be had when nobody holds any."""
        return self.n_pages - len(self.quarantined)

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
                if page in self.quarantined:
                    self._lost += 1
                else:
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

    def quarantine(self, page: int) -> None:
        """Nobody gets a page again, and a cache serves it no more. Who holds it may go on."""
        if page in self.quarantined:
            return
        self.quarantined.add(page)
        if self._references[page] == 0:
            self._free.remove(page)
            self._lost += 1
        self.forget(page)

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
            self.tags[page] = self._issuer.issue()
            sequence.pages.append(page)
            sequence.tags.append(self.tags[page])
        self.peak = max(self.peak, self.n_pages - self._lost - self.available)
        start, sequence.length = sequence.length, stop
        return sequence.slots(start, stop)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forgets the tokens from `length` on; pages that held nothing else are given back."""
        keep = pages_for(length)
        tail = self.held_by(sequence.pages[keep:], sequence.tags[keep:])
        sequence.pages, sequence.tags, sequence.length = sequence.pages[:keep], sequence.tags[:keep], length
        self.release(tail)

    def held_by(self, pages: Seq[int], tags: Seq[int]) -> list[int]:
        """The pages that tags say, whatever the page numbers beside them are."""
        return [page if self.tags[page] == tag else self.tags.index(tag) for page, tag in zip(pages, tags, strict=True)]

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same tokens: full pages are shared, a partly filled last page is copied."""
        full = sequence.length // PAGE
        child = Sequence(sequence.pages[:full], full * PAGE, sequence.tags[:full])
        self.retain(self.held_by(child.pages, child.tags))
        rest = sequence.length - child.length
        if rest:
            try:
                target = self.extend(child, rest)
            except PoolFull:
                self.free(child)
                raise
            source = sequence.slots(full * PAGE, sequence.length)
            self.copy_slots(source, target)
            self.copy_stamps(source, target, full * PAGE, sequence.tags[full], child.tags[full])
        return child

    def free(self, sequence: Sequence) -> None:
        """Gives the sequence's pages back."""
        pages = self.held_by(sequence.pages, sequence.tags)
        sequence.pages, sequence.tags, sequence.length = [], [], 0
        self.release(pages)

    def check(self) -> None:
        """Raises AssertionError unless free + held + lost = all, no free page is referenced, and idle ones count."""
        held = sum(1 for count in self._references if count > 0)
        lost = sum(1 for page in self.quarantined if self._references[page] == 0)
        assert lost == self._lost and not self.quarantined & set(self._free), (lost, self._lost)
        assert held + len(self._free) + lost == self.n_pages, (held, len(self._free), lost, self.n_pages)
        assert all(self._references[page] == 0 for page in self._free)
        assert len(set(self._free)) == len(self._free)
        idle = sum(cached and count == 1 for cached, count in zip(self._cached, self._references, strict=True))
        assert idle == self.idle, (idle, self.idle)
