"""Scores that are not 0 or 1: partial credit, means of repeats, continuous metrics, and metrics of a whole corpus.

Differences are baseline minus candidate, so that a positive mean is a drop where more is better.
"""

from collections.abc import Callable
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
        differences: One a unit: an item's mean over its repeats, or a cluster's total.
        rng: Source of the draws.
        draws: How many, where not all are counted.
    """
    moving = differences[np.abs(differences) > 1e-12]
    if not len(moving):
        return 1.0
    seen = moving.sum() - 1e-9 * np.abs(moving).sum()  # sums that differ by rounding alone are equal
    if len(moving) <= EXACT_UP_TO:
        signs = 1 - 2 * ((np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving))) & 1)
        return float(np.mean(signs @ moving >= seen))
    extreme, left = 0, draws
    while left:
        size = min(left, max(1, 4_000_000 // len(moving)))
        signs = rng.integers(0, 2, size=(size, len(moving)), dtype=np.int8) * 2 - 1
        extreme += int(np.sum(signs @ moving >= seen))
        left -= size
    return (1 + extreme) / (1 + draws)


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
    swap = rng.integers(0, 2, size=(draws, len(baseline))).astype(bool)
    swap = swap.reshape(draws, len(baseline), *(1,) * (baseline.ndim - 1))
    drawn = statistic(np.where(swap, candidate, baseline), np.where(swap, baseline, candidate))
    return (1 + int(np.sum(drawn >= seen - 1e-12 * abs(seen)))) / (1 + draws)


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
    chosen = rng.integers(0, len(baseline), size=(draws, len(baseline)))
    drawn = statistic(baseline[chosen], candidate[chosen])
    return float(np.quantile(drawn, alpha)), float(np.quantile(drawn, 1 - alpha))
