"""What a number of items can show at a discordance, and how long they take on an arm."""

from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from evalsvc.errors import EvidenceError
from evalsvc.evidence import average_repeats, counted_by_suite, differing_factors, measure_pairs, nothing_scored
from evalsvc.policy import Policy
from evalsvc.row import format_margin, format_points
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store, open_store
from evalsvc.verdict.paired import smallest_provable_margin
from evalsvc.verdict.power import detectable_drop, exact_power, items_needed, items_to_prove, provable_margin

POWER = 0.8


@dataclass(frozen=True)
class Pilot:
    """What is known before a run.

    Attributes:
        discordance: Share of items that flip either way.
        seconds_per_item: Of work on the arm; None where nobody measured.
        source: Where both come from; empty when they were typed.
    """

    discordance: float
    seconds_per_item: float | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ItemPlan:
    """Planning figures. Proportions.

    Attributes:
        detectable: Smallest drop that these items find with 80 % power; infinite when none.
        provable_at_best: Margin that they prove when no item flips.
        provable: Margin that they prove when as many are gained as lost, at the pilot's discordance.
        power_at_margin: Exact power against a drop of the margin.
        items_for_margin: Items that find a drop of the margin; infinite when that is above the discordance.
        items_to_pass: Items that prove the margin in four of five runs when nothing is wrong.
    """

    items: int
    pilot: Pilot
    margin: float
    alpha: float
    detectable: float
    provable_at_best: float
    provable: float
    power_at_margin: float | None
    items_for_margin: float | None
    items_to_pass: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, drops and margins in points; null where no number of items is enough."""
        return {
            "items": self.items,
            "discordance_points": 100 * self.pilot.discordance,
            "source": self.pilot.source,
            "seconds_per_item": self.pilot.seconds_per_item,
            "margin_points": 100 * self.margin,
            "alpha": self.alpha,
            "power": POWER,
            "detectable_drop_points": 100 * self.detectable if isfinite(self.detectable) else None,
            "provable_margin_at_best_points": 100 * self.provable_at_best,
            "provable_margin_points": 100 * self.provable,
            "power_at_margin": self.power_at_margin,
            "items_that_find_the_margin": self.items_for_margin,
            "items_that_prove_the_margin": self.items_to_pass,
        }

    def lines(self) -> list[str]:
        """The same in sentences."""
        flips = f"{format_points(self.pilot.discordance)} points of discordance"
        from_where = f" ({self.pilot.source})" if self.pilot.source else ""
        found = (
            f"a drop of {format_points(self.detectable)} points is found in 4 of 5 runs"
            if isfinite(self.detectable)
            else "no drop is found reliably: too few items flip"
        )
        lines = [
            f"{self.items:,} items at {flips}{from_where}:",
            f"  {found}",
            f"  smallest margin that they prove: {format_points(self.provable_at_best)} points when no item flips, "
            f"{format_points(self.provable)} when as many are gained as lost",
        ]
        margin = format_margin(self.margin)
        if self.power_at_margin is not None and self.items_for_margin is not None:
            lines.append(
                f"  a drop of {margin} points is found in {100 * self.power_at_margin:.0f} % of runs; "
                f"4 of 5 need {self._amount(self.items_for_margin)}"
            )
        if self.items_to_pass is not None:
            lines.append(
                f"  to prove a margin of {margin} points in 4 of 5 runs when nothing is wrong: "
                f"{self._amount(self.items_to_pass)}"
            )
        return lines

    def _amount(self, items: float) -> str:
        text = f"{ceil(items):,} items"
        if self.pilot.seconds_per_item is None:
            return text
        return f"{text}, about {_time(items * self.pilot.seconds_per_item)} of work on this arm"


def _time(seconds: float) -> str:
    """In the unit that a person would plan with."""
    for unit, size in (("days", 86400), ("hours", 3600)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'s' * (minutes > 1)}"


def plan_items(items: int, pilot: Pilot, policy: Policy) -> ItemPlan:
    """Works the figures out for independent items."""
    f, margin, alpha = pilot.discordance, policy.margin, policy.alpha
    possible = 0 < margin <= f
    lost, gained = (f + margin) / 2, (f - margin) / 2
    return ItemPlan(
        items=items,
        pilot=pilot,
        margin=margin,
        alpha=alpha,
        detectable=detectable_drop(items, f, alpha=alpha, power=POWER),
        provable_at_best=smallest_provable_margin(items, alpha),
        provable=provable_margin(items, f, alpha=alpha),
        power_at_margin=exact_power(lost, gained, items, alpha=alpha) if possible else None,
        items_for_margin=items_needed(lost, gained, alpha=alpha, power=POWER) if possible else None,
        items_to_pass=items_to_prove(f, margin, alpha=alpha, power=POWER) if margin > 0 else None,
    )


def pilot_of(address: str, arm: str) -> Pilot:
    """Discordance and seconds an item of a stored arm against its run's baseline (or of the baseline's A/A).

    Raises:
        EvidenceError: Nothing to compare it with.
    """
    with open_store(address, read_only=True) as store:
        record = queries.resolve_arm(store, arm)
        other = _other(store, record)
        pairs = average_repeats(queries.pairs(store, other, record))
        counted = counted_by_suite(pairs, differing_factors(other, record))
        measured = measure_pairs([pair for members in counted.values() for pair in members], 0.05)
        totals = queries.arm_totals(store, record.id)
    if measured is None:
        raise EvidenceError(nothing_scored(other, record, pairs))
    if not measured.lost + measured.gained:
        raise EvidenceError(f"{record.address}: no item differs from {other.address}; give --discordance")
    seconds = totals.seconds / totals.samples if totals.seconds and totals.samples else None
    return Pilot(measured.discordance, seconds, f"{record.address} against {other.address}, {measured.n:,} items")


def _other(store: Store, record: ArmRecord) -> ArmRecord:
    if record.name != record.baseline:
        return next(arm for arm in queries.arms(store, record.run_id) if arm.name == record.baseline)
    again = queries.aa_of(store, record.run_id)
    if again is None:
        raise EvidenceError(f"{record.address} is a baseline without an A/A: name a candidate, or give --discordance")
    return again
