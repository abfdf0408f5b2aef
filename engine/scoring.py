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
from .comparing import Comparison
from .jobs import Job, Ticket, refuse
from .prompts import Lane, Prompt, Tail
from .requests import Divergence, RollingRequest, ScoreRequest, ScoreResult, Timings, TokenLogprobs
from .sampling import top_logprobs
from .spans import Place, Span, problem_of, spans_of
from .text import Text, hash_ids


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
        spans = spans_of(request, text, window)
        error = problem_of(request, spans, arms, max_length)
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
