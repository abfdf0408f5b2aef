"""Scores that are not 0 or 1: partial credit, means of repeats, and continuous metrics.

Differences are baseline minus candidate, so that a positive mean is a drop where more is better.
"""

from math import sqrt

import numpy as np
from scipy.stats import bootstrap, norm
from scipy.stats import t as student

from evalsvc.verdict.paired import tango_upper

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
    moving = differences[~np.all(np.abs(differences) <= 1e-12, axis=1)]
    seen, slack = moving.sum(axis=0), 1e-9 * np.abs(moving).sum(axis=0)  # sums that differ by rounding alone are equal
    if len(moving) <= EXACT_UP_TO:
        counted, sums = 0, _signs(len(moving)) @ moving
    else:
        counted, sums = 1, flipped_sums(moving, rng, draws)
    extreme = np.stack([~(sums < seen - slack), ~(sums > seen + slack)]).sum(axis=1)  # NaN is no evidence
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
    """One-sided lower and upper bound of the mean difference over items: the widest of what is right for such data.

    - t on C - 1 degrees of freedom; under 30 units a BCa bootstrap over them too (Efron 1987), which alone misses 7 to
      10 % of the time with 8 to 12 units.
    - The score bound (`_score_upper`), since t is too short where losses are few, large, and all one way: then 12 to
      20 % of true drops equal to the margin passed, from 30 items that lose 5 % up to 500 that lose 1 %.
    - With a known reach what was not seen at all: another kind of item has a probability of at most `1 - alpha^(1/n)`.

    With the last two at most 5 % pass there, and from 100 items that differ both ways the bounds are hardly wider than
    t's (simulated). Where all units are alike only the last says anything, and a unit counts for one.

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
        half = _unseen(mean, count, alpha, reach)
        return mean - half, mean + half, "all alike"
    deviate = float(student.isf(alpha, count - 1))
    half = deviate * sqrt(count / (count - 1) * float((residuals**2).sum())) / items
    unseen = 0.0 if reach is None else _unseen(mean, items, alpha, reach)
    scale = count / items
    lows = [mean - half, mean - unseen, -_score_upper(-totals, deviate) * scale]
    highs = [mean + half, mean + unseen, _score_upper(totals, deviate) * scale]
    if count >= ENOUGH_FOR_T:
        return min(lows), max(highs), "t and score bound"
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
    low, high = np.nanmin([*lows, found.low]), np.nanmax([*highs, found.high])  # BCa is NaN where all but one are alike
    return float(low), float(high), "BCa bootstrap, t and score bound"


def _unseen(mean: float, units: float, alpha: float, reach: float | None) -> float:
    """How far from the mean units of a kind that none of them was can have moved it."""
    return np.inf if reach is None else (reach + abs(mean)) * (1 - alpha ** (1 / units))


def _score_upper(differences: np.ndarray, deviate: float) -> float:
    """Upper bound of the mean of units whose differences are taken to be 0 or of one size, either way.

    The size `s = sum |d|^3 / sum d^2`, `sum d^2 / s^2` units that moved and `sum d / s` more of them down than up give
    such units the first three moments of those seen; then Tango's bound. Of 0/1 outcomes it is Tango's own.
    """
    squares = float((differences**2).sum())
    size = float((np.abs(differences) ** 3).sum()) / squares
    net = float(differences.sum()) / size
    moved = max(squares / size**2, abs(net))
    return size * tango_upper((moved + net) / 2, (moved - net) / 2, len(differences), float(norm.sf(deviate)))
