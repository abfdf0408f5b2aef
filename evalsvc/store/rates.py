"""Rates of failure modes among the answers of an arm."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from evalsvc.modes import ANY, METRICS, MODES, PREFIX
from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import ItemRow, Sample, ScoreRow
from evalsvc.store.session import Store


@dataclass(frozen=True)
class FailureRates:
    """Failure modes of one suite's generated answers.

    Attributes:
        answers: Answers that were looked at; those of databases from before failure modes were not.
        any: Answers that show a mode.
        shown: Answers that show each mode, those that none shows left out.
    """

    answers: int
    any: int
    shown: dict[str, int]

    def rate(self, mode: str) -> float:
        """Share of the answers that show a mode, a proportion."""
        return self.shown.get(mode, 0) / self.answers


def failure_rates(store: Store, arm: ArmRecord) -> dict[str, FailureRates]:
    """By suite what an arm's generated answers show, under the scoring version that counts."""
    query = (
        select(Sample.id, ItemRow.suite, ScoreRow.scoring_version, ScoreRow.metric, ScoreRow.value)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm.id, Sample.status == "scored", ScoreRow.metric.in_(METRICS))
        .order_by(ScoreRow.id)
    )
    newest: dict[int, tuple[str, str]] = {}
    found: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    with store.session() as session:
        for sample_id, suite, version, metric, value in session.execute(query):
            if not arm.reads(suite, version):
                continue
            found[sample_id, version][metric] = value
            if metric == ANY:
                newest[sample_id] = suite, version
    shown: dict[str, Counter[str]] = defaultdict(Counter)
    answers: Counter[str] = Counter()
    for sample_id, (suite, version) in newest.items():
        answers[suite] += 1
        shown[suite].update(metric for metric, value in found[sample_id, version].items() if value)
    return {
        suite: FailureRates(n, shown[suite][ANY], {m: k for m in MODES if (k := shown[suite][PREFIX + m])})
        for suite, n in sorted(answers.items())
    }
