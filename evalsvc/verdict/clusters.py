"""Items that flip together (one few-shot prefix, subject or conversation): t on the totals of clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.stats import t as student


@dataclass(frozen=True)
class Clusters:
    """Per cluster the sum of `correct(baseline) - correct(candidate)` and its number of items.

    Attributes:
        totals: Shape (clusters,).
        sizes: Shape (clusters,).
    """

    totals: np.ndarray
    sizes: np.ndarray

    @property
    def count(self) -> int:
        """Number of clusters, an item that stands alone being one of them."""
        return len(self.sizes)

    @property
    def independent(self) -> bool:
        """Whether no two items share a cluster."""
        return bool(np.all(self.sizes == 1))


def gather_clusters(differences: Sequence[float], labels: Sequence[str]) -> Clusters:
    """Sums differences by label; an empty label means that the item stands alone."""
    totals: dict[object, float] = {}
    sizes: dict[object, int] = {}
    for index, (difference, label) in enumerate(zip(differences, labels, strict=True)):
        key: object = label or index  # a str never equals an int, so a lone item shares with nobody
        totals[key] = totals.get(key, 0) + difference
        sizes[key] = sizes.get(key, 0) + 1
    return Clusters(np.array(list(totals.values()), dtype=float), np.array(list(sizes.values()), dtype=float))


def cluster_p(clusters: Clusters) -> float:
    """One-sided p against "no drop" for clusters drawn independently.

    With totals `T_g` of C clusters: `t = sum T_g / sqrt(C/(C-1) sum (T_g - mean T)^2)` on C - 1 degrees of freedom.
    Where all totals are equal t has no denominator, and flipping the sign of every cluster gives the only arrangement
    as extreme as what was seen: `2^-C`.
    """
    c, totals = clusters.count, clusters.totals
    total = float(totals.sum())
    spread = float(((totals - totals.mean()) ** 2).sum())
    if spread < 1e-12:
        return 0.5**c if total > 0 else 1.0
    return float(student.sf(total / sqrt(c / (c - 1) * spread), c - 1))


def cluster_bounds(clusters: Clusters, alpha: float) -> tuple[float, float]:
    """One-sided lower and upper bound of the drop: the margins m that t on `T_g - m n_g` does not reject at alpha.

    For clusters of one size this is the textbook `d -+ t_(C-1) sqrt(C/(C-1) sum (T_g - n_g d)^2) / n`. For unequal
    sizes it departs from it: that linearised error is far too small when one cluster dominates (false alarms of 18 to
    40 % at 5 %, simulated with 8 clusters), while t on totals stays under 5 %, at the price of no bound at all
    (-1 or 1) when so few clusters hold the items that nothing can be said.

    Returns:
        Proportions in [-1, 1]. Both 0 when no item differs: then clusters carry no information, and the bound for
        independent items is the one to use.
    """
    c, totals, sizes = clusters.count, clusters.totals, clusters.sizes
    if not totals.any():
        return 0.0, 0.0
    n, total = float(sizes.sum()), float(totals.sum())
    k = float(student.isf(alpha, c - 1)) ** 2 * c / (c - 1) if c > 1 else inf
    spread_sizes = float(((sizes - sizes.mean()) ** 2).sum())
    spread_totals = float(((totals - totals.mean()) ** 2).sum())
    shared = float(((totals - totals.mean()) * (sizes - sizes.mean())).sum())
    # reject m where (total - m n)^2 > k (spread_totals - 2 m shared + m^2 spread_sizes): outside the roots of a
    # parabola that opens upwards, or nowhere
    a = n * n - k * spread_sizes if c > 1 else -1.0
    if a <= 0:
        return -1.0, 1.0
    b = total * n - k * shared
    root = sqrt(max(b * b - a * (total * total - k * spread_totals), 0.0))
    return max((b - root) / a, -1.0), min((b + root) / a, 1.0)
