"""Rates of failure modes among the answers of an arm."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from evalsvc.modes import ANY, ENTROPIES, METRICS, MODES, PREFIX, beside_baseline, spans
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


def failure_rates(store: Store, arm: ArmRecord, baseline: ArmRecord | None = None) -> dict[str, FailureRates]:
    """By suite what an arm's generated answers show, under the scoring version that counts.

    Args:
        store: Open database.
        arm: Whose answers.
        baseline: Whose answers say what is ordinary; None takes what is ordinary of any text.
    """
    ranges = {}
    if baseline is not None:
        ranges = {suite: spans(found) for suite, found in _shown(store, baseline).items()}
    rates = {}
    for suite, samples in sorted(_shown(store, arm).items()):
        read = [beside_baseline(found, ranges.get(suite, {})) for found in samples]
        shown = Counter(metric for found in read for metric, value in found.items() if value)
        modes = {mode: count for mode in MODES if (count := shown[PREFIX + mode])}
        rates[suite] = FailureRates(len(samples), shown[ANY], modes)
    return rates


def _shown(store: Store, arm: ArmRecord) -> dict[str, list[dict[str, float]]]:
    """By suite of each generated answer what is stored of failure modes."""
    query = (
        select(Sample.id, ItemRow.suite, ScoreRow.scoring_version, ScoreRow.metric, ScoreRow.value)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm.id, Sample.status == "scored", ScoreRow.metric.in_((*METRICS, *ENTROPIES)))
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
    shown: dict[str, list[dict[str, float]]] = defaultdict(list)
    for sample_id, (suite, version) in newest.items():
        shown[suite].append(found[sample_id, version])
    return shown
