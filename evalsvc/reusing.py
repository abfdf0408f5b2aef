"""`run --reuse`: what earlier runs of the very same arms answered is copied, and it is said how much."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalsvc.freshness import stale
from evalsvc.limits import Standing
from evalsvc.parallel import Reporter
from evalsvc.questions import Question
from evalsvc.runner import ArmRun
from evalsvc.store.reuse import copy_samples
from evalsvc.store.schema import utc_now
from evalsvc.store.session import Store


def copy_earlier(
    store: Store,
    arms: Iterable[ArmRun],
    asked: Sequence[Question],
    baseline: str,
    rule: Standing | None,
    report: Reporter,
) -> None:
    """Copies samples of earlier runs into arms of a new one.

    Args:
        store: Where both are.
        arms: Of the new run.
        asked: Everything that each of them answers.
        baseline: Name of the baseline, of which nothing is copied that `rule` calls stale.
        rule: The policy's, about baselines.
        report: Told how many samples came from where.
    """
    wanted = {question.key for question in asked}
    versions = {question.suite.name: question.suite.scoring_version for question in asked}
    now = utc_now()
    for arm in arms:
        held = rule if arm.facts.name == baseline else None
        if held is not None and held.fresh == "always":
            report.note(f"{arm.facts.name}: the policy wants a fresh baseline, nothing is copied")
            continue

        def fits(details: Mapping[str, Any], created_at: str, held: Standing | None = held, arm: ArmRun = arm) -> bool:
            return held is None or not any(stale(held, details, created_at, arm.facts.details, now))

        copied = copy_samples(store, arm.arm_id, wanted, versions, fits)
        each = ", ".join(f"{count:,} from {address}" for address, count in copied.items())
        said = f"{sum(copied.values()):,} of {len(wanted):,} samples are copied"
        report.note(f"{arm.facts.name}: {said}" + (f" ({each})" if each else ""))
