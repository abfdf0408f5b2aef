"""The rule: a measurement and a margin become one of four words."""

from dataclasses import dataclass
from typing import Literal

from evalsvc.verdict.measure import Measurement, more_items
from evalsvc.verdict.paired import accuracy_upper

Word = Literal["PASS", "REGRESSED", "INCONCLUSIVE", "INVALID"]
BEYOND_MARGIN, DROP_PROVEN, NOT_ESTABLISHED = "beyond margin", "drop proven", "not established"
BELOW_FLOOR = "below floor"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One of four words and what stands behind it. Proportions.

    Attributes:
        word: `PASS` is non-inferiority at alpha; `REGRESSED` a proven drop that is not proven to lie within the margin.
        margin: The accepted drop.
        p: The p compared with alpha, adjusted when the test is one of a family.
        drop_detected: A PASS whose drop is real all the same.
        severity: For REGRESSED, `beyond margin` when the drop is proven to exceed it, else `drop proven`; of a
            comparison that was stopped early `not established`, since more items might have shown either; `below floor`
            when the candidate is proven to lie below an absolute least.
        saturated: Every item right in both arms. Valid evidence.
        floor: The baseline is so near chance that it cannot lose the margin: INVALID.
        more_items: For INCONCLUSIVE, about how many further items would decide; None when unknown.
    """

    word: Word
    margin: float
    p: float
    drop_detected: bool = False
    severity: str | None = None
    saturated: bool = False
    floor: bool = False
    more_items: int | None = None


def decide(
    measured: Measurement, margin: float, *, p_adjusted: float | None = None, chance: float | None = None
) -> Verdict:
    """Applies the rule.

    `PASS` when the upper bound of the drop is at most the margin. Else `REGRESSED` when p < alpha. Else
    `INCONCLUSIVE`. Before all: `INVALID` where the upper bound of the baseline's accuracy does not exceed
    chance + margin, since such a baseline cannot lose the margin.

    Args:
        measured: Counts, p and bounds.
        margin: Accepted drop, a proportion.
        p_adjusted: p after Holm over the family; defaults to the measurement's own.
        chance: Mean proportion that guessing gets right; None skips the floor rule (counts alone cannot tell).
    """
    p = measured.p if p_adjusted is None else p_adjusted
    alpha, right, n = measured.alpha, measured.baseline_right, measured.n
    saturated = right == n and measured.lost == 0
    best = measured.baseline_upper if right is None else accuracy_upper(right, n, alpha)
    if chance is not None and best is not None and best <= chance + margin:
        return Verdict(word="INVALID", margin=margin, p=p, floor=True)
    if measured.upper <= margin:
        return Verdict(word="PASS", margin=margin, p=p, drop_detected=p < alpha, saturated=saturated)
    if p < alpha:
        otherwise = DROP_PROVEN if measured.complete else NOT_ESTABLISHED
        severity = BEYOND_MARGIN if measured.lower > margin else otherwise
        return Verdict(word="REGRESSED", margin=margin, p=p, severity=severity)
    needed = more_items(measured, margin, p_factor=p / measured.p)
    return Verdict(word="INCONCLUSIVE", margin=margin, p=p, saturated=saturated, more_items=needed)
