"""Figures over many answers: when tools are called, and how many calls fit their schemas."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Triggering:
    """How often a call was begun, against what should have been.

    The reference is what the cases expect, or another arm's answers to them: the measure by which K2 Vendor Verifier
    compares a deployment with the official one.

    Attributes:
        both: Begun by both.
        ours: Begun by the arm alone.
        reference: Begun by the reference alone.
        neither: Begun by neither.
    """

    both: int
    ours: int
    reference: int
    neither: int

    @property
    def f1(self) -> float | None:
        """2 both / (2 both + ours + reference); None where neither ever begins a call."""
        total = 2 * self.both + self.ours + self.reference
        return 2 * self.both / total if total else None

    @property
    def precision(self) -> float | None:
        """Share of the arm's triggers that are the reference's too; None without any."""
        return self.both / (self.both + self.ours) if self.both + self.ours else None

    @property
    def recall(self) -> float | None:
        """Share of the reference's triggers that are the arm's too; None without any."""
        return self.both / (self.both + self.reference) if self.both + self.reference else None


def triggering(pairs: Iterable[tuple[bool, bool]]) -> Triggering:
    """Counts pairs of (the arm began a call, the reference did or the case expects one)."""
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for ours, reference in pairs:
        counts[bool(ours), bool(reference)] += 1
    return Triggering(*counts.values())


def schema_accuracy(valid: int, triggered: int) -> float | None:
    """Share of answers with a call whose calls all fit their schemas; None without any.

    Raises:
        ValueError: Counts that cannot be.
    """
    if not 0 <= valid <= triggered:
        raise ValueError(f"{valid} valid of {triggered} triggered cannot be")
    return valid / triggered if triggered else None
