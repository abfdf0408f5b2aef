"""Names of failure modes: suites find them, the store keeps them, policies gate them.

Every generated answer has the score `failure.any` (0 or 1), and a score 1 of each mode that it shows; where
`failure.any` is there, a mode without a score is 0. `failure.repetition.start` says where a loop begins.

A policy gates the opposite, which falls when things get worse, as proportions do: `free_of.any` and `free_of.MODE`
are 1 minus those scores. They are made when scores are read, and never stored.
"""

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
METRICS = (ANY, *(PREFIX + mode for mode in MODES))


def filled(scores: dict[str, float]) -> dict[str, float]:
    """Scores of one sample with the zeros that are not stored, and their opposites."""
    if ANY not in scores:
        return scores
    whole = dict.fromkeys(METRICS, 0.0) | scores
    return whole | {FREE + metric.removeprefix(PREFIX): 1.0 - whole[metric] for metric in METRICS}


def without(scores: dict[str, float]) -> dict[str, float]:
    """Scores of one sample that are of no failure mode."""
    return {metric: value for metric, value in scores.items() if not metric.startswith(PREFIX)}
