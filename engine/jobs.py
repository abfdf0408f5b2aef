"""What the loop knows of an answer that is being made: whose it is, when it began, how it fails."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from .arm import Arm
from .requests import (
    FinishReason,
    GenerateRequest,
    GenerateResult,
    Incident,
    Request,
    RequestFailure,
    ScoreResult,
    TextPiece,
)

Outcome = GenerateResult | ScoreResult | RequestFailure


@dataclass(eq=False)
class Ticket:
    """Requests that were asked together.

    Attributes:
        jobs: Those that have no outcome yet.
        outcomes: Those that nobody has taken yet.
        streaming: Whether pieces of text are wanted before an answer is finished.
    """

    streaming: bool = False
    jobs: "dict[Job, None]" = field(default_factory=dict)
    outcomes: deque[Outcome | TextPiece] = field(default_factory=deque)


class Job:
    """One arm's answer to one request, and which of its samples.

    Attributes:
        done: Whether it has its outcome.
        admitted: When its prompt was first computed, 0.0 before.
        first_token: When prefill was done with it, 0.0 before.
    """

    def __init__(self, request: Request, arm: Arm, ticket: Ticket, sample: int = 0):
        self.request, self.arm, self.ticket, self.sample = request, arm, ticket, sample
        self.submitted = perf_counter()
        self.admitted = 0.0
        self.first_token = 0.0
        self.done = False
        ticket.jobs[self] = None

    def owners(self) -> Iterator[object]:
        """Under whose names the scheduler knows its prompts and lanes."""
        yield self

    @property
    def written(self) -> tuple[int, ...]:
        """Tokens that were generated so far."""
        return ()

    def compared(self) -> "Sequence[Job]":
        """Jobs whose outcome can hang on this one's."""
        return ()

    def overdue(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.request.deadline_s is not None and now - self.submitted > self.request.deadline_s

    def finish(self, outcome: Outcome) -> None:
        """Gives the outcome, once. Who waits in another thread finds the job or its outcome at every moment."""
        assert not self.done
        self.done = True
        self.ticket.outcomes.append(outcome)
        del self.ticket.jobs[self]

    def fail(self, error: str, message: str, reason: FinishReason = "error", incident: Incident | None = None) -> None:
        """Gives a failure, unless there is an outcome already."""
        if not self.done:
            failure = RequestFailure(
                id=self.request.id,
                arm=self.arm.name,
                sample=self.sample,
                error=error,
                message=message,
                finish_reason=reason,
                token_ids=self.written,
                incident=incident,
            )
            self.finish(failure)


def whole(value: object, least: int, most: float = inf) -> bool:
    """Whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def deadline_problem(seconds: object) -> str | None:
    """What is wrong with a deadline; None when nothing is."""
    fine = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0
    return None if seconds is None or fine else f"deadline_s is {seconds!r}; it must be a number from 0"


def refuse(ticket: Ticket, request: Request, arms: list[Arm], error: str, message: str) -> None:
    """One failure for each answer that a request will not get."""
    samples = request.n if isinstance(request, GenerateRequest) and whole(request.n, 1) else 1
    for arm in arms:
        for sample in range(samples):
            Job(request, arm, ticket, sample).fail(error, message)
