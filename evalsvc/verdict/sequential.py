"""Looking while the answers come, without paying for the looks: e-processes and the hybrid design.

Per item D = correct(baseline) - correct(candidate), in [-1, 1]; for clusters of one size D is the total over the size.
Against "no drop" and against "the drop is at least M", for a bet lambda:

    regression:        E(lambda) = prod(1 + lambda D)
    non-inferiority:   E(lambda) = prod(1 - lambda / (1 - M) (D - M))

Each is a test martingale's upper envelope under its hypothesis: with probability at least 1 - a it never reaches 1/a,
whenever one looks (Ville 1939; bets as in Waudby-Smith & Ramdas 2024). E is the mean over 24 bets. The hybrid p of a
direction is the union of that process at level .01 and of the fixed test at level .04, taken once, at the end:

    p = min(1, 5 / E_max, 1.25 p_fixed)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log

import numpy as np

BETS = np.geomspace(0.02, 0.98, 24)
E_LEVEL = 0.01  # the process's share of alpha = .05
FIXED_SHARE = 0.8  # the fixed test's share


def log_regression_e(differences: np.ndarray) -> float:
    """log of the mixture e-value against "no drop".

    Args:
        differences: D per item or cluster, in [-1, 1].
    """
    return _mixture(np.log1p(np.multiply.outer(BETS, differences)).sum(axis=1))


def log_pass_e(differences: np.ndarray, margin: float) -> float:
    """log of the mixture e-value against "the drop is at least `margin`" (a proportion)."""
    bets = BETS / (1 - margin)
    return _mixture(np.log1p(-np.multiply.outer(bets, differences - margin)).sum(axis=1))


def log_regression_e_counts(lost: int, gained: int) -> float:
    """As `log_regression_e` for 0/1 outcomes: items that did not flip multiply by 1."""
    return _mixture(lost * np.log1p(BETS) + gained * np.log1p(-BETS))


def log_pass_e_counts(lost: int, gained: int, n: int, margin: float) -> float:
    """As `log_pass_e` for 0/1 outcomes."""
    bets = BETS / (1 - margin)
    same = n - lost - gained
    return _mixture(
        lost * np.log1p(-bets * (1 - margin)) + gained * np.log1p(bets * (1 + margin)) + same * np.log1p(bets * margin)
    )


def log_beyond_e_counts(lost: int, gained: int, n: int, margin: float) -> float:
    """log of the mixture e-value against "the drop is at most `margin`": a large one says that it is beyond."""
    bets = BETS / (1 + margin)
    same = n - lost - gained
    return _mixture(
        lost * np.log1p(bets * (1 - margin)) + gained * np.log1p(-bets * (1 + margin)) + same * np.log1p(-bets * margin)
    )


def hybrid_p(p_fixed: float, log_e_max: float) -> float:
    """The hybrid p of one direction.

    Args:
        p_fixed: Of the fixed test over all planned items; 1.0 while these are not all there.
        log_e_max: Largest log e-value at any look so far.
    """
    return min(1.0, 5 * exp(-log_e_max), p_fixed / FIXED_SHARE)


def _mixture(logs: np.ndarray) -> float:
    return float(np.logaddexp.reduce(logs)) - log(len(BETS))


@dataclass
class Look:
    """What was seen at the end of one block.

    Attributes:
        n: Items so far.
        lost: Items right in the baseline only.
        gained: Items right in the candidate only.
        decided: `REGRESSED`, `PASS`, or empty.
        beyond: Whether the drop was beyond the margin by its own process, where a regression was decided.
    """

    n: int
    lost: int
    gained: int
    decided: str
    beyond: bool = False


@dataclass
class Sequential:
    """One comparison under the hybrid design, fed block by block in the order of the seeded shuffle.

    Attributes:
        margin: Proportion.
        family: Tests in the family (Holm over them: a regression stops at E >= family / .01).
        looks: One for each block.
    """

    margin: float
    family: int = 1
    looks: list[Look] = field(default_factory=list)
    log_e: float = -inf
    log_e_pass: float = -inf
    _differences: list[float] = field(default_factory=list)
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, differences: Sequence[float], items: Sequence[tuple[int, int, int]] | None = None) -> Look:
        """Takes one complete block.

        Args:
            differences: D per item, or per whole cluster of one size.
            items: Per entry its (items, lost, gained), where entries are clusters.

        Returns:
            What this block decides; once decided, later blocks change nothing.
        """
        if self.looks and self.looks[-1].decided:
            raise ValueError("the comparison is decided already")
        self._differences += differences
        parts = items or [(1, int(d == 1), int(d == -1)) for d in differences]
        for i in range(3):
            self._counts[i] += sum(part[i] for part in parts)
        n, lost, gained = self._counts
        every = np.asarray(self._differences)
        counted = items is None
        regression = log_regression_e_counts(lost, gained) if counted else log_regression_e(every)
        within = log_pass_e_counts(lost, gained, n, self.margin) if counted else log_pass_e(every, self.margin)
        self.log_e, self.log_e_pass = max(self.log_e, regression), max(self.log_e_pass, within)
        decided = ""
        if self.log_e >= log(self.family / E_LEVEL):
            decided = "REGRESSED"
        elif self.log_e_pass >= -log(E_LEVEL):
            decided = "PASS"
        beyond = decided == "REGRESSED" and log_beyond_e_counts(lost, gained, n, self.margin) >= -log(E_LEVEL)
        self.looks.append(Look(n, lost, gained, decided, beyond))
        return self.looks[-1]
