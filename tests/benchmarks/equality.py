"""Whether two models say the same: log-likelihoods, choices, and which choices flip."""

from dataclasses import dataclass

from .jobs import LETTERS, Asked

LOGLIKELIHOOD = 1e-4  # nats: most that fp32 log-likelihoods may differ
GAP = 2e-4  # nats: a choice may differ where the best two are nearer than this


@dataclass(frozen=True)
class Flip:
    """One item that two models answer with different letters; gaps are best minus second best, nats."""

    document: int
    first: str
    second: str
    first_gap: float
    second_gap: float

    def __str__(self) -> str:
        return f"item {self.document}: {self.first} ({self.first_gap:.2g}) / {self.second} ({self.second_gap:.2g})"


def _choice(answers: list[tuple[float, bool]]) -> tuple[str, float]:
    values = [value for value, _ in answers]
    best, second = sorted(values, reverse=True)[:2]
    return LETTERS[values.index(best)], best - second


def flips(first: Asked, second: Asked) -> list[Flip]:
    """Items in both whose choice differs."""
    found = []
    theirs = second.by_document()
    for document, answers in first.by_document().items():
        if document in theirs:
            (one, one_gap), (other, other_gap) = _choice(answers), _choice(theirs[document])
            if one != other:
                found.append(Flip(document, one, other, one_gap, other_gap))
    return found


def largest_difference(first: Asked, second: Asked) -> float:
    """Of log-likelihoods of the same continuations, nats."""
    theirs = second.by_document()
    pairs = ((a, b) for doc, answers in first.by_document().items() for a, b in zip(answers, theirs[doc], strict=True))
    return max(abs(a - b) for (a, _), (b, _) in pairs)


def listed(found: list[Flip]) -> str:
    """Flips in words."""
    return "none" if not found else "; ".join(map(str, found))
