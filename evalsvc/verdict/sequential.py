"""Looking while the answers come, without paying for the looks: e-processes and the hybrid design.

A unit is an item, or all items of a cluster. With T its sum of correct(baseline) - correct(candidate), n its items and
m the largest n of any unit, each hypothesis about the drop has a process that bets against it:

    the drop is at most d:    E(lambda) = prod(1 + lambda / (1 + d) (T - d n) / m)
    the drop is at least d:   E(lambda) = prod(1 - lambda / (1 - d) (T - d n) / m)

Every factor is positive for lambda < 1, and under its hypothesis E reaches 1/a with probability a at most, whenever one
looks (Ville 1939; bets as in Waudby-Smith & Ramdas 2024). E is the mean over 24 bets. Against "at most 0" it finds a
regression, against "at least the margin" it finds a PASS. The hybrid p of a direction is the union of that process at a
fifth of alpha and of the fixed test, taken once over all planned items, at the rest:

    p = min(1, 5 / E_max, 1.25 p_fixed)
"""

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np

BETS = np.geomspace(0.02, 0.98, 24)
E_SHARE = 0.2  # the process's share of alpha
FIXED_SHARE = 1 - E_SHARE  # the fixed test's
PRECISION = 1e-9  # of bounds


def hybrid_p(p_fixed: float, log_e_max: float) -> float:
    """The hybrid p of one direction.

    Args:
        p_fixed: Of the fixed test over all planned items; 1.0 while these are not all there.
        log_e_max: Largest log e-value at any look so far.
    """
    return min(1.0, exp(min(-log_e_max, 700.0)) / E_SHARE, p_fixed / FIXED_SHARE)


def threshold(alpha: float, family: int = 1) -> float:
    """log e-value at which a process decides alone, as one of `family` tests of level alpha."""
    return log(family / (E_SHARE * alpha))


class Sequential:
    """The processes of one comparison, fed block by block.

    Args:
        largest: Items of the largest unit that is planned; 1 where items are independent.
    """

    def __init__(self, largest: int = 1) -> None:
        self._largest = largest
        self._kinds: dict[tuple[float, float], int] = {}
        self._seen = np.zeros((0, 0))  # units of each kind up to each look. Shape: (looks, kinds)

    def add(self, totals: Sequence[float], sizes: Sequence[int] | None = None) -> None:
        """Takes one complete block: after it there is one look more.

        Args:
            totals: T of each unit.
            sizes: n of each unit; None where each is one item.
        """
        units = zip(totals, sizes or [1] * len(totals), strict=True)
        block = [self._kinds.setdefault(unit, len(self._kinds)) for unit in units]
        looks, kinds = self._seen.shape
        seen = np.zeros((looks + 1, len(self._kinds)))
        seen[:-1, :kinds] = self._seen
        seen[-1] = seen[-2] if looks else 0
        seen[-1] += np.bincount(np.array(block, dtype=int), minlength=len(self._kinds))
        self._seen = seen

    def above(self, drop: float) -> np.ndarray:
        """log e-values against "the drop is at most `drop`" (a proportion above -1), the largest up to each look."""
        return self._highest(BETS / (1 + drop), drop)

    def below(self, drop: float) -> np.ndarray:
        """log e-values against "the drop is at least `drop`" (a proportion below 1), the largest up to each look."""
        return self._highest(-BETS / (1 - drop), drop)

    def bounds(self, level: float) -> tuple[float, float]:
        """Lower and upper bound of the drop, each wrong with probability `level` at most, whenever one looks."""
        wanted = -log(level)
        if not len(self._seen):
            return -1.0, 1.0
        upper = _smallest(lambda drop: bool(self.below(drop)[-1] >= wanted))
        lower = -_smallest(lambda rise: bool(self.above(-rise)[-1] >= wanted))
        return lower, upper

    def _highest(self, bets: np.ndarray, drop: float) -> np.ndarray:
        if not self._kinds:
            return np.zeros(len(self._seen))
        kinds = np.array(list(self._kinds))
        factors = np.log1p(np.multiply.outer((kinds[:, 0] - drop * kinds[:, 1]) / self._largest, bets))
        return np.maximum.accumulate(np.logaddexp.reduce(self._seen @ factors, axis=1) - log(len(bets)))


def _smallest(rejected: Callable[[float], bool]) -> float:
    """The smallest value in (-1, 1) that is rejected, as all larger ones are; 1 where none is."""
    low, high = PRECISION - 1, 1 - PRECISION
    if not rejected(high):
        return 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return high


def first_decision(process: Sequential, margin: float, alpha: float, family: int = 1) -> tuple[int, str] | None:
    """The first look that decides a comparison, and its word; None when none does.

    Args:
        process: Fed with every block so far.
        margin: Accepted drop, a proportion.
        alpha: Error rate of each direction.
        family: Tests of the family: each stops as a regression at `family` times the evidence (Bonferroni, so that
            Holm over the hybrid p agrees); PASS needs all of its tests and no correction.
    """
    red = process.above(0.0) >= threshold(alpha, family)
    green = process.below(margin) >= threshold(alpha)
    decided = red | green
    if not decided.any():
        return None
    look = int(decided.argmax())
    return look, "PASS" if green[look] else "REGRESSED"
