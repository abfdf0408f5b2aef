"""What is scheduled: prompts for a prefill stage, and the lanes and tails that go on from them."""

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

from .kv.pages import PAGE, Pages, Sequence, pages_for
from .kv.prefix import PrefixCache


class Memory(Protocol):
    """What the scheduler sees of a stage."""

    key: str
    pool: Any  # Pages
    cache: PrefixCache


@dataclass(eq=False)
class Lane:
    """One answer in a decode stage.

    Attributes:
        owner: Whose answer.
        stage: The decode stage.
        feed: Tokens to go through decode that are known so far.
        most: Tokens that it may ever hold, its prompt included.
        scored: Whether the logits after every token are wanted, or only after the last one known.
        fed: How many of `feed` are in `sequence`, after the prompt.
        sequence: Pages in the decode stage's pool.
    """

    owner: Any
    stage: Memory
    feed: list[int]
    most: int
    scored: bool = False
    fed: int = 0
    sequence: Sequence = field(default_factory=Sequence)
    prompt: "Prompt | None" = None
    arrival: int = -1

    @property
    def wants_logits(self) -> bool:
        """Whether the logits after the next token are wanted."""
        return self.scored or self.fed == len(self.feed) - 1


@dataclass(eq=False)
class Tail:
    """Tokens that follow a prompt in its prefill stage; the logits after each are wanted.

    The last tail of a prompt goes on in the prompt's own pages, any other one in a fork of them.
    """

    owner: Any
    tokens: Seq[int]
    sequence: Sequence | None = None
    computed: int = 0
    prompt: "Prompt | None" = None


@dataclass(eq=False)
class Prompt:
    """Tokens for a prefill stage.

    Attributes:
        owner: Whose prompt.
        stage: The prefill stage.
        ids: May be empty when a lane starts from nothing.
        lanes: Answers that go on from it in decode stages.
        tails: Continuations that go on from it in its own stage.
        logits: Whether the logits after its last token are wanted.
        sequence: Pages in the prefill stage's pool.
        ready: All of it is computed, and its lanes have their pages.
    """

    owner: Any
    stage: Memory
    ids: Seq[int]
    lanes: list[Lane] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    logits: bool = False
    sequence: Sequence = field(default_factory=Sequence)
    ready: bool = False
    arrival: int = -1

    def tail_pages(self) -> int:
        """Pages that the largest tail which has none yet needs beyond the prompt's."""
        longest = max((len(tail.tokens) for tail in self.tails if tail.sequence is None), default=0)
        return self.pages_of(longest) if longest else 0

    def pages_of(self, tail_tokens: int) -> int:
        """Pages that a tail of so many tokens needs beyond the prompt's."""
        kept = pages_for(len(self.ids)) if len(self.tails) == 1 else len(self.ids) // PAGE
        return pages_for(len(self.ids) + tail_tokens) - kept

    def needs(self) -> dict[Any, int]:
        """Pages of each pool from admission to the first decoded token, what it already holds included."""
        needs: dict[Any, int] = defaultdict(int)
        needs[self.stage.pool] += pages_for(len(self.ids)) + self.tail_pages()
        for lane in self.lanes:
            shared = len(self.ids) // PAGE if needs.get(lane.stage.pool) else 0  # lanes of one pool share full pages
            needs[lane.stage.pool] += pages_for(len(self.ids) + max(1, len(lane.feed))) - shared
        return needs

    def owes(self, pool: Pages) -> int:
        """Pages of a pool that are kept for it: what it needs and does not hold yet."""
        if pool is self.stage.pool:
            running = [(tail, tail.sequence) for tail in self.tails if tail.sequence is not None]
            growing = sum(pages_for(len(self.ids) + len(t.tokens)) - len(s.pages) for t, s in running)
            given_back = sum(len(s.pages) - len(self.ids) // PAGE for _, s in running)
            own = 0 if self.ready else pages_for(len(self.ids)) - len(self.sequence.pages)
            return own + max(growing, self.tail_pages() - given_back)
        own = [len(lane.sequence.pages) for lane in self.lanes if lane.stage.pool is pool]
        return max(0, self.needs()[pool] - max(own)) if own else 0


@dataclass(frozen=True)
class Piece:
    """Tokens of a prompt or a tail for the next forward of its stage.

    Attributes:
        of: Whose tokens.
        sequence: Holds everything before them.
        logits: How many of the last tokens need logits.
    """

    of: Prompt | Tail
    prompt: Prompt
    sequence: Sequence
    tokens: Seq[int]
    logits: int


def parts(prompt: Prompt) -> list[Prompt]:
    """One prompt for each lane and tail; the first gives the prompt's own logits."""
    lanes = [Prompt(prompt.owner, prompt.stage, prompt.ids, [lane], [], prompt.logits) for lane in prompt.lanes]
    tails = [Prompt(tail.owner, prompt.stage, prompt.ids, [], [tail]) for tail in prompt.tails]
    if tails and not lanes:
        tails[0].owner, tails[0].logits = prompt.owner, prompt.logits
    return [*lanes, *tails]


def largest(prompt: Prompt) -> list[tuple[int, Any]]:
    """Tokens that it, and each of its lanes, may ever hold, and the pools that hold them."""
    longest = max((len(tail.tokens) for tail in prompt.tails), default=0)
    own = (len(prompt.ids) + longest, prompt.stage.pool)
    return [own, *((lane.most, lane.stage.pool) for lane in prompt.lanes)]
