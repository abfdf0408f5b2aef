"""A published pair of scores on the same items, without the items: what the verdict would be at each discordance."""

from bisect import bisect_left
from dataclasses import dataclass
from math import sqrt

from scipy.stats import norm

from evalsvc.verdict.measure import measure_counts
from evalsvc.verdict.paired import mcnemar_exact
from evalsvc.verdict.rule import decide


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What may be said of two published scores. Proportions.

    Attributes:
        n: Items.
        baseline_right: Items right in the baseline, as its score says.
        candidate_right: In the candidate.
        unpaired_p: Two-sided p of the unpaired z test, which forgets that the items are the same.
        significant_below: Largest discordance at which the two-sided exact p stays under alpha; None when none does.
        at: Verdict and one-sided p by discordance, ascending.
    """

    n: int
    baseline_right: int
    candidate_right: int
    alpha: float
    margin: float
    unpaired_p: float
    significant_below: float | None
    at: tuple[tuple[float, str, float], ...]

    @property
    def drop(self) -> float:
        """Published drop."""
        return (self.baseline_right - self.candidate_right) / self.n


def audit_published(n: int, baseline: float, candidate: float, margin: float, *, alpha: float = 0.05) -> Audited:
    """Audits two accuracies on the same n items.

    Args:
        n: Items, at least 1.
        baseline: Published accuracy, a proportion.
        candidate: As `baseline`.
        margin: Accepted drop, a proportion.
        alpha: Error rate of each direction.

    Raises:
        ValueError: Accuracies that no set of n items can have.
    """
    if n < 1 or not (0 <= baseline <= 1 and 0 <= candidate <= 1):
        raise ValueError(f"{n} items cannot have accuracies {baseline} and {candidate}")
    right, kept = round(n * baseline), round(n * candidate)
    difference = right - kept
    fewest, most = abs(difference), min(right + kept, 2 * n - right - kept)
    counts = range(fewest, most + 1, 2)  # flips that leave the published difference
    significant = bisect_left(
        counts, alpha, key=lambda flips: _two_sided((flips + difference) // 2, (flips - difference) // 2)
    )
    shown = sorted({fewest, *(fewest + 2 * round((most - fewest) * share / 2) for share in _SHARES), most})
    at = []
    for flips in shown:
        measured = measure_counts((flips + difference) // 2, (flips - difference) // 2, n, alpha=alpha)
        at.append((flips / n, decide(measured, margin).word, measured.p))
    return Audited(
        n=n,
        baseline_right=right,
        candidate_right=kept,
        alpha=alpha,
        margin=margin,
        unpaired_p=unpaired_p(right, n, kept, n),
        significant_below=counts[significant - 1] / n if significant else None,
        at=tuple(at),
    )


_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)


def unpaired_p(right: int, n: int, other_right: int, other_n: int) -> float:
    """Two-sided p of the z test for two independent samples, each with its sample error.

    Where neither varies (all right, or none) that error is 0 and says nothing: then the error of both together is
    taken, and p is 1.0 where they are equal.
    """
    p, q = right / n, other_right / other_n
    variance = p * (1 - p) / max(n - 1, 1) + q * (1 - q) / max(other_n - 1, 1)
    if p == q:
        return 1.0
    if variance == 0:
        both = (right + other_right) / (n + other_n)
        variance = both * (1 - both) * (1 / n + 1 / other_n)
    return float(2 * norm.sf(abs(p - q) / sqrt(variance)))


def _two_sided(lost: int, gained: int) -> float:
    return min(1.0, 2 * mcnemar_exact(max(lost, gained), min(lost, gained)))
