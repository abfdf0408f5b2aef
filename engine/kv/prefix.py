"""Full pages of earlier prompts, found again by a chained hash and by their tokens. Pure Python.

    key of a block = hash(key of the block before it, its PAGE token ids)

A block is served only when its own tokens and the block before it are equal too, so that a collision is a miss, never
another prompt's page. Pages that only the cache holds are idle; the least recently used is given back first. A block
is always used together with all blocks before it, so what follows the oldest idle one is idle and gone before it, but
for pages whose holder computed that block a second time by itself: they leave the cache with it.
"""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from .pages import PAGE, Pages, Sequence

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Block:
    """One cached page, its tag, and the tokens whose keys and values it holds; a root has none of them."""

    key: int
    tokens: Tokens = ()
    page: int = -1
    tag: int = 0
    before: "Block | None" = None
    after: "set[Block]" = field(default_factory=set)


class PrefixCache:
    """The cached pages of one pool.

    Attributes:
        hit_tokens: Tokens that were served instead of computed.
        missed_tokens: Tokens that were asked for and had to be computed.
    """

    def __init__(self, pages: Pages, chain: Callable[[tuple[int, Tokens]], int] = hash):
        """Args: `chain` makes a block's key from the key before it and its tokens."""
        self._pages, self._chain = pages, chain
        self._blocks: OrderedDict[int, Block] = OrderedDict()  # least recently used first
        self._roots: dict[str, Block] = {}
        self.hit_tokens = 0
        self.missed_tokens = 0
        pages.reclaim, pages.forget = self._reclaim, self._forget_page

    def __len__(self) -> int:
        return len(self._blocks)

    def peek(self, ids: Seq[int], limit: int, source: str = "") -> tuple[int, int]:
        """How many full pages of the first `limit` ids are here, and how many of these are idle."""
        blocks = self._find(ids, limit, source)
        return len(blocks), sum(self._pages.references(block.page) == 1 for block in blocks)

    def take(self, ids: Seq[int], limit: int, source: str = "", partly: bool = False, counted: bool = True) -> Sequence:
        """A sequence that holds what is here of the first `limit` ids.

        Args:
            ids: A prompt.
            limit: Most tokens wanted. A prompt is never served whole: who wants its logits asks one less.
            source: Which prefill stage computed the pages.
            partly: Also copy the leading tokens of a page that differs further on.
            counted: Whether this is the time that counts, for who asks twice.
        """
        blocks = self._find(ids, limit, source)
        pages, tags = [block.page for block in blocks], [block.tag for block in blocks]
        sequence = Sequence(pages, len(blocks) * PAGE, tags)
        self._pages.retain(pages)
        last = blocks[-1] if blocks else self._root(source)
        if partly:
            self._copy_part(last, tuple(ids[sequence.length : limit]), sequence)
        self._touch(last)
        if counted:
            self.hit_tokens += sequence.length
            self.missed_tokens += limit - sequence.length
        return sequence

    def put(self, ids: Seq[int], sequence: Sequence, source: str = "") -> None:
        """Keeps full pages of a sequence that holds the first `sequence.length` of `ids`, up to one in quarantine."""
        last = self._root(source)
        for index in range(sequence.length // PAGE):
            tokens = tuple(ids[index * PAGE : (index + 1) * PAGE])
            key = self._chain((last.key, tokens))
            held = self._blocks.get(key)
            if held is None:
                if sequence.pages[index] in self._pages.quarantined:
                    break  # it has left the cache, and a holder that goes on must not bring it back
                held = Block(key, tokens, sequence.pages[index], sequence.tags[index], last)
                last.after.add(held)
                self._blocks[key] = held
                self._pages.cache(held.page)
            elif held.before is not last or held.tokens != tokens:
                break  # another block has this key; nothing after it can be found either
            last = held
        self._touch(last)

    def forget(self, ids: Seq[int], source: str = "") -> None:
        """Lets go of all pages that `ids` would be served, and of all that follow them."""
        for block in self._find(ids, len(ids), source)[:1]:
            self._drop(block)

    def drop_all(self) -> int:
        """Lets go of every page and returns how many there were."""
        dropped = len(self._blocks)
        for block in self._blocks.values():
            self._pages.uncache(block.page)
        self._blocks.clear()
        self._roots.clear()
        return dropped

    def _root(self, source: str) -> Block:
        return self._roots.setdefault(source, Block(hash(source)))

    def _find(self, ids: Seq[int], limit: int, source: str) -> list[Block]:
        found: list[Block] = []
        last = self._root(source)
        for start in range(0, limit - PAGE + 1, PAGE):
            tokens = tuple(ids[start : start + PAGE])
            block = self._blocks.get(self._chain((last.key, tokens)))
            if block is None or block.before is not last or block.tokens != tokens:
                break
            found.append(block)
            last = block
        return found

    def _copy_part(self, last: Block, rest: Tokens, sequence: Sequence) -> None:
        best, count = None, 0
        for block in last.after:
            if count < len(rest) and block.tokens[: count + 1] == rest[: count + 1]:  # it shares more
                best, count = block, _common(block.tokens, rest)
        if best is None or not self._pages.available:
            return
        self._pages.retain([best.page])  # or making room could take it
        try:
            if self._pages.available:
                start = sequence.length
                target = self._pages.extend(sequence, count)
                source = list(range(best.page * PAGE, best.page * PAGE + count))
                self._pages.copy_slots(source, target)
                self._pages.copy_stamps(source, target, start, best.tag, sequence.tags[-1])
        finally:
            self._pages.release([best.page])

    def _drop(self, block: Block) -> None:
        """Lets go of a block and of all that follow it, which nobody could find any more."""
        if block.before is not None:
            block.before.after.discard(block)
        blocks = [block]
        while blocks:
            block = blocks.pop()
            blocks += block.after
            del self._blocks[block.key]
            self._pages.uncache(block.page)

    def _forget_page(self, page: int) -> None:
        """Lets go of a page, and of all that follow it."""
        for block in self._blocks.values():
            if block.page == page:
                self._drop(block)
                return

    def _touch(self, block: Block | None) -> None:
        while block is not None and block.before is not None:
            self._blocks.move_to_end(block.key)
            block = block.before

    def _reclaim(self) -> None:
        for block in self._blocks.values():
            if self._pages.references(block.page) == 1:
                self._drop(block)
                return
        raise AssertionError("pages are counted as idle, and the cache knows none")


def _common(ours: Tokens, theirs: Tokens) -> int:
    """How many leading tokens are equal."""
    count = 0
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            break
        count += 1
    return count
