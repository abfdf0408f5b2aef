"""What paired outcomes say, before any margin is put to them: 0 or 1 an item, or fractions between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from evalsvc.verdict.clusters import Clusters, cluster_bounds, cluster_p, flip_freedom, gather_clusters
from evalsvc.verdict.paired import (
    mcnemar_exact,
    mcnemar_midp,
    newcombe_interval,
    tango_lower,
    tango_upper,
)
from evalsvc.verdict.resample import mean_bounds, sign_flips

FEW_CLUSTERS = 6


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Counts, p values and bounds of one comparison. Proportions throughout.

    Attributes:
        n: Paired items.
        lost: Items right in the baseline only; with fractions, items that are worse in the candidate.
        gained: Items right in the candidate only; with fractions, items that are better there.
        method: Test and bound that decide.
        p: One-sided p against "no drop", the one that decides.
        p_gain: The same in the other direction.
        p_mid: Mid-p of independent 0/1 items; decides nothing.
        lower: One-sided lower bound of the drop at alpha.
        upper: One-sided upper bound of the drop at alpha.
        interval: Two-sided interval at level 1 - alpha, by the same rule as the bounds.
        newcombe: Newcombe's two-sided interval at 1 - alpha; None where the right items are not known.
        clusters: Number of clusters where they decide; None where items are independent.
        few_clusters: Fewer than 6: the result holds for these clusters (this prefix) and says little of others.
        baseline_right: Items right in the baseline; None when only lost and gained are known.
        cluster_error: Standard error of the drop over clusters, for planning; None where items are independent.
        mean_drop: Of fractions; None for 0/1 outcomes.
        baseline_upper: Upper bound of the baseline's mean, of fractions.
        complete: Whether these are all items that were planned; a sequential design may stop before.
        baseline_mean: The baseline's accuracy, or its value in the metric's own units; None when only counts are known.
        candidate_mean: As `baseline_mean`.
    """

    n: int
    lost: int
    gained: int
    alpha: float
    p: float
    p_gain: float
    p_mid: float | None
    lower: float
    upper: float
    interval: tuple[float, float]
    newcombe: tuple[float, float] | None
    clusters: int | None = None
    few_clusters: bool = False
    baseline_right: int | None = None
    cluster_error: float | None = None
    method: str = "exact McNemar, Tango"
    mean_drop: float | None = None
    baseline_upper: float | None = None
    complete: bool = True
    baseline_mean: float | None = None
    candidate_mean: float | None = None

    @property
    def drop(self) -> float:
        """Observed drop: `(lost - gained) / n`, or the mean difference of fractions."""
        return (self.lost - self.gained) / self.n if self.mean_drop is None else self.mean_drop

    @property
    def discordance(self) -> float:
        """Share of items that flipped either way."""
        return (self.lost + self.gained) / self.n


def measure_counts(
    lost: int, gained: int, n: int, *, alpha: float = 0.05, baseline_right: int | None = None
) -> Measurement:
    """Measures independent items from their counts.

    Args:
        lost: Items right in the baseline only.
        gained: Items right in the candidate only.
        n: Paired items, at least 1 and at least lost + gained.
        alpha: Error rate of each direction.
        baseline_right: Items right in the baseline, where known.

    Raises:
        ValueError: Counts that no set of items can have.
    """
    if n < 1 or lost < 0 or gained < 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained do not fit into {n} items")
    if baseline_right is not None and not lost <= baseline_right <= n - gained:
        raise ValueError(f"{baseline_right} right in the baseline do not fit {lost} lost, {gained} gained of {n}")
    newcombe = None
    if baseline_right is not None:
        newcombe = newcombe_interval(baseline_right - lost, lost, gained, n - baseline_right - gained, level=1 - alpha)
    return Measurement(
        n=n,
        lost=lost,
        gained=gained,
        alpha=alpha,
        p=mcnemar_exact(lost, gained),
        p_gain=mcnemar_exact(gained, lost),
        p_mid=mcnemar_midp(lost, gained),
        lower=tango_lower(lost, gained, n, alpha),
        upper=tango_upper(lost, gained, n, alpha),
        interval=(tango_lower(lost, gained, n, alpha / 2), tango_upper(lost, gained, n, alpha / 2)),
        newcombe=newcombe,
        baseline_right=baseline_right,
        baseline_mean=None if baseline_right is None else baseline_right / n,
        candidate_mean=None if baseline_right is None else (baseline_right - lost + gained) / n,
    )


def measure(
    baseline: Sequence[float], candidate: Sequence[float], clusters: Sequence[str] | None = None, *, alpha: float = 0.05
) -> Measurement:
    """Measures paired items, by the clustered rule where some share a cluster.

    The clustered p is the larger of the exact and the cluster p, the clustered bound the widest of Tango's, the cluster
    bound, and Tango's at the effective number of items (`_effective`). Items that all share one cluster are compared
    as independent given that cluster (between clusters nothing was seen at all), and marked `few_clusters`.

    Where a value lies between 0 and 1 (partial credit, a mean over repeats) the p is that of sign-flips and the bound
    the widest of t's, a score bound and, under 30 items or clusters, the BCa bootstrap's (`resample.mean_bounds`). The
    draws are the same each time.

    Args:
        baseline: From 0 to 1 per item.
        candidate: As `baseline`, in the same order.
        clusters: Label per item, empty where the item stands alone; None when all do.
        alpha: Error rate of each direction.
    """
    values = np.array([baseline, candidate], dtype=float)
    if not bool(((values == 0) | (values == 1)).all()):
        return _measure_fractions(baseline, candidate, clusters or [""] * len(baseline), alpha)
    differences = values[0] - values[1]
    lost, gained = int((differences == 1).sum()), int((differences == -1).sum())
    alone = measure_counts(lost, gained, len(differences), alpha=alpha, baseline_right=int(values[0].sum()))
    if not clusters or not any(clusters):
        return alone
    groups = gather_clusters(differences, clusters)
    if groups.independent:
        return alone
    fields = {**vars(alone), "clusters": groups.count, "few_clusters": groups.count < FEW_CLUSTERS}
    fields["method"] += " and t on cluster totals" if groups.count > 1 else ""
    if groups.count > 1:
        lower, upper = cluster_bounds(groups, alpha)
        wide_lower, wide_upper = cluster_bounds(groups, alpha / 2)
        fewer = partial(_effective, lost, gained, groups)
        fields |= {
            "p": max(alone.p, cluster_p(groups)),
            "p_gain": max(alone.p_gain, cluster_p(Clusters(-groups.totals, groups.sizes))),
            "lower": min(alone.lower, lower, fewer(tango_lower, alpha)),
            "upper": max(alone.upper, upper, fewer(tango_upper, alpha)),
            "interval": (
                min(alone.interval[0], wide_lower, fewer(tango_lower, alpha / 2)),
                max(alone.interval[1], wide_upper, fewer(tango_upper, alpha / 2)),
            ),
            "cluster_error": _standard_error(groups),
        }
    return Measurement(**fields)


def measure_units(
    baseline: Sequence[float],
    candidate: Sequence[float],
    clusters: Sequence[str] | None = None,
    *,
    alpha: float = 0.05,
    better: str = "higher",
) -> Measurement:
    """Measures the mean of a metric in units of its own. A positive drop is worse, whichever way the metric goes.

    As fractions, but without bounds at 1, and without a largest difference: only where all items differ alike is
    another one taken to differ by no more than the range of the values seen.

    Args:
        baseline: Per item.
        candidate: As `baseline`, in the same order.
        clusters: As in `measure`.
        alpha: Error rate of each direction.
        better: `higher` or `lower`.
    """
    sign = 1.0 if better == "higher" else -1.0
    values = np.array([baseline, candidate], dtype=float)
    alike = np.ptp(values[0] - values[1]) < 1e-12
    reach = (float(np.ptp(values)) or None) if alike else None
    found = _measure_means(sign * values, clusters or [""] * len(baseline), alpha, reach)
    return replace(found, baseline_mean=float(values[0].mean()), candidate_mean=float(values[1].mean()))


def _measure_fractions(
    baseline: Sequence[float], candidate: Sequence[float], clusters: Sequence[str], alpha: float
) -> Measurement:
    values = np.array([baseline, candidate], dtype=float)
    if not len(baseline) or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError("values of paired items lie between 0 and 1")
    found = _measure_means(values, clusters, alpha, 1.0)
    rng = np.random.default_rng(len(baseline))
    return replace(
        found,
        lower=max(found.lower, -1.0),
        upper=min(found.upper, 1.0),
        interval=(max(found.interval[0], -1.0), min(found.interval[1], 1.0)),
        baseline_upper=min(1.0, mean_bounds(values[0], np.ones(len(baseline)), alpha, rng, reach=1.0)[1]),
    )


def _measure_means(values: np.ndarray, clusters: Sequence[str], alpha: float, reach: float | None) -> Measurement:
    """Of the baseline's and the candidate's values, where more is better. Shape of values: (2, items)."""
    differences = values[0] - values[1]
    groups = gather_clusters(differences.tolist(), clusters)
    if groups.count == 1:  # one prefix: its items are compared given that prefix
        groups = Clusters(differences, np.ones(len(differences)))
    rng = np.random.default_rng(len(differences))
    lower, upper, method = mean_bounds(groups.totals, groups.sizes, alpha, rng, reach=reach)
    wide_lower, wide_upper, _ = mean_bounds(groups.totals, groups.sizes, alpha / 2, rng, reach=reach)
    p, p_gain = (float(each[0]) for each in sign_flips(groups.totals[:, None], rng))
    labels = {label or str(i) for i, label in enumerate(clusters)}
    clustered = len(labels) < len(differences)
    return Measurement(
        n=len(differences),
        lost=int((differences > 0).sum()),
        gained=int((differences < 0).sum()),
        alpha=alpha,
        p=p,
        p_gain=p_gain,
        p_mid=None,
        lower=lower,
        upper=upper,
        interval=(wide_lower, wide_upper),
        newcombe=None,
        clusters=len(labels) if clustered else None,
        few_clusters=clustered and len(labels) < FEW_CLUSTERS,
        cluster_error=_standard_error(groups) if groups.count > 1 else None,
        method=f"sign-flip, {method}",
        mean_drop=float(differences.mean()),
        baseline_mean=float(values[0].mean()),
        candidate_mean=float(values[1].mean()),
    )


def _effective(
    lost: int, gained: int, groups: Clusters, bound: Callable[[float, float, float, float], float], alpha: float
) -> float:
    """Tango's bound at n / deff items, with t on `flip_freedom` degrees of freedom in place of the normal deviate.

    deff is the variance of the drop over clusters against that of independent items, at least 1 (Kish 1965). Clusters
    that flip as one make their totals skewed, and t on totals is then too short towards a drop: with 56 clusters of
    4 and losses alone, a PASS at a true drop equal to the margin came in 9 and 22 % (flips of 12 and 5 % of the items),
    with this bound in at most 5 % (simulated). Without any flip nothing is known of deff, and the bound is that of
    independent items.
    """
    n = float(groups.sizes.sum())
    variance = lost + gained - (lost - gained) ** 2 / n
    if variance <= 0:
        return bound(lost, gained, n, alpha)
    deff = max(1.0, (_standard_error(groups) * n) ** 2 / variance)
    deviate = float(student.isf(alpha, flip_freedom(groups, lost + gained)))
    return bound(lost / deff, gained / deff, n / deff, float(norm.sf(deviate)))


def _standard_error(groups: Clusters) -> float:
    c, residuals = groups.count, groups.residuals
    return sqrt(c / (c - 1) * float((residuals**2).sum())) / float(groups.sizes.sum())


def more_items(measured: Measurement, margin: float, *, p_factor: float = 1.0, limit: int = 10_000_000) -> int | None:
    """Items still needed to decide, if further ones flip at the rates seen so far and clusters keep their size.

    Args:
        measured: An inconclusive comparison.
        margin: Proportion.
        p_factor: By how much the family's correction multiplied p.
        limit: Give up beyond this many items in all.

    Returns:
        A planning figure; None beyond the limit, and where no bound is known yet.
    """
    in_units = measured.mean_drop is not None and measured.baseline_upper is None
    if measured.upper >= 1 and not in_units:
        return None
    low, high = measured.n, measured.n
    while not _would_decide(measured, margin, high, p_factor):
        low, high = high, high * 2
        if high > limit:
            return None
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if _would_decide(measured, margin, middle, p_factor) else (middle, high)
    return high - measured.n


def _would_decide(measured: Measurement, margin: float, n: int, p_factor: float) -> bool:
    """Whether n items would: independent 0/1 items by their own rule, else what was found shrinks with sqrt(n)."""
    root = sqrt(n / measured.n)
    upper = measured.drop + (measured.upper - measured.drop) / root
    p = float(norm.sf(root * norm.isf(measured.p)))
    if measured.mean_drop is None:
        now, then = (_independent(measured, scale) for scale in (1.0, n / measured.n))
        p, upper = (
            later if found <= alone + 1e-9 else scaled
            for found, alone, later, scaled in zip((measured.p, measured.upper), now, then, (p, upper), strict=True)
        )
    return upper <= margin or p * p_factor < measured.alpha


def _independent(measured: Measurement, scale: float) -> tuple[float, float]:
    """p and upper bound of so many times the counts, if nothing but independent items decided."""
    lost, gained, n = (scale * count for count in (measured.lost, measured.gained, measured.n))
    return mcnemar_exact(round(lost), round(gained)), tango_upper(lost, gained, n, measured.alpha)
