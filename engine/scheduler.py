"""Which prompts and which lanes run next. Pure Python, no torch: tested without a model.

A `Prompt` is computed by a prefill stage in chunks. From there it either goes on in that stage (`Tail`: a continuation
to be scored) or is handed over to decode stages (`Lane`: an answer written, or scored, token by token).

- Decode first: every running lane gets its next token, then prompts get what is left of a step.
- A prompt is admitted, first come first served, when each pool has the pages that it needs to be computed and handed
  over; how long its answer becomes is not known, so lanes grow into what is free.
- When a lane finds no page, what came last in its pool is preempted: its pages are given back, its prompt comes again
  from prefill, and the tokens that it had are fed again through decode.
- Who came first is never preempted and fits alone (checked when it is submitted), so everything ends.
- A prompt waits while another one is computing pages that it could use.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import count
from typing import Any

from .kv.pages import PAGE, Pages, PoolFull, Sequence, pages_for
from .prompts import Lane, Memory, Piece, Prompt, Tail, largest, parts


class Scheduler:
    """Order of work over the stages of one engine.

    Attributes:
        preemptions: How often pages were taken from what had them.
    """

    def __init__(self, max_batch: int, chunk: int, logit_rows: int = 512):
        """An empty scheduler.

        Args:
            max_batch: Most lanes in a decode stage, and most prompts under way.
            chunk: Most tokens in a prefill forward.
            logit_rows: About how many rows of logits a prefill forward may give.
        """
        if min(max_batch, chunk, logit_rows) < 1:
            raise ValueError("a scheduler needs at least one lane, one token and one row of logits")
        self.max_batch, self.chunk, self.logit_rows = max_batch, chunk, logit_rows
        self._waiting: list[Prompt] = []
        self._active: list[Prompt] = []
        self._lanes: dict[Memory, list[Lane]] = {}
        self._works_for: dict[Any, list[Prompt | Lane]] = defaultdict(list)
        self._arrivals = count()
        self.preemptions = 0

    # -- in and out ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._active or self._lanes)

    def counts(self) -> dict[str, int]:
        """How much waits and runs."""
        lanes = sum(len(lanes) for lanes in self._lanes.values())
        return {"waiting": len(self._waiting), "prefilling": len(self._active), "decoding": lanes}

    def submit(self, prompt: Prompt) -> None:
        """Queues a prompt; lanes or tails that do not fit side by side are queued one after the other.

        Raises:
            PoolFull: It could not even run alone; nothing is queued.
        """
        for tokens, pool in largest(prompt):
            if pages_for(tokens) > pool.usable_pages:
                raise PoolFull(_too_large(tokens, pool))
        together = all(need <= pool.usable_pages for pool, need in prompt.needs().items())
        most = max((sum(o.stage is lane.stage for o in prompt.lanes) for lane in prompt.lanes), default=0)
        for part in [prompt] if together and most <= self.max_batch else parts(prompt):
            part.arrival = next(self._arrivals)
            if part.owner is not None:
                self._works_for[part.owner].append(part)
            for lane in part.lanes:
                lane.prompt, lane.arrival = part, part.arrival
                self._works_for[lane.owner].append(lane)
            for tail in part.tails:
                tail.prompt = part
            self._waiting.append(part)

    def remove(self, owner: Any) -> None:
        """Forgets everything of an owner, wherever it is, and gives its pages back."""
        for one in self._works_for.pop(owner, []):
            if isinstance(one, Prompt):
                self._withdraw(one)
            else:
                self.end(one)
                if one.prompt is not None and one.prompt.owner is None and not one.prompt.lanes:
                    self._withdraw(one.prompt)

    def _withdraw(self, prompt: Prompt) -> None:
        if prompt.ready and not prompt.tails:
            return  # it has ended
        self._let_go(prompt)
        for queue in (self._active, self._waiting):
            if prompt in queue:
                queue.remove(prompt)
                return

    def end(self, lane: Lane) -> None:
        """A lane is done: its pages are given back."""
        lane.stage.pool.free(lane.sequence)
        running = self._lanes.get(lane.stage, [])
        if lane in running:
            running.remove(lane)
            if not running:
                del self._lanes[lane.stage]
        elif lane.prompt is not None and lane in lane.prompt.lanes:
            lane.prompt.lanes.remove(lane)

    def oldest(self) -> Prompt | None:
        """The prompt that came first of those that are not handed over yet."""
        return min([*self._active, *self._waiting[:1]], key=lambda prompt: prompt.arrival, default=None)

    def reading(self, pool: Pages) -> list[Sequence]:
        """Sequences of a pool that the next forwards read."""
        lanes = [lane.sequence for running in self._lanes.values() for lane in running if lane.stage.pool is pool]
        prompts = [prompt for prompt in self._active if prompt.stage.pool is pool]
        own = [prompt.sequence for prompt in prompts if not prompt.ready]
        tails = [tail.sequence for prompt in prompts for tail in prompt.tails if tail.sequence is not None]
        return [sequence for sequence in (*lanes, *own, *tails) if sequence.length]

    def misfits(self) -> list[tuple[Prompt | Lane, str]]:
        """What can never run any more, since pages of its pool went into quarantine, and why."""
        found: list[tuple[Prompt | Lane, str]] = []
        lanes = [lane for running in self._lanes.values() for lane in running]
        for one in [*self._active, *self._waiting, *lanes]:
            needs = [(one.most, one.stage.pool)] if isinstance(one, Lane) else largest(one)
            found += [(one, _too_large(n, pool)) for n, pool in needs if pages_for(n) > pool.usable_pages][:1]
        return found

    # -- decode --------------------------------------------------------------------------------------------------------

    def next_lanes(self) -> dict[Memory, list[Lane]]:
        """Lanes that take a token now; there is a page for each."""
        for stage in list(self._lanes):
            pool = stage.pool
            while stage in self._lanes and pool.available < self._owed(pool) + sum(
                lane.sequence.length % PAGE == 0 for lane in self._lanes[stage]
            ):
                self._preempt_last(stage)
        return {stage: list(lanes) for stage, lanes in self._lanes.items()}

    def _preempt_last(self, stage: Memory) -> None:
        prompts = [p for p in self._active if any(lane.stage is stage for lane in p.lanes)]
        last = max([*reversed(self._lanes[stage]), *prompts], key=lambda one: one.arrival)
        self.preemptions += 1
        if isinstance(last, Prompt):
            self._active.remove(last)
            self._let_go(last)
            insort(self._waiting, last, key=lambda prompt: prompt.arrival)
            return
        origin = last.prompt
        assert origin is not None
        self.end(last)
        last.fed = 0
        again = Prompt(origin.owner, origin.stage, origin.ids, [last], arrival=last.arrival)
        last.prompt = again
        insort(self._waiting, again, key=lambda prompt: prompt.arrival)

    # -- prefill -------------------------------------------------------------------------------------------------------

    def next_pieces(self) -> dict[Memory, list[Piece]]:
        """Tokens that prefill stages compute now: of prompts under way, of tails, of prompts admitted now."""
        pieces: dict[Memory, list[Piece]] = defaultdict(list)
        for prompt in self._active:
            pieces[prompt.stage] += self._pieces_of(prompt, pieces[prompt.stage])
        for prompt in self._admitted(pieces):
            pieces[prompt.stage] += self._pieces_of(prompt, pieces[prompt.stage])
        return {stage: found for stage, found in pieces.items() if found}

    def computed(self, piece: Piece) -> None:
        """A piece went through its stage: full pages are kept for others, and what is complete moves on."""
        prompt = piece.prompt
        if isinstance(piece.of, Prompt):
            prompt.stage.cache.put(prompt.ids, prompt.sequence)
            return
        piece.of.computed += len(piece.tokens)
        if piece.of.computed == len(piece.of.tokens):
            prompt.stage.pool.free(piece.sequence)
            prompt.tails.remove(piece.of)
            if not prompt.tails:
                self._retire(prompt)

    def complete(self) -> list[Prompt]:
        """Prompts that are computed and whose lanes wait for their pages."""
        return [p for p in self._active if not p.ready and p.sequence.length == len(p.ids)]

    def start(self, prompt: Prompt) -> None:
        """A complete prompt's lanes, which hold its pages now, run; without tails its own pages are given back."""
        prompt.ready = True
        for lane in prompt.lanes:
            self._lanes.setdefault(lane.stage, []).append(lane)
        prompt.lanes = []
        if not prompt.tails:
            self._retire(prompt)

    def _pieces_of(self, prompt: Prompt, others: list[Piece]) -> list[Piece]:
        return list(self._each_piece(prompt, self._room(others), self.logit_rows - sum(p.logits for p in others)))

    def _each_piece(self, prompt: Prompt, room: int, rows: int) -> Iterator[Piece]:
        done = prompt.sequence.length
        if not prompt.ready and done < len(prompt.ids):
            tokens = prompt.ids[done : done + room]
            if tokens:
                ends = done + len(tokens) == len(prompt.ids)
                yield Piece(prompt, prompt, prompt.sequence, tokens, int(ends and prompt.logits))
            return
        for tail in prompt.tails if prompt.ready else []:
            if min(room, rows) < 1 or not self._start_tail(prompt, tail):
                return
            assert tail.sequence is not None
            tokens = tail.tokens[tail.computed : tail.computed + min(room, rows)]
            room, rows = room - len(tokens), rows - len(tokens)
            yield Piece(tail, prompt, tail.sequence, tokens, len(tokens))

    def _start_tail(self, prompt: Prompt, tail: Tail) -> bool:
        """The pages of one tail are kept for each prompt; more tails run where nothing is owed to others."""
        if tail.sequence is None:
            pool = prompt.stage.pool
            alone = not any(other.sequence is not None for other in prompt.tails)
            kept = prompt.tail_pages() if alone else 0
            if pool.available < self._owed(pool) - kept + prompt.pages_of(len(tail.tokens)):
                return False
            if len(prompt.tails) > 1:
                tail.sequence = pool.fork(prompt.sequence)
            else:
                tail.sequence, prompt.sequence = prompt.sequence, Sequence()
        return True

    def _admitted(self, pieces: dict[Memory, list[Piece]]) -> Iterator[Prompt]:
        for prompt in self._waiting[: 4 * self.max_batch]:
            if len(self._active) >= self.max_batch or not self._room(pieces[prompt.stage]):
                return
            if prompt.lanes and not self._worth_admitting():
                return
            if self._is_being_computed(prompt):
                continue
            if not self._has_places(prompt) or not self._fits(prompt):
                return
            self._waiting.remove(prompt)
            insort(self._active, prompt, key=lambda one: one.arrival)
            prompt.sequence = prompt.stage.cache.take(prompt.ids, max(0, len(prompt.ids) - 1), partly=True)
            for lane in prompt.lanes:  # what was handed over before stays where it is
                lane.sequence = lane.stage.cache.take(prompt.ids, len(prompt.ids), prompt.stage.key, counted=False)
            yield prompt

    def _worth_admitting(self) -> bool:
        """Answers come in when a quarter of the places is free: one short prompt alone costs as much as many."""
        fullest = max((len(lanes) for lanes in self._lanes.values()), default=0)
        return bool(self._active) or fullest == 0 or (self.max_batch - fullest) * 4 >= self.max_batch

    def _has_places(self, prompt: Prompt) -> bool:
        for lane in prompt.lanes:
            coming = sum(other.stage is lane.stage for one in [prompt, *self._active] for other in one.lanes)
            if len(self._lanes.get(lane.stage, ())) + coming > self.max_batch:
                return False
        return True

    def _fits(self, prompt: Prompt) -> bool:
        for pool, need in prompt.needs().items():
            matched, idle = 0, 0
            if pool is prompt.stage.pool:
                matched, idle = prompt.stage.cache.peek(prompt.ids, max(0, len(prompt.ids) - 1))
            for lane in prompt.lanes:
                if lane.stage.pool is pool:
                    matched, idle = lane.stage.cache.peek(prompt.ids, len(prompt.ids), prompt.stage.key)
                    break
            if pool.available - idle - self._owed(pool) < need - matched:
                return False
        return True

    def _is_being_computed(self, prompt: Prompt) -> bool:
        """Whether a prompt under way is about to leave full pages that this one shares."""
        known = -1
        for other in self._active:
            if other.stage is not prompt.stage or other.ready or other.sequence.length == len(other.ids):
                continue
            shared = _common_pages(prompt.ids, other.ids)
            if shared * PAGE > other.sequence.length // PAGE * PAGE:
                known = prompt.stage.cache.peek(prompt.ids, len(prompt.ids) - 1)[0] if known < 0 else known
                if shared > known:
                    return True
        return False

    def _room(self, pieces: list[Piece]) -> int:
        return self.chunk - sum(len(piece.tokens) for piece in pieces)

    def _owed(self, pool: Pages) -> int:
        return sum(prompt.owes(pool) for prompt in self._active)

    def _retire(self, prompt: Prompt) -> None:
        self._active.remove(prompt)
        self._let_go(prompt)

    def _let_go(self, prompt: Prompt) -> None:
        pool = prompt.stage.pool
        pool.free(prompt.sequence)
        for lane in prompt.lanes:
            lane.stage.pool.free(lane.sequence)
        for tail in prompt.tails:
            if tail.sequence is not None:
                pool.free(tail.sequence)
            tail.sequence, tail.computed = None, 0


def _common_pages(ours: Seq[int], theirs: Seq[int]) -> int:
    """Full pages with which both begin, the last token of `ours` left out: it is always computed."""
    most = min(len(ours) - 1, len(theirs)) // PAGE
    for page in range(most):
        span = slice(page * PAGE, (page + 1) * PAGE)
        if ours[span] != theirs[span]:
            return page
    return max(0, most)


def _too_large(tokens: int, pool: Pages) -> str:
    lost = f", {len(pool.quarantined) * PAGE} of them in quarantine" if pool.quarantined else ""
    return f"{tokens} tokens do not fit in the KV pool of {pool.n_pages * PAGE}{lost}; raise `kv_tokens`"
