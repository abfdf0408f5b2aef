"""Bounds of one arm's accuracy, for a least accuracy that does not hang on the baseline."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import beta

from evalsvc.verdict.clusters import gather_clusters
from evalsvc.verdict.resample import mean_bounds


def accuracy_bounds(
    values: Sequence[float], clusters: Sequence[str] | None = None, *, alpha: float = 0.05
) -> tuple[float, float]:
    """One-sided lower and upper bound of a mean of values from 0 to 1.

    Clopper & Pearson 1934 for independent 0/1 values; `resample.mean_bounds` of items or clusters otherwise. Clustered
    0/1 values take the wider of both, since clusters that are all alike say nothing.

    Args:
        values: Per item, at least one.
        clusters: Label per item, empty where the item stands alone; None when all do.
        alpha: Error rate of each direction.
    """
    groups = gather_clusters(values, clusters or [""] * len(values))
    n, right = len(values), sum(value == 1 for value in values)
    bounds = []
    if all(value in (0, 1) for value in values):
        bounds.append(
            (
                float(beta.ppf(alpha, right, n - right + 1)) if right else 0.0,
                float(beta.isf(alpha, right + 1, n - right)) if right < n else 1.0,
            )
        )
        if groups.independent:
            return bounds[0]
    if groups.count > 1:
        rng = np.random.default_rng(n)
        bounds.append(mean_bounds(groups.totals, groups.sizes, alpha, rng, reach=1.0)[:2])
    elif not bounds:
        rng = np.random.default_rng(n)
        bounds.append(mean_bounds(np.asarray(values, dtype=float), np.ones(n), alpha, rng, reach=1.0)[:2])
    return max(0.0, min(low for low, _ in bounds)), min(1.0, max(high for _, high in bounds))
