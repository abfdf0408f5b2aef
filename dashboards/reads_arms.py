"""What pages about whole arms read: error classes counted in SQL, gate words over runs, rows of jobs."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import func, select

from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.reads_flips import score_that_counts
from evalsvc.dashboards.rows import POOLED as POOLED_ROW
from evalsvc.dashboards.rows import SUITE
from evalsvc.history import Point, asked_elsewhere, changes_since, fault_of, with_change_points
from evalsvc.series import POOLED, figures_of, kept_figures
from evalsvc.store.job_tables import ExecutionRow
from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import DecisionRow, ItemRow, Run, Sample, ScoreRow
from evalsvc.store.session import Store

NOT_COMPARED = "not compared with this baseline yet"
_ALPHA = 0.05  # of `evalsvc history`'s intervals


def error_classes(store: Store, arm: ArmRecord) -> list[tuple[str, str | None, int]]:
    """By suite how an arm's scored answers are wrong: suite, error class (None where none was given) and count.

    A right answer has no class either, so that counts of None are of right and of unexplained ones together.
    """
    query = (
        select(ItemRow.suite, ScoreRow.error_class, func.count())
        .select_from(Sample)
        .join(ItemRow, ItemRow.id == Sample.item_pk)
        .join(ScoreRow, ScoreRow.id == score_that_counts(Sample, arm))
        .where(Sample.arm_id == arm.id, Sample.status == "scored")
        .group_by(ItemRow.suite, ScoreRow.error_class)
        .order_by(ItemRow.suite, func.count().desc())
    )
    with store.session() as session:
        return [(suite, error, count) for suite, error, count in session.execute(query)]


def failed_samples(store: Store, arm: ArmRecord) -> list[tuple[str, str, int, str]]:
    """By status and error class the samples without a score: status, class, count and one of their messages."""
    query = (
        select(Sample.status, Sample.error_class, func.count(), func.max(Sample.error_message))
        .where(Sample.arm_id == arm.id, Sample.status != "scored")
        .group_by(Sample.status, Sample.error_class)
        .order_by(func.count().desc())
    )
    with store.session() as session:
        return [(status, error or "", n, message or "") for status, error, n, message in session.execute(query)]


def series(
    store: Store,
    baseline: ArmRecord,
    arms: Sequence[ArmRecord],
    left_out: Collection[int] = (),
    suite: str = POOLED,
) -> tuple[list[Point], dict[str, str]]:
    """An arm's points over its runs, oldest first, and the gate's word of each that was decided.

    A run that the gate decided against this baseline is shown with the gate's numbers, the others with those of
    `evalsvc history`; both are the same measurement of the same pairs.

    Args:
        store: The database.
        baseline: What every run is compared with.
        arms: The arm in its runs, oldest first.
        left_out: Ids of arms that are not compared now, unless that was done before.
        suite: Of which suite; empty for all of them pooled.
    """
    decided = _decided(store, baseline, arms)
    began = _began(store, {arm.run_id for arm in arms})
    points = []
    for before, arm in zip([None, *arms], arms, strict=False):
        about = {"address": arm.address, "created_at": began[arm.run_id], "changed": changes_since(before, arm)}
        row = _row(decided.get(arm.id), suite)
        figures = None if row is not None else kept_figures(baseline, arm)
        if row is not None:
            points.append(Point(**about, **_of_gate(row)))
        elif figures is None and arm.id in left_out:
            points.append(Point(**about, fault=NOT_COMPARED))
        else:
            found = figures or kept(store, (baseline, arm), "history", lambda arm=arm: figures_of(store, baseline, arm))
            points.append(Point(**about, **_of_suite(found, suite)))
    return with_change_points(points), {arm.address: decided[arm.id][0] for arm in arms if arm.id in decided}


def not_compared(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord], suite: str = POOLED) -> list[ArmRecord]:
    """Of these arms the ones whose comparison with the baseline is stored nowhere: their samples have to be read."""
    decided = _decided(store, baseline, arms)
    return [arm for arm in arms if _row(decided.get(arm.id), suite) is None and kept_figures(baseline, arm) is None]


def elsewhere(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> dict[str, list[str]]:
    """By address those of these arms that were asked no suite of the baseline's, with the suites of each."""
    decided = _decided(store, baseline, arms)
    suspect = [arm for arm in arms if _row(decided.get(arm.id), POOLED) is None]
    suspect = [arm for arm in suspect if (held := kept_figures(baseline, arm)) is None or fault_of(held)]
    return kept(store, (baseline, *suspect), "elsewhere", lambda: asked_elsewhere(store, baseline, suspect))


def suites_of(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> list[str]:
    """Names of the suites that stored comparisons of these arms with the baseline are about, sorted."""
    found: set[str] = set()
    for _, document in _decided(store, baseline, arms).values():
        found |= {row["suite"] for row in document.get("rows", ()) if row.get("level") == SUITE}
    for arm in arms:
        found |= (kept_figures(baseline, arm) or {}).keys()
    return sorted(found - {POOLED})


def _decided(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> dict[int, tuple[str, dict[str, Any]]]:
    """By arm the newest decision against this baseline: its word, and its document."""
    ids = [arm.id for arm in arms]
    newest = (
        select(func.max(DecisionRow.id))
        .where(DecisionRow.baseline_arm_id == baseline.id, DecisionRow.candidate_arm_id.in_(ids))
        .group_by(DecisionRow.candidate_arm_id)
    )
    query = select(DecisionRow.candidate_arm_id, DecisionRow.verdict, DecisionRow.decision)
    with store.session() as session:
        rows = session.execute(query.where(DecisionRow.id.in_(newest))).all()
    return {arm_id: (word, document) for arm_id, word, document in rows}


def _row(decided: tuple[str, dict[str, Any]] | None, suite: str) -> dict[str, Any] | None:
    """A decision's row of a suite, None where it holds no comparable numbers."""
    if decided is None:
        return None
    word, document = decided
    if word == "INVALID" or document.get("alpha") != _ALPHA or document["stop"]:
        return None
    wanted = (POOLED_ROW, "") if suite == POOLED else (SUITE, suite)
    rows = (row for row in document.get("rows", ()) if (row.get("level"), row.get("suite", "")) == wanted)
    row = next(rows, None)
    usable = row is not None and row.get("drop_points") is not None and row.get("interval_points") is not None
    return row if usable else None


def _of_gate(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row["interval_points"]
    counts = {"n": row["n"], "lost": row["b"], "gained": row["c"]}
    return counts | {"drop": row["drop_points"] / 100, "interval": (low / 100, high / 100)}


def _of_suite(figures: dict[str, dict[str, Any]], suite: str) -> dict[str, Any]:
    if suite in figures:
        return figures[suite]
    return figures[POOLED] if set(figures) == {POOLED} else {"fault": "not asked in this run"}


def _began(store: Store, run_ids: set[int]) -> dict[int, str]:
    with store.session() as session:
        found = session.execute(select(Run.id, Run.created_at).where(Run.id.in_(run_ids)))
        return {row.id: row.created_at for row in found}


def rows_of_table(store: Store, table: Any, columns: Sequence[str], most: int, newest: str) -> list[dict[str, Any]]:
    """The newest rows of a table of jobs, some of its columns.

    Args:
        store: The database.
        table: Its mapped class.
        columns: Names of columns.
        most: How many rows.
        newest: Column by which rows are sorted, the largest first.
    """
    chosen = [getattr(table, name) for name in columns]
    with store.session() as session:
        found = session.execute(select(*chosen).order_by(getattr(table, newest).desc()).limit(most))
        return [dict(zip(columns, row, strict=True)) for row in found]


def failed_jobs(store: Store) -> list[tuple[str, str, str, str]]:
    """Jobs whose newest ended execution failed or was missed: job, planned time, status and message, newest first."""
    newest = (
        select(func.max(ExecutionRow.id))
        .where(ExecutionRow.status.in_(("done", "failed", "missed")))
        .group_by(ExecutionRow.job)
    )
    query = (
        select(ExecutionRow.job, ExecutionRow.planned_at, ExecutionRow.status, ExecutionRow.message)
        .where(ExecutionRow.id.in_(newest), ExecutionRow.status != "done")
        .order_by(ExecutionRow.planned_at.desc())
    )
    with store.session() as session:
        return [(job, planned, status, message or "") for job, planned, status, message in session.execute(query)]
