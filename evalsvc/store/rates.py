"""Rates of failure modes among the answers of an arm."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import case, func, select

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
    beside = baseline is not None and _has_entropies(store, baseline)
    if not beside and (counted := _counted(store, arm)) is not None:
        return counted
    if baseline is not None and beside:
        ranges = {suite: spans(found) for suite, found in _shown(store, baseline).items()}
    rates = {}
    for suite, samples in sorted(_shown(store, arm).items()):
        read = [beside_baseline(found, ranges.get(suite, {})) for found in samples]
        shown = Counter(metric for found in read for metric, value in found.items() if value)
        modes = {mode: count for mode in MODES if (count := shown[PREFIX + mode])}
        rates[suite] = FailureRates(len(samples), shown[ANY], modes)
    return rates


def _counted(store: Store, arm: ArmRecord) -> dict[str, FailureRates] | None:
    """The rates as the database counts them, beside no baseline; None where a suite was scored more than once."""
    shows = func.sum(case((ScoreRow.value != 0, 1), else_=0))
    query = (
        select(ItemRow.suite, ScoreRow.metric, ScoreRow.scoring_version, func.count(), shows)
        .select_from(Sample)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm.id, Sample.status == "scored", ScoreRow.metric.in_(METRICS))
        .group_by(ItemRow.suite, ScoreRow.metric, ScoreRow.scoring_version)
    )
    with store.session() as session:
        rows = [row for row in session.execute(query) if arm.reads(row[0], row[2])]
    if len({(suite, version) for suite, _, version, _, _ in rows}) > len({row[0] for row in rows}):
        return None
    found = {(suite, metric): (count, shown) for suite, metric, _, count, shown in rows}
    rates = {}
    for suite in sorted({suite for suite, metric in found if metric == ANY}):
        answers, shown = found[suite, ANY]
        modes = {mode: found[suite, PREFIX + mode][1] for mode in MODES if found.get((suite, PREFIX + mode), (0, 0))[1]}
        rates[suite] = FailureRates(answers, shown, modes)
    return rates


def _has_entropies(store: Store, arm: ArmRecord) -> bool:
    """Whether any answer of an arm was long enough to say what is ordinary."""
    query = (
        select(ScoreRow.id)
        .join(Sample, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm.id, ScoreRow.metric.in_(ENTROPIES))
        .limit(1)
    )
    with store.session() as session:
        return session.execute(query).first() is not None


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
