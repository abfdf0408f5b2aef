"""Reading answers back, to compare them or to score them again."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from evalsvc.store.records import ArmRecord, StoredAnswer, Turn
from evalsvc.store.schema import Arm, ItemRow, Sample, ScoreRow, TurnRow
from evalsvc.store.session import Store


def answers(store: Store, arm: ArmRecord) -> list[StoredAnswer]:
    """Every sample of an arm with its answers and scoring versions, in the order in which they were stored."""
    query = (
        select(Sample, ItemRow)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .where(Sample.arm_id == arm.id)
        .order_by(Sample.id)
    )
    with store.session() as session:
        turns, versions, values = _turns(session, arm.id), _versions(session, arm.id), _values(session, arm.id)
        return [
            StoredAnswer(
                sample_id=sample.id,
                suite=item.suite,
                family=item.family,
                item_id=item.item_id,
                item_hash=item.item_hash,
                metric=item.metric,
                filter=item.filter,
                scored_by=item.scored_by,
                request_hash=sample.request_hash,
                rendered_hash=sample.rendered_hash,
                through=sample.through,
                repeat=sample.repeat,
                status=sample.status,
                prompt=sample.prompt,
                answer=sample.answer,
                finish_reason=sample.finish_reason,
                prompt_tokens=sample.prompt_tokens,
                answer_tokens=sample.answer_tokens,
                stage_tokens=sample.stage_tokens,
                handed_over=sample.handed_over,
                timings=sample.timings,
                turns=tuple(turns.get(sample.id, ())),
                values=values.get(sample.id, {}),
                versions=frozenset(versions.get(sample.id, ())),
            )
            for sample, item in session.execute(query)
        ]


def _turns(session: Session, arm_id: int) -> dict[int, list[Turn]]:
    """By sample its turns."""
    query = (
        select(TurnRow.sample_id, TurnRow.answer, TurnRow.finish_reason, TurnRow.token_ids)
        .join(Sample, TurnRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm_id)
        .order_by(TurnRow.sample_id, TurnRow.turn)
    )
    found: dict[int, list[Turn]] = {}
    for sample_id, answer, finish_reason, ids in session.execute(query):
        found.setdefault(sample_id, []).append(Turn(answer, finish_reason, tuple(ids)))
    return found


def _versions(session: Session, arm_id: int) -> dict[int, set[str]]:
    query = (
        select(ScoreRow.sample_id, ScoreRow.scoring_version)
        .join(Sample, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm_id)
        .distinct()
    )
    found: dict[int, set[str]] = {}
    for sample_id, version in session.execute(query):
        found.setdefault(sample_id, set()).add(version)
    return found


def _values(session: Session, arm_id: int) -> dict[int, dict[str, float]]:
    query = (
        select(ScoreRow.sample_id, ScoreRow.scoring_version, ScoreRow.value)
        .join(Sample, ScoreRow.sample_id == Sample.id)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .where(
            Sample.arm_id == arm_id,
            ScoreRow.metric.in_((ItemRow.metric, ItemRow.metric + ".0")),
            ScoreRow.filter == ItemRow.filter,
        )
        .order_by(ScoreRow.id)
    )
    found: dict[int, dict[str, float]] = {}
    for sample_id, version, value in session.execute(query):
        found.setdefault(sample_id, {}).setdefault(version, value)
    return found


def values_of(store: Store, run_id: int, arm: str) -> dict[tuple[str, str, str, str, str, int], float]:
    """By `NewSample.key` the newest value of each scored sample's own metric; empty without such an arm."""
    query = (
        select(
            *(ItemRow.suite, ItemRow.item_id, ItemRow.item_hash, Sample.request_hash, Sample.settings_hash),
            *(Sample.repeat, ScoreRow.value),
        )
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(Arm, Arm.id == Sample.arm_id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Arm.run_id == run_id, Arm.name == arm, Sample.status == "scored")
        .where(ScoreRow.metric == ItemRow.metric, ScoreRow.filter == ItemRow.filter)
        .order_by(ScoreRow.id)
    )
    with store.session() as session:
        return {(row[0], row[1], row[2], row[3], row[4], row[5]): row[6] for row in session.execute(query)}
