"""What a suite is: items, the request each item becomes, and the scores of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from evalsvc.engine.requests import Answer, GenerateRequest, RollingRequest, ScoreRequest

Asked: TypeAlias = GenerateRequest | ScoreRequest | RollingRequest


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing asked.

    Attributes:
        id: Unique inside the suite and stable across runs.
        family: The row it is described in (a task, a category).
        cluster: What may make items flip together: few-shot prefix, subject, conversation. Empty when independent.
        sha256: Hash of everything the item's score depends on (document, target, tools), not of its rendering.
        metric: Name of the metric that the verdict reads: right or wrong, or a fraction from 0 to 1. One in units of
            its own, or of the whole corpus, is judged only by a policy's rule about it. Empty for an item that carries
            no verdict.
        filter: Name of the answer filter that this metric reads (lm-eval's filters; `none` elsewhere).
        chance: Proportion that a random answer gets right.
        right_answer: What is right as text, for people; None where a case file or the choices say it.
        gold: Index of the right choice of a log-likelihood item; None where there is none, or more than one.
        repeats: Times that it is asked; each is a sample of its own, and they are averaged inside the item.
        scored_by: `loglikelihood` (may be scored through either stage) or `generation`.
        payload: The suite's own document.
    """

    id: str
    family: str
    cluster: str
    sha256: str
    metric: str
    filter: str = "none"
    chance: float = 0.0
    scored_by: str = "generation"
    right_answer: str | None = None
    gold: int | None = None
    repeats: int = 1
    payload: Any = field(default=None, compare=False, hash=False)


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one answer. `error_class` says how an answer was wrong (`not_json`, `wrong_value`, ...).

    `filtered` is what the filter left of a generated answer, None where that is the answer itself.
    """

    metric: str
    value: float
    filter: str = "none"
    error_class: str | None = None
    filtered: str | None = None


class Suite(Protocol):
    """A named set of items. `scoring_version` changes whenever the same answer could get another score."""

    name: str
    scoring_version: str

    def items(self) -> Sequence[Item]:
        """All items, in the order of their files."""
        ...

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Asked | None:
        """The request to make after these answers; None when the item is complete.

        Log-likelihood requests leave `through` at its default; the runner asks through each stage. Sampled ones leave
        `seed` at its default; the runner derives it. Each arm has answers of its own, and so requests of its own from
        the second one on.
        """
        ...

    def score(self, item: Item, answers: Sequence[Answer]) -> Sequence[Score]:
        """Scores of a complete item. Raises nothing for a bad answer: a bad answer has a score."""
        ...
