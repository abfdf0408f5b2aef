"""Log-likelihood of continuations, through prefill or through decode.

For continuation tokens c_1..c_m after a context: sum_j log softmax(logits before c_j)[c_j].

Through prefill the context is computed whole and each continuation but its last token follows as a tail. Through decode
the context but its last token is computed and handed over; decode takes that last token and then the continuation
but its last, token by token. A continuation that begins another one needs no run of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from time import perf_counter

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from .arm import Arm
from .jobs import Job, Ticket, deadline_problem, refuse, whole
from .requests import Divergence, RollingRequest, ScoreRequest, ScoreResult, Timings, TokenLogprobs
from .sampling import top_logprobs
from .scheduler import Lane, Prompt, Tail
from .text import Text, foreign_id, hash_ids

Place = tuple[int, int]  # continuation, token in it


@dataclass(frozen=True)
class Span:
    """A context and the continuation that is scored after it, in token ids."""

    context: list[int]
    tokens: list[int]


@dataclass(eq=False)
class Rows:
    """Which places each row of logits of a prompt, tail or lane scores, and for which jobs."""

    jobs: "list[ScoreJob]"
    places: list[list[Place]]


class ScoreJob(Job):
    """One arm's scores of one request.

    Attributes:
        request: What was asked.
        spans: What is scored.
        rows: Everything that works for it.
    """

    request: ScoreRequest | RollingRequest

    def __init__(self, request: ScoreRequest | RollingRequest, arm: Arm, ticket: Ticket, spans: list[Span]):
        super().__init__(request, arm, ticket)
        self.spans, self.rows = spans, list[Rows]()
        self._found: list[list[TokenLogprobs | None]] = [[None] * len(span.tokens) for span in spans]
        self._greedy = [True] * len(spans)
        self._divergences: dict[Place, Divergence] = {}
        self._missing = sum(len(span.tokens) for span in spans)
        self.comparison: Comparison | None = None

    @property
    def top(self) -> int:
        """How many likeliest tokens are wanted."""
        return self.request.top_logprobs if isinstance(self.request, ScoreRequest) else 0

    def owners(self) -> Iterator[object]:
        for rows in self.rows:
            if self in rows.jobs:
                rows.jobs.remove(self)
            if not rows.jobs:
                yield rows

    def compared(self) -> "Sequence[ScoreJob]":
        return () if self.comparison is None else self.comparison.others

    def add(self, place: Place, scored: TokenLogprobs, likeliest: bool, logprobs: Tensor) -> None:
        """Takes one scored token; a second time (after a preemption) changes nothing.

        Args:
            place: Which one.
            scored: The token and its log-probability.
            likeliest: Whether greedy decoding would have written it.
            logprobs: Of all tokens there. Shape: (vocabulary,).
        """
        span, index = place
        if self.done or self._found[span][index] is not None:
            return
        self._found[span][index] = scored
        self._greedy[span] &= likeliest
        self._missing -= 1
        if self.comparison is not None:
            self.comparison.add(self, place, logprobs)
        self.finish_if_complete()

    def diverged(self, place: Place, divergence: Divergence) -> None:
        """Takes the comparison with the reference at one token."""
        self._divergences[place] = divergence

    def finish_if_complete(self) -> None:
        """Gives the result once nothing is missing."""
        comparing = self.comparison is not None and self.comparison.waits_for(self)
        if not self.done and not self._missing and not comparing:
            self.finish(self._result())

    def _asked(self) -> Iterator[int]:
        """What was read and scored: the context (each one where they differ), and the continuations."""
        apart = isinstance(self.request, ScoreRequest) and self.request.contexts
        if not apart:
            yield from (*self.spans[0].context, -1)
        for span in self.spans:
            yield from (*span.context, -1, *span.tokens, -1) if apart else (*span.tokens, -1)

    def _result(self) -> ScoreResult:
        found = [[token for token in span if token is not None] for span in self._found]
        sums = [fsum(token.logprob for token in span) for span in found]
        scored = sum(len(span.tokens) for span in self.spans)
        through = self.request.through
        context, now = self.spans[0].context, perf_counter()
        rolling = isinstance(self.request, RollingRequest)
        compared = self.comparison is not None and self.comparison.reference is not self
        return ScoreResult(
            id=self.request.id,
            arm=self.arm.name,
            logprobs=(fsum(sums),) if rolling else tuple(sums),
            greedy=(all(self._greedy),) if rolling else tuple(self._greedy),
            continuation_tokens=(scored,) if rolling else tuple(len(span.tokens) for span in self.spans),
            tokens=tuple(tuple(span) for span in found) if self.top else None,
            divergences=tuple(
                tuple(self._divergences[i, j] for j in range(len(span.tokens))) for i, span in enumerate(self.spans)
            )
            if compared
            else None,
            prompt_tokens=len(context),
            prompt_sha256=hash_ids(list(self._asked())),
            stage_tokens={"prefill": scored, "decode": 0} if through == "prefill" else {"prefill": 0, "decode": scored},
            handed_over=through == "decode" and any(len(span.context) > 1 for span in self.spans),
            timings=Timings(
                queue_s=self.admitted - self.submitted,
                prefill_s=(self.first_token or now) - self.admitted,
                decode_s=now - (self.first_token or now),
            ),
        )


class Comparison:
    """Whole next-token distributions of several arms against one arm's; one at a token is kept until all have met it.

    Attributes:
        reference: Whose distributions the others' are compared with.
        others: Who is compared.
    """

    def __init__(self, reference: ScoreJob, others: list[ScoreJob]):
        self.reference, self.others = reference, others
        self._references: dict[Place, Tensor] = {}
        self._waiting: dict[Place, list[tuple[ScoreJob, Tensor]]] = defaultdict(list)
        self._met: dict[Place, int] = defaultdict(int)
        self._left = {id(job): sum(len(span.tokens) for span in job.spans) for job in others}
        for job in (reference, *others):
            job.comparison = self

    @property
    def held(self) -> int:
        """Distributions that are kept now."""
        return len(self._references) + sum(map(len, self._waiting.values()))

    def waits_for(self, job: ScoreJob) -> bool:
        """Whether a job still has tokens to be compared."""
        return self._left.get(id(job), 0) > 0

    def add(self, job: ScoreJob, place: Place, logprobs: Tensor) -> None:
        """Takes one arm's distribution at one token. `logprobs` Shape: (vocabulary,)."""
        if job is self.reference:
            if self.others:
                self._references[place] = logprobs.clone()  # not the whole forward's
            for other, theirs in self._waiting.pop(place, []):
                self._compare(other, place, theirs)
                other.finish_if_complete()
        elif place in self._references:
            self._compare(job, place, logprobs)
        else:
            self._waiting[place].append((job, logprobs.clone()))

    def _compare(self, job: ScoreJob, place: Place, logprobs: Tensor) -> None:
        reference, theirs = self._references[place].double(), logprobs.double()
        kl = float((reference.exp() * (reference - theirs)).sum().clamp_min(0))
        job.diverged(place, Divergence(kl, int(reference.argmax()) == int(theirs.argmax())))
        self._left[id(job)] -= 1
        self._met[place] += 1
        if self._met[place] == len(self.others):
            del self._references[place]

    def failed(self, job: Job) -> list[ScoreJob]:
        """Jobs that cannot be compared any more because this one has no answer."""
        return [other for other in self.others if not other.done] if job is self.reference else []


def score_jobs(
    request: ScoreRequest | RollingRequest,
    arms: Sequence[Arm],
    text: Text,
    ticket: Ticket,
    max_length: int,
    window: int,
) -> tuple[list[ScoreJob], list[Prompt]]:
    """Jobs and prompts of a request; none of either, and failures on the ticket, for one that cannot be served.

    Arms that share a prefill stage share what it computes.

    Args:
        request: What is asked.
        arms: Who answers.
        text: The tokenizer.
        ticket: Takes the outcomes.
        max_length: Longest sequence that is served, in tokens.
        window: Tokens of a rolling text's windows.
    """
    try:
        spans = _spans(request, text, window)
        error = _problem(request, spans, arms, max_length)
    except EngineError as unreadable:
        spans, error = [], ("bad_request", str(unreadable))
    if error is not None:
        refuse(ticket, request, list(arms), *error)
        return [], []
    jobs = [ScoreJob(request, arm, ticket, spans) for arm in arms]
    reference = request.compare_with if isinstance(request, ScoreRequest) else None
    if reference is not None:
        chosen = next(job for job in jobs if job.arm.name == reference)
        Comparison(chosen, [job for job in jobs if job is not chosen])
    by_stage: dict[object, list[ScoreJob]] = defaultdict(list)
    for job in jobs:
        by_stage[job.arm.prefill].append(job)
    by_context: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        by_context[tuple(span.context)].append(index)
    make = _prefill_prompt if request.through == "prefill" else _decode_prompt
    prompts = [make(group, list(c), which) for group in by_stage.values() for c, which in by_context.items()]
    return jobs, prompts


def _spans(request: ScoreRequest | RollingRequest, text: Text, window: int) -> list[Span]:
    if isinstance(request, RollingRequest):
        _check_sequence("text", request.text)
        ids = text.encode(request.text) if request.text else []
        return rolling_windows(ids, text.prefix_id, window)
    _check_sequence("context", request.context)
    if isinstance(request.continuations, str) or not isinstance(request.continuations, Sequence):
        raise EngineError(f"continuations is {request.continuations!r:.80}; it must be a list")
    for continuation in request.continuations:
        _check_sequence("a continuation", continuation)
    contexts = request.contexts or [request.context] * len(request.continuations)
    if len(contexts) != len(request.continuations):
        raise EngineError(f"{len(contexts)} contexts for {len(request.continuations)} continuations")
    pairs = [text.encode_pair(context, one) for context, one in zip(contexts, request.continuations, strict=True)]
    return [Span(context, tokens) for context, tokens in pairs]


def _check_sequence(what: str, value: object) -> None:
    if not isinstance(value, Sequence):
        raise EngineError(f"{what} is {value!r:.80}; it must be text or a list of token ids")


def rolling_windows(ids: Sequence[int], prefix_id: int, max_length: int) -> list[Span]:
    """Every token of a text once, each window as long as the model can hold.

    The first window begins after `prefix_id`; a later one scores as many tokens and sees at least one before them, the
    last one more, as many as fit (lm-eval's `get_rolling_token_windows` with `context_len=1`, made disjoint).

    Args:
        ids: Tokens of the text.
        prefix_id: What the first token follows.
        max_length: Most tokens that go into the model: a context and what is scored after it but for its last token.
    """
    spans: list[Span] = []
    for start in range(0, len(ids), max_length):
        stop = min(len(ids), start + max_length)
        before = list(ids[stop - max_length - 1 : start]) if start else [prefix_id]
        spans.append(Span(before, list(ids[start:stop])))
    return spans


def _problem(
    request: ScoreRequest | RollingRequest, spans: list[Span], arms: Sequence[Arm], max_length: int
) -> tuple[str, str] | None:
    if request.through not in ("prefill", "decode"):
        return "bad_request", f"through must be prefill or decode, not {request.through!r}"
    if isinstance(request, RollingRequest) and not spans:
        return "bad_request", "the text is empty"
    if not spans or not all(span.tokens for span in spans):
        return "bad_request", "a continuation has no token of its own"
    if not all(span.context for span in spans):
        return "bad_request", "the context is empty"
    foreign = foreign_id([i for span in spans for i in (*span.context, *span.tokens)], arms[0].vocabulary)
    if foreign is not None:
        return "bad_request", foreign
    if isinstance(request, ScoreRequest):
        names = [arm.name for arm in arms]
        if request.compare_with is not None and request.compare_with not in names:
            return "bad_request", f"compare_with {request.compare_with!r} is not one of the request's arms {names}"
        if not whole(request.top_logprobs, 0, arms[0].vocabulary):
            return "bad_request", f"top_logprobs must be a whole number from 0 to {arms[0].vocabulary}"
    wrong = deadline_problem(request.deadline_s)
    if wrong is not None:
        return "bad_request", wrong
    longest = max(len(span.context) + len(span.tokens) - 1 for span in spans)  # the last one is scored, not read
    if longest > max_length:
        if isinstance(request, RollingRequest):
            return "too_long", f"a window of {longest} tokens exceeds the {max_length} of a pool; raise `kv_tokens`"
        return "too_long", f"{longest + 1} tokens of context and continuation exceed the {max_length} + 1 served"
    return None


def _prefill_prompt(jobs: list[ScoreJob], context: list[int], which: list[int]) -> Prompt:
    spans = jobs[0].spans
    prompt = Prompt(_rows(jobs, [[(i, 0) for i in which]]), jobs[0].arm.prefill, context, logits=True)
    for tokens, members in _runs([(i, spans[i].tokens[:-1]) for i in which if len(spans[i].tokens) > 1]):
        places = [[(i, j + 1) for i in members if j + 1 < len(spans[i].tokens)] for j in range(len(tokens))]
        prompt.tails.append(Tail(_rows(jobs, places), tokens))
    return prompt


def _decode_prompt(jobs: list[ScoreJob], context: list[int], which: list[int]) -> Prompt:
    spans = jobs[0].spans
    prompt = Prompt(None, jobs[0].arm.prefill, context[:-1])
    runs = _runs([(i, spans[i].tokens[:-1]) for i in which])
    for job in jobs:
        for tokens, members in runs:
            places = [[(i, j) for i in members if j < len(spans[i].tokens)] for j in range(len(tokens) + 1)]
            feed = [context[-1], *tokens]
            most = len(context) - 1 + len(feed)
            prompt.lanes.append(Lane(_rows([job], places), job.arm.decode, feed, most, scored=True))
    return prompt


def _rows(jobs: list[ScoreJob], places: list[list[Place]]) -> Rows:
    rows = Rows(list(jobs), places)
    for job in jobs:
        job.rows.append(rows)
    return rows


def _runs(feeds: list[tuple[int, list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Token runs that cover all feeds, and whose feeds each covers: a feed that begins another one shares its run."""
    runs: list[tuple[list[int], list[int]]] = []
    for index, tokens in sorted(feeds, key=lambda feed: -len(feed[1])):
        covering = next((members for run, members in runs if run[: len(tokens)] == tokens), None)
        if covering is None:
            runs.append((tokens, [index]))
        else:
            covering.append(index)
    return runs


def take_logprobs(rows: Tensor, takers: Sequence[tuple[int, Rows, int]]) -> None:
    """Gives jobs the log-probabilities of the tokens that their rows score.

    Args:
        rows: Logits. Shape: (rows, vocabulary), fp32.
        takers: (row, for whom, index of the row among theirs).
    """
    wanted = [
        (k, job, place) for k, (_, of, index) in enumerate(takers) for job in of.jobs for place in of.places[index]
    ]
    if not wanted:
        return
    logits = rows[[row for row, _, _ in takers]]
    likeliest = logits.argmax(dim=-1).tolist()  # as greedy decoding takes it: roundings of logprobs make ties
    logprobs = torch.log_softmax(logits, dim=-1)
    targets = [job.spans[place[0]].tokens[place[1]] for _, job, place in wanted]
    own = logprobs[[k for k, _, _ in wanted], targets].tolist()
    for (k, job, place), target, logprob in zip(wanted, targets, own, strict=True):
        scored = top_logprobs(logits[k], target, job.top) if job.top else TokenLogprobs(target, logprob)
        job.add(place, scored, likeliest[k] == target, logprobs[k])
