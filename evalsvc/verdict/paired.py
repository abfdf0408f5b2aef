"""Paired 0/1 outcomes of independent items: exact McNemar, Tango's score bounds, Newcombe's interval.

Everywhere `lost` counts items right in the baseline and wrong in the candidate, `gained` the reverse, `n` all paired
items. The drop is `(lost - gained) / n`, a proportion; positive means that the candidate is worse.
"""

from math import isinf, sqrt
from typing import cast

from scipy.optimize import brentq
from scipy.stats import beta, binom, norm


def mcnemar_exact(lost: float, gained: float) -> float:
    """One-sided exact p against "no drop": `P(Bin(lost + gained, 1/2) >= lost)`; 1.0 without a discordant item.

    Source: McNemar 1947; exact form in Fagerland, Lydersen & Laake 2013, BMC Med Res Methodol 13:91.
    """
    return float(binom.sf(lost - 1, lost + gained, 0.5))


def mcnemar_midp(lost: int, gained: int) -> float:
    """One-sided mid-p: the exact p less half the probability of what was observed. Reported, never decides."""
    return mcnemar_exact(lost, gained) - 0.5 * float(binom.pmf(lost, lost + gained, 0.5))


def tango_statistic(lost: float, gained: float, n: float, margin: float) -> float:
    """Score statistic of "the drop equals margin": about standard normal there, positive when the drop is larger.

    With b lost, c gained, m the margin, and q the maximum likelihood probability of a gain under that constraint:
    `A = 2n; B = -(b+c) + (2n-b+c) m; C = -c m (1-m); q = (sqrt(B^2 - 4AC) - B) / (2A)`,
    `T = (b - c - n m) / sqrt(n (2q + m (1-m)))`. Infinite where the constraint leaves no variance.

    Args:
        lost: May be fractional (planning scales rates).
        gained: May be fractional.
        n: Paired items, at least 1.
        margin: Proportion in [-1, 1].

    Source: Tango 1998, Stat Med 17:891.
    """
    a = 2 * n
    b = -(lost + gained) + (2 * n - lost + gained) * margin
    c = -gained * margin * (1 - margin)
    q = (sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    numerator = lost - gained - n * margin
    variance = n * (2 * q + margin * (1 - margin))
    if variance > 1e-12:
        return numerator / sqrt(variance)
    return 0.0 if abs(numerator) < 1e-9 else float("inf") if numerator > 0 else float("-inf")


def tango_upper(lost: float, gained: float, n: float, alpha: float) -> float:
    """Upper bound of the drop: the largest margin that a one-sided score test at alpha does not reject.

    Returns:
        A proportion in [-1, 1]; 1.0 when every item was lost, or when alpha is 0.
    """
    z = float(norm.isf(alpha))
    if lost >= n or isinf(z):
        return 1.0
    drop = (lost - gained) / n
    finite = 1e6  # brentq interpolates: an infinite statistic at margin 1 would give it NaN

    def above(margin: float) -> float:
        return max(tango_statistic(lost, gained, n, margin), -finite) + z

    return cast(float, brentq(above, drop, 1.0, xtol=1e-12))


def tango_lower(lost: float, gained: float, n: float, alpha: float) -> float:
    """Lower bound of the drop: `-tango_upper` with lost and gained exchanged."""
    return -tango_upper(gained, lost, n, alpha)


def newcombe_interval(both_right: int, lost: int, gained: int, both_wrong: int, level: float) -> tuple[float, float]:
    """Two-sided interval of the drop from two Wilson intervals and their correlation phi (square and add).

    Reported for readers who know it; never decides.

    Source: Newcombe 1998, Stat Med 17:2635, method 10 (phi with its continuity correction).
    """
    n = both_right + lost + gained + both_wrong
    baseline, candidate = (both_right + lost) / n, (both_right + gained) / n
    l1, u1 = wilson_interval(both_right + lost, n, level)
    l2, u2 = wilson_interval(both_right + gained, n, level)
    margins = (both_right + lost) * (gained + both_wrong) * (both_right + gained) * (lost + both_wrong)
    excess = both_right * both_wrong - lost * gained
    if excess > 0:
        excess = max(excess - n / 2, 0.0)
    phi = excess / sqrt(margins) if margins else 0.0
    down, up = baseline - l1, u2 - candidate
    lower = sqrt(max(down * down - 2 * phi * down * up + up * up, 0.0))
    down, up = candidate - l2, u1 - baseline
    upper = sqrt(max(up * up - 2 * phi * up * down + down * down, 0.0))
    drop = baseline - candidate
    return drop - lower, drop + upper


def wilson_interval(right: int, n: int, level: float) -> tuple[float, float]:
    """Two-sided interval of one arm's accuracy: the proportions that a score test does not reject.

    Source: Wilson 1927, J Am Stat Assoc 22:209.
    """
    z, proportion = float(norm.isf((1 - level) / 2)), right / n
    centre = proportion + z * z / (2 * n)
    half = z * sqrt(proportion * (1 - proportion) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (centre - half) / scale, (centre + half) / scale


def accuracy_upper(right: int, n: int, alpha: float) -> float:
    """One-sided upper bound of an accuracy (Clopper & Pearson 1934), for the floor rule."""
    return 1.0 if right >= n else float(beta.isf(alpha, right + 1, n - right))


def smallest_provable_margin(n: int, alpha: float = 0.05) -> float:
    """The margin that n items prove when none differs: Tango's bound at b = c = 0, which is `z^2 / (n + z^2)`.

    Returns:
        A proportion; 1.0 for n = 0 (nothing can be proven).
    """
    z2 = float(norm.isf(alpha)) ** 2
    return z2 / (n + z2)
