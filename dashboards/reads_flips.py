"""Flips and samples out of the database: the pairing happens in SQL, and texts are read for what is shown alone.

A flip is what `store.queries.flips` calls one: both sides scored under the scoring version that counts, unequal
values. An item whose question changed between the arms' runs is none here: its samples are of two items.
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, case, func, literal, select
from sqlalchemy.orm import aliased

from evalsvc.store.records import ArmRecord, Turn
from evalsvc.store.schema import ItemRow, Run, Sample, ScoreRow, TurnRow
from evalsvc.store.session import Store

LOST, GAINED = "lost", "gained"
UNKNOWN_STAGES = "unknown"
_CHUNK = 500


@dataclass(frozen=True, kw_only=True)
class Flip:
    """An item that one arm alone has right. Sample ids are primary keys; error classes are of the item's own metric."""

    suite: str
    family: str
    item: str
    through: str
    repeat: int
    baseline_id: int
    candidate_id: int
    baseline_value: float
    candidate_value: float
    baseline_error: str | None
    candidate_error: str | None
    stages: str

    @property
    def direction(self) -> str:
        """`lost` or `gained`."""
        return LOST if self.baseline_value > self.candidate_value else GAINED

    @property
    def wrong_error(self) -> str:
        """How the wrong one of the two answers is wrong; empty where nobody said."""
        return (self.candidate_error if self.direction == LOST else self.baseline_error) or ""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One sample with all that is stored of it.

    `scores` are metric, filter, value, error class, scoring version, and what the filter left. `alternatives` are
    as `evalsvc.alternatives` packs them.
    """

    sample_id: int
    suite: str
    family: str
    item: str
    item_hash: str
    metric: str
    filter: str
    scored_by: str
    chance: float
    through: str
    repeat: int
    status: str
    error: str | None
    error_message: str | None
    prompt: str
    answer: str
    finish: str | None
    prompt_tokens: int | None
    answer_tokens: int | None
    stage_tokens: dict[str, int]
    handed_over: bool
    right_answer: str | None = None
    scores: tuple[tuple[str, str, float, str | None, str, str | None], ...] = ()
    turns: tuple[Turn, ...] = field(default=())
    alternatives: bytes | None = None

    @property
    def answers(self) -> list[str]:
        """What was answered, turn by turn."""
        return [*(turn.answer or "" for turn in self.turns[:-1]), self.answer]

    @property
    def filtered(self) -> dict[str, str]:
        """By filter what it left of the answer, the item's own filter first; without those that left it whole."""
        found = {score[1]: score[5] for score in self.scores if score[5] is not None}
        return dict(sorted(found.items(), key=lambda each: each[0] != self.filter))


def flips(store: Store, baseline: ArmRecord, candidate: ArmRecord) -> list[Flip]:
    """Every flip of a candidate, lost first, then by suite, family and item; without their texts."""
    base, cand = aliased(Sample), aliased(Sample)
    base_score, cand_score = aliased(ScoreRow), aliased(ScoreRow)
    same = and_(
        cand.run_id == candidate.run_id,
        cand.arm_fingerprint == candidate.fingerprint,
        cand.item_pk == base.item_pk,
        cand.arm_id == candidate.id,
        cand.through == base.through,
        cand.repeat == base.repeat,
    )
    query = (
        select(
            ItemRow.suite,
            ItemRow.family,
            ItemRow.item_id,
            base.through,
            base.repeat,
            base.id.label("baseline_id"),
            cand.id.label("candidate_id"),
            base_score.value.label("baseline_value"),
            cand_score.value.label("candidate_value"),
            base_score.error_class.label("baseline_error"),
            cand_score.error_class.label("candidate_error"),
            cand.stage_tokens,
            cand.handed_over,
        )
        .select_from(base)
        .join(cand, same)
        .join(ItemRow, ItemRow.id == base.item_pk)
        .join(base_score, base_score.id == score_that_counts(base, baseline))
        .join(cand_score, cand_score.id == score_that_counts(cand, candidate))
        .where(base.arm_id == baseline.id, base.status == "scored", cand.status == "scored")
        .where(base_score.value != cand_score.value)
        .order_by(
            base_score.value < cand_score.value,
            ItemRow.suite,
            ItemRow.family,
            ItemRow.item_id,
            base.through,
            base.repeat,
        )
    )
    with store.session() as session:
        return [
            Flip(
                suite=row.suite,
                family=row.family,
                item=row.item_id,
                through=row.through,
                repeat=row.repeat,
                baseline_id=row.baseline_id,
                candidate_id=row.candidate_id,
                baseline_value=row.baseline_value,
                candidate_value=row.candidate_value,
                baseline_error=row.baseline_error,
                candidate_error=row.candidate_error,
                stages=coverage(row.stage_tokens, row.handed_over),
            )
            for row in session.execute(query)
        ]


def score_that_counts(sample: Any, arm: ArmRecord) -> Any:
    """The id of the score that counts of a sample: the newest of its item's own metric under what the arm reads."""
    version = (
        case(
            *(
                (and_(ItemRow.suite == suite, ScoreRow.scoring_version != named), False)
                for suite, named in arm.rescored.items()
            ),
            else_=True,
        )
        if arm.rescored
        else literal(True)
    )
    return (
        select(func.max(ScoreRow.id))
        .where(ScoreRow.sample_id == sample.id, ScoreRow.metric == ItemRow.metric, ScoreRow.filter == ItemRow.filter)
        .where(version)
        .correlate(sample, ItemRow)
        .scalar_subquery()
    )


def coverage(stage_tokens: dict[str, int], handed_over: bool) -> str:
    """Which stages computed an answer's scored tokens, in words."""
    stages = [stage for stage in ("prefill", "decode") if stage_tokens.get(stage)]
    if not stages:
        return UNKNOWN_STAGES
    return " + ".join(stages) + (" (context handed over)" if handed_over and stages == ["decode"] else "")


def texts(store: Store, sample_ids: list[int]) -> dict[int, tuple[str, str, str | None]]:
    """Prompt, answer and finish reason by sample id."""
    found: dict[int, tuple[str, str, str | None]] = {}
    columns = (Sample.id, Sample.prompt, Sample.answer, Sample.finish_reason)
    with store.session() as session:
        for start in range(0, len(sample_ids), _CHUNK):
            for row in session.execute(select(*columns).where(Sample.id.in_(sample_ids[start : start + _CHUNK]))):
                found[row.id] = (row.prompt, row.answer, row.finish_reason)
    return found


def sample(store: Store, arm: ArmRecord, sample_id: int) -> Shown | None:
    """One sample of an arm; None where the arm has none of this id."""
    return _shown(store, arm, Sample.id == sample_id)


def counterpart(store: Store, arm: ArmRecord, shown: Shown) -> Shown | None:
    """Another arm's sample of the same item, stage and repeat; None without one."""
    return _shown(
        store,
        arm,
        and_(
            Sample.run_id == arm.run_id,
            Sample.arm_fingerprint == arm.fingerprint,
            Sample.item_pk.in_(select(ItemRow.id).where(ItemRow.suite == shown.suite, ItemRow.item_id == shown.item)),
            Sample.through == shown.through,
            Sample.repeat == shown.repeat,
        ),
    )


def _shown(store: Store, arm: ArmRecord, where: Any) -> Shown | None:
    query = select(Sample, ItemRow, Sample.alternatives).join(ItemRow, Sample.item_pk == ItemRow.id)
    with store.session() as session:
        found = session.execute(query.where(Sample.arm_id == arm.id, where).limit(1)).first()
        if found is None:
            return None
        row, item, packed = found
        kept = (ScoreRow.metric, ScoreRow.filter, ScoreRow.value, ScoreRow.error_class, ScoreRow.scoring_version)
        wanted = select(*kept, ScoreRow.filtered).where(ScoreRow.sample_id == row.id)
        scores = session.execute(wanted.order_by(ScoreRow.id)).all()
        columns = (TurnRow.answer, TurnRow.finish_reason, TurnRow.token_ids)
        rows = session.execute(select(*columns).where(TurnRow.sample_id == row.id).order_by(TurnRow.turn))
        turns = [Turn(answer, finish, tuple(ids)) for answer, finish, ids in rows]
    counted = [score for score in scores if arm.reads(item.suite, score.scoring_version)]
    newest = counted[-1].scoring_version if counted else ""
    return Shown(
        sample_id=row.id,
        suite=item.suite,
        family=item.family,
        item=item.item_id,
        item_hash=item.item_hash,
        metric=item.metric,
        filter=item.filter,
        scored_by=item.scored_by,
        chance=item.chance,
        through=row.through,
        repeat=row.repeat,
        status=row.status,
        error=row.error_class,
        error_message=row.error_message,
        prompt=row.prompt,
        answer=row.answer,
        finish=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        answer_tokens=row.answer_tokens,
        stage_tokens=row.stage_tokens,
        handed_over=row.handed_over,
        right_answer=item.right_answer,
        scores=tuple((s[0], s[1], s[2], s[3], s[4], s[5]) for s in counted if s.scoring_version == newest),
        turns=tuple(turns),
        alternatives=packed,
    )


def resolved(store: Store, run_id: int) -> dict[str, Any]:
    """A run's experiment as it was resolved and stored."""
    with store.session() as session:
        return session.execute(select(Run.resolved).where(Run.id == run_id)).scalar_one()
