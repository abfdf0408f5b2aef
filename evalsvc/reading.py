"""How values are read off pairs: the items' own 0/1 metric, another one, or parts of a metric of the whole corpus."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from evalsvc.limits import Better, Margin, Statistic
from evalsvc.ordering import Looks, cluster_label
from evalsvc.policy import Policy
from evalsvc.store.records import Pair, Side
from evalsvc.verdict.corpus import METRICS, measure_corpus
from evalsvc.verdict.hybrid import feed, measure_hybrid
from evalsvc.verdict.measure import Measurement, measure, measure_units
from evalsvc.verdict.sequential import Sequential


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which number of a sample counts, and which way is worse.

    Attributes:
        metric: Empty for the item's own.
        in_units: The metric is in units of its own, and not from 0 to 1.
        better: Whether more of it is better.
        statistic: How items make the metric.
    """

    metric: str = ""
    in_units: bool = False
    better: Better = "higher"
    statistic: Statistic = "mean"

    @classmethod
    def of(cls, rule: Margin) -> "Reading":
        """How a rule about a metric reads it."""
        return cls(
            metric=rule.metric or "",
            in_units=rule.margin is not None,
            better=rule.better,
            statistic=rule.statistic,
        )

    @property
    def of_corpus(self) -> bool:
        """Whether the metric is one of the whole corpus."""
        return self.statistic != "mean"


OWN = Reading()
_Value = float | tuple[float, ...]


def own_reading(pair: Pair, policy: Policy) -> Reading:
    """How an item's own metric is read: in its own units where a rule gives it a margin in them."""
    for family in (pair.family, None) if policy.margins else ():
        rule = policy.rule(pair.suite, family, pair.metric)
        if rule is not None and rule.margin is not None:
            return Reading.of(rule)
    return OWN


def read_side(side: Side | None, reading: Reading = OWN, metric: str = "") -> _Value | None:
    """A side's value; None unless the sample is scored and its value can be used.

    Args:
        side: One arm's sample.
        reading: What to read.
        metric: The item's own metric.
    """
    if side is None or side.status != "scored":
        return None
    if reading is OWN:  # every item of every gate passes here, some of them a dozen times
        return side.value if side.value is not None and 0 <= side.value <= 1 else None
    if reading.of_corpus:
        return _parts(side, reading)
    value = side.value if reading.metric in ("", metric) else side.scores.get(reading.metric)
    if value is None or not isfinite(value) or not (reading.in_units or 0 <= value <= 1):
        return None
    return value


def _parts(side: Side, reading: Reading) -> tuple[float, ...] | None:
    """The parts of a corpus metric; a log-likelihood without a weight has a weight of 1."""
    width = METRICS[reading.statistic].width
    weighted = reading.statistic in ("perplexity", "bits_per_byte")
    default = 1.0 if reading.statistic == "perplexity" else None
    whole = side.scores.get(reading.metric) if reading.statistic == "perplexity" else None
    whole = whole if whole is not None and whole <= 0 else None  # a log-likelihood as lm-eval logs it; no perplexity is
    spare = (whole, default, *[None] * (width - 2))
    parts = [side.scores.get(f"{reading.metric}.{n}", spare[n]) for n in range(width)]
    known = tuple(part for part in parts if part is not None and isfinite(part))
    return known if len(known) == width and not (weighted and known[1] <= 0) else None


def holds(side: Side | None, metric: str | None) -> bool:
    """Whether a sample has a score of a metric, or a first part of it."""
    return side is not None and metric is not None and (metric in side.scores or f"{metric}.0" in side.scores)


def read_pair(pair: Pair, reading: Reading = OWN) -> tuple[_Value, _Value] | None:
    """Both arms' values; None unless both have one."""
    ours = read_side(pair.baseline, reading, pair.metric)
    theirs = None if ours is None else read_side(pair.candidate, reading, pair.metric)
    return None if ours is None or theirs is None else (ours, theirs)


def scored_values(pair: Pair) -> tuple[float, float] | None:
    """Both arms' own 0/1 metric; None unless both have one."""
    return read_pair(pair)  # pyright: ignore[reportReturnType]


def up_to(pairs: Sequence[Pair], looks: Looks) -> list[Pair]:
    """The pairs that the last look saw; none of items that no look is about."""
    last = looks.ends[-1] if looks.ends else 0
    return [pair for pair in pairs if looks.position.get((pair.suite, pair.item_id), last) < last]


def measure_pairs(
    pairs: Sequence[Pair], alpha: float, *, worst: bool = False, looks: Looks | None = None, reading: Reading = OWN
) -> Measurement | None:
    """Measures pairs, clustered by (suite, family, cluster).

    Args:
        pairs: One row an item.
        alpha: Error rate of each direction.
        worst: Counts missing candidate items as lost and missing baseline items as right, instead of leaving them out;
            metrics in units of their own have no worst value, and leave them out.
        looks: Where a sequential design looked; None for the fixed one, which metrics in own units always have.
        reading: What is measured.

    Returns:
        None when no pair can be used.
    """
    chosen, values = _usable(pairs, reading, worst, looks)
    if not chosen:
        return None
    labels = _labels(chosen)
    if reading.of_corpus:
        parts = np.array(values, dtype=float)  # items, arms, parts
        return measure_corpus(reading.statistic, parts[:, 0], parts[:, 1], labels, alpha=alpha, better=reading.better)
    ours, theirs = _columns(values)
    if reading.in_units:
        return measure_units(ours, theirs, labels, alpha=alpha, better=reading.better)
    if looks is None:
        return measure(ours, theirs, labels, alpha=alpha)
    ends, largest = _ends(chosen, looks), _largest(chosen, looks)
    return measure_hybrid(ours, theirs, labels, ends, alpha=alpha, largest=largest, complete=looks.complete)


def process_of(pairs: Sequence[Pair], looks: Looks, *, worst: bool = False) -> Sequential:
    """The e-processes of pairs, fed with what each look saw; arguments as of `measure_pairs`."""
    chosen, values = _usable(pairs, OWN, worst, looks)
    labels = _labels(chosen)
    differences = [base - cand for base, cand in zip(*_columns(values), strict=True)]
    return feed(differences, labels, _ends(chosen, looks), largest=_largest(chosen, looks))


def _usable(
    pairs: Sequence[Pair], reading: Reading, worst: bool, looks: Looks | None
) -> tuple[list[Pair], list[tuple[_Value, _Value]]]:
    """Pairs that count and their values, in the order of the looks and up to the last of them."""
    if looks is not None:
        pairs = sorted(up_to(pairs, looks), key=lambda pair: looks.position[pair.suite, pair.item_id])
    if worst and not reading.in_units:
        return list(pairs), [_worst(pair, reading) for pair in pairs]
    read = [read_pair(pair, reading) for pair in pairs]
    chosen = [pair for pair, found in zip(pairs, read, strict=True) if found is not None]
    return chosen, [found for found in read if found is not None]


def _worst(pair: Pair, reading: Reading) -> tuple[_Value, _Value]:
    ours, theirs = read_side(pair.baseline, reading, pair.metric), read_side(pair.candidate, reading, pair.metric)
    return 1.0 if ours is None else ours, 0.0 if theirs is None else theirs


def _labels(pairs: Sequence[Pair]) -> list[str]:
    return [pair.cluster and cluster_label(pair.suite, pair.family, pair.cluster) for pair in pairs]


def _columns(values: Sequence[tuple[_Value, _Value]]) -> tuple[list[float], list[float]]:
    return [ours for ours, _ in values], [theirs for _, theirs in values]  # pyright: ignore[reportReturnType]


def _ends(pairs: Sequence[Pair], looks: Looks) -> list[int]:
    positions = [looks.position[pair.suite, pair.item_id] for pair in pairs]
    return [bisect_left(positions, end) for end in looks.ends]


def _largest(pairs: Sequence[Pair], looks: Looks) -> int:
    suites = {pair.suite for pair in pairs}
    return max(looks.largest[suite] for suite in (suites if len(suites) == 1 else looks.largest))
