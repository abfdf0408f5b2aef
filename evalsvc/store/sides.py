"""One arm's side of a table of pairs: its samples, each with the score that counts."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Row, and_, case, or_, select
from sqlalchemy.orm import Session

from evalsvc.errors import EvidenceError
from evalsvc.modes import ANY, Span, beside_baseline, filled, without
from evalsvc.store.records import ArmRecord, Side
from evalsvc.store.schema import ItemRow, Sample, ScoreRow

NOT_RESCORED = "not_rescored"  # error class of a sample without a score under the version that its arm is read under


_PairKey = tuple[str, str, str, int]


def sides_query(arm_id: int) -> Any:
    """Every sample of an arm with its item, once per scoring version, the newest score last.

    Of an item without a metric its failure modes say under which version it was scored.
    """
    own = ScoreRow.metric.in_((ItemRow.metric, ItemRow.metric + ".0"))  # of a corpus metric there may be parts alone
    modes = and_(ItemRow.metric == "", ScoreRow.metric == ANY)
    score = and_(ScoreRow.sample_id == Sample.id, or_(own, modes), ScoreRow.filter == ItemRow.filter)
    return (
        select(
            ItemRow.suite,
            ItemRow.family,
            ItemRow.cluster,
            ItemRow.item_id,
            ItemRow.item_hash,
            ItemRow.scored_by,
            ItemRow.metric,
            ItemRow.chance,
            Sample.id,
            Sample.request_hash,
            Sample.settings_hash,
            Sample.rendered_hash,
            Sample.repeat,
            Sample.through,
            Sample.status,
            Sample.error_class,
            Sample.finish_reason,
            Sample.stage_tokens,
            Sample.handed_over,
            case((ScoreRow.metric == ItemRow.metric, ScoreRow.value)).label("value"),
            ScoreRow.error_class.label("score_error_class"),
            ScoreRow.scoring_version,
        )
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .outerjoin(ScoreRow, score)
        .where(Sample.arm_id == arm_id)
        .order_by(Sample.id, ScoreRow.id)
    )


def whole(
    scores: Mapping[str, Mapping[int, dict[str, float]]], ranges: Mapping[str, Mapping[str, Span]]
) -> dict[int, dict[str, float]]:
    """By sample its metrics, gibberish beside the baseline's answers among them, zeros filled in."""
    return {
        sample_id: filled(beside_baseline(found, ranges.get(suite, {})))
        for suite, samples in scores.items()
        for sample_id, found in samples.items()
    }


def scores_by_suite(
    session: Session, arm: ArmRecord, suites: Collection[str]
) -> dict[str, dict[int, dict[str, float]]]:
    """By suite and sample every metric through its item's own filter, under the scoring version that counts."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    if suites:
        query = (
            select(Sample.id, ScoreRow.metric, ScoreRow.value, ItemRow.suite, ScoreRow.scoring_version)
            .join(ItemRow, Sample.item_pk == ItemRow.id)
            .join(ScoreRow, and_(ScoreRow.sample_id == Sample.id, ScoreRow.filter == ItemRow.filter))
            .where(Sample.arm_id == arm.id, Sample.status == "scored", ItemRow.suite.in_(suites))
            .order_by(ScoreRow.id)
        )
        for sample_id, metric, value, suite, version in session.execute(query):
            if not arm.reads(suite, version):
                continue
            held = found.setdefault(suite, {})
            scores = held.setdefault(sample_id, {})
            if metric == ANY:  # begins what a scoring version says of failure modes
                held[sample_id] = scores = without(scores)
            scores[metric] = value
    return found


def sides(
    rows: Iterable[Row[Any]], arm: ArmRecord, scores: Mapping[int, dict[str, float]]
) -> dict[_PairKey, tuple[Row[Any], Side]]:
    """An arm's samples by suite, item, scoring stage and repeat, each with its row.

    Args:
        rows: Of `sides_query`.
        arm: Whose they are; it says which scoring version counts.
        scores: Other metrics by sample, of `whole`.

    Raises:
        EvidenceError: Two samples for one place, so that it is unclear which counts.
    """
    found: dict[_PairKey, tuple[Row[Any], Side]] = {}
    for row in rows:
        key = (row.suite, row.item_id, row.through, row.repeat)
        earlier = found.get(key)
        if earlier is not None and earlier[1].sample_id != row.id:
            raise EvidenceError(
                f"{arm.address} holds two different samples of item '{row.item_id}' of suite '{row.suite}' "
                "(its item, request or settings changed inside the run); start a new run"
            )
        if earlier is not None and row.value is None and row.scoring_version == earlier[0].scoring_version:
            continue  # a part, beside the metric itself
        unread = row.scoring_version is not None and not arm.reads(row.suite, row.scoring_version)
        if earlier is not None and unread:
            continue
        scored = row.status == "scored" and not unread
        side = Side(
            sample_id=row.id,
            item_hash=row.item_hash,
            request_hash=row.request_hash,
            settings_hash=row.settings_hash,
            rendered_hash=row.rendered_hash,
            status="error" if unread else row.status,
            value=row.value if scored else None,
            error_class=row.score_error_class if scored else NOT_RESCORED if unread else row.error_class,
            finish_reason=row.finish_reason,
            stage_tokens=row.stage_tokens,
            handed_over=row.handed_over,
            scoring_version=row.scoring_version if scored else None,
            scores=scores.get(row.id, {}),
        )
        found[key] = (row, side)
    return found
