"""Scores that are not 0 or 1: partial credit, means of repeats, continuous metrics, and metrics of a whole corpus.

Differences are baseline minus candidate, so that a positive mean is a drop where more is better.
"""

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
from scipy.stats import bootstrap
from scipy.stats import t as student

EXACT_UP_TO = 14  # units whose 2^n arrangements are all counted
ENOUGH_FOR_T = 30
DRAWS = 9_999


def sign_flip_p(differences: np.ndarray, rng: np.random.Generator, *, draws: int = DRAWS) -> float:
    """One-sided p against "no drop": how often signs at random give a sum as large as the one seen.

    `(1 + extreme) / (1 + draws)`, or the exact share of all arrangements where there are at most 2^14 of them.

    Args:
        differences: One a unit: an item's mean over its repeats, or a cluster's total. Shape: (units,).
        rng: Source of the draws.
        draws: How many, where not all are counted.
    """
    return float(sign_flips(differences[:, None], rng, draws=draws)[0, 0])


def sign_flips(differences: np.ndarray, rng: np.random.Generator, *, draws: int = DRAWS) -> np.ndarray:
    """`sign_flip_p` of several measures of the same units in both directions, from one set of draws.

    Args:
        differences: Shape (units, measures).
        rng: As there.
        draws: As there.

    Returns:
        One-sided p against "no drop", then against "no gain". Shape: (2, measures).
    """
    moving = differences[np.any(np.abs(differences) > 1e-12, axis=1)]
    seen, slack = moving.sum(axis=0), 1e-9 * np.abs(moving).sum(axis=0)  # sums that differ by rounding alone are equal
    if len(moving) <= EXACT_UP_TO:
        counted, sums = 0, _signs(len(moving)) @ moving
    else:
        counted, sums = 1, flipped_sums(moving, rng, draws)
    extreme = np.stack([(sums >= seen - slack).sum(axis=0), (sums <= seen + slack).sum(axis=0)])
    return (counted + extreme) / (counted + len(sums))


def two_sided_p(one_sided: np.ndarray) -> np.ndarray:
    """Twice the smaller of two one-sided p, at most 1. Shape: (2, measures) -> (measures,)."""
    return np.minimum(1.0, 2 * one_sided.min(axis=0))


def flipped_sums(differences: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Sums over units under random signs; all measures of a unit get one sign.

    Eight units take their signs from one random byte, and the 256 sums that eight units can have are looked up: 12,032
    units and 9,999 draws take about a tenth of the time of drawing and multiplying each sign.

    Args:
        differences: Shape (units, measures).
        rng: Source of the signs.
        draws: How many sets of signs.

    Returns:
        Shape (draws, measures).
    """
    units, measures = differences.shape
    groups = -(-units // 8)
    padded = np.zeros((8 * groups, measures))
    padded[:units] = differences
    sums = np.zeros((draws, measures))
    for table in _signs(8) @ padded.reshape(groups, 8, measures):
        sums += table.take(rng.integers(0, 256, size=draws, dtype=np.uint8), axis=0)
    return sums


def _signs(units: int) -> np.ndarray:
    """Every arrangement of signs. Shape: (2^units, units)."""
    return 1.0 - 2.0 * ((np.arange(2**units)[:, None] >> np.arange(units)) & 1)


def mean_bounds(
    totals: np.ndarray, sizes: np.ndarray, alpha: float, rng: np.random.Generator, *, reach: float | None = None
) -> tuple[float, float, str]:
    """One-sided lower and upper bound of the mean difference over items.

    t on C - 1 degrees of freedom with 30 units and more, else a BCa bootstrap over units (Efron 1987). Where all units
    are alike neither says anything: then another unit would be of another kind with a probability of at most
    `1 - alpha^(1/C)`, and at most `reach` on the other side of zero.

    Args:
        totals: Sum of differences of each unit (an item, or a cluster of items). Shape: (units,).
        sizes: Items of each unit. Shape: (units,).
        alpha: Error rate of each direction.
        rng: Source of the bootstrap's draws.
        reach: Largest difference that one item can show; None where the metric has none.

    Returns:
        Lower and upper bound, and the method's name; infinite bounds where nothing can be said.
    """
    count, items = len(totals), float(sizes.sum())
    if not count:
        return -np.inf, np.inf, "none"
    mean = float(totals.sum()) / items
    residuals = totals - sizes * mean
    if not np.any(np.abs(residuals) > 1e-12):
        half = np.inf if reach is None else (reach + abs(mean)) * (1 - alpha ** (1 / count))
        return mean - half, mean + half, "all alike"
    if count >= ENOUGH_FOR_T:
        error = sqrt(count / (count - 1) * float((residuals**2).sum())) / items
        half = float(student.isf(alpha, count - 1)) * error
        return mean - half, mean + half, "t"
    found = bootstrap(
        (totals, sizes),
        lambda t, s, axis: t.sum(axis=axis) / s.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=DRAWS,
        confidence_level=1 - 2 * alpha,
        method="BCa",
        rng=rng,
    ).confidence_interval
    return float(found.low), float(found.high), "BCa bootstrap"


def corpus_p(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    baseline: np.ndarray,
    candidate: np.ndarray,
    rng: np.random.Generator,
    *,
    draws: int = 999,
) -> float:
    """One-sided p of a metric of a whole corpus (perplexity, F1): labels of the arms are exchanged item by item.

    Args:
        statistic: Of the baseline's and the candidate's items; larger is a larger drop. Called with arrays of shape
            (draws, items, ...) and reduces all but the first dimension.
        baseline: What the metric is made of, per item. Shape: (items, ...).
        candidate: As `baseline`.
        rng: Source of the draws.
        draws: How many.
    """
    seen = float(statistic(baseline[None], candidate[None])[0])
    extreme = 0
    for size in _blocks(draws, baseline):
        swap = rng.integers(0, 2, size=(size, len(baseline))).astype(bool)
        swap = swap.reshape(*swap.shape, *(1,) * (baseline.ndim - 1))
        drawn = statistic(np.where(swap, candidate, baseline), np.where(swap, baseline, candidate))
        extreme += int(np.sum(drawn >= seen - 1e-12 * abs(seen)))
    return (1 + extreme) / (1 + draws)


def corpus_bounds(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    baseline: np.ndarray,
    candidate: np.ndarray,
    alpha: float,
    rng: np.random.Generator,
    *,
    draws: int = 1999,
) -> tuple[float, float]:
    """One-sided bounds of a corpus metric's drop: percentiles of the bootstrap over items.

    Args:
        statistic: As in `corpus_p`.
        baseline: As in `corpus_p`.
        candidate: As in `corpus_p`.
        alpha: Error rate of each direction.
        rng: Source of the draws.
        draws: How many.
    """
    drawn = []
    for size in _blocks(draws, baseline):
        chosen = rng.integers(0, len(baseline), size=(size, len(baseline)))
        drawn.append(statistic(baseline[chosen], candidate[chosen]))
    lower, upper = np.quantile(np.concatenate(drawn), [alpha, 1 - alpha])
    return float(lower), float(upper)


def _blocks(draws: int, values: np.ndarray) -> Iterator[int]:
    """Sizes that sum to `draws`, each of so many that the values drawn stay in a processor's cache."""
    size = max(1, 250_000 // max(values.size, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)
