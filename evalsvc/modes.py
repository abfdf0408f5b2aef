"""Names of failure modes: suites find them, the store keeps them, policies gate them.

Every generated answer has the score `failure.any` (0 or 1), and a score 1 of each mode that it shows; where
`failure.any` is there, a mode without a score is 0. `failure.repetition.start` says where a loop begins.

Of long answers the entropies `failure.bits_per_character` and `failure.bits_per_token` are stored, too. Beside a
baseline an answer is gibberish also when one of them lies outside what is ordinary among the baseline's answers
(`beside_baseline`). Both arms are read by that range when they are compared; nothing of it is stored.

A policy gates the opposite, which falls when things get worse, as proportions do: `free_of.any` and `free_of.MODE`
are 1 minus those scores. They are made when scores are read, and never stored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PREFIX = "failure."
FREE = "free_of."
MODES = (
    "empty",
    "truncated",
    "repetition",
    "gibberish",
    "broken_text",
    "special_tokens",
    "endless_thinking",
    "language_switch",
    "refusal",
)
ANY = f"{PREFIX}any"
GIBBERISH = f"{PREFIX}gibberish"
ENTROPIES = (f"{PREFIX}bits_per_character", f"{PREFIX}bits_per_token")
FEWEST = 20  # answers that say what is ordinary
METRICS = (ANY, *(PREFIX + mode for mode in MODES))


@dataclass(frozen=True)
class Span:
    """Bits (per character or token) between which a text is ordinary.

    Attributes:
        low: Below, a few characters or tokens make up the text.
        high: Above, they come as if drawn at random.
    """

    low: float
    high: float


def ordinary(bits: Sequence[float]) -> Span | None:
    """What is ordinary among a baseline's answers: five standard deviations about their mean, at least half a bit.

    Returns:
        None for fewer than 20 answers.
    """
    if len(bits) < FEWEST:
        return None
    mean = sum(bits) / len(bits)
    reach = max(5 * math.sqrt(sum((b - mean) ** 2 for b in bits) / (len(bits) - 1)), 0.5)
    return Span(mean - reach, mean + reach)


def spans(scores: Iterable[Mapping[str, float]]) -> dict[str, Span]:
    """What is ordinary among samples' entropies, by metric; those that too few samples have are left out."""
    held: dict[str, list[float]] = {metric: [] for metric in ENTROPIES}
    for found in scores:
        for metric in ENTROPIES:
            if metric in found:
                held[metric].append(found[metric])
    return {metric: span for metric, bits in held.items() if (span := ordinary(bits)) is not None}


def beside_baseline(scores: Mapping[str, float], ranges: Mapping[str, Span]) -> dict[str, float]:
    """Scores of one sample, gibberish too where an entropy lies outside the baseline's range."""
    outside = any(metric in scores and not span.low <= scores[metric] <= span.high for metric, span in ranges.items())
    return dict(scores) | ({GIBBERISH: 1.0, ANY: 1.0} if outside and ANY in scores else {})


def filled(scores: dict[str, float]) -> dict[str, float]:
    """Scores of one sample with the zeros that are not stored, and their opposites."""
    if ANY not in scores:
        return scores
    whole = dict.fromkeys(METRICS, 0.0) | scores
    return whole | {FREE + metric.removeprefix(PREFIX): 1.0 - whole[metric] for metric in METRICS}


def without(scores: dict[str, float]) -> dict[str, float]:
    """Scores of one sample that are of no failure mode."""
    return {metric: value for metric, value in scores.items() if not metric.startswith(PREFIX)}
