"""Two arms' answers counted into tables of two by two, by the database: nothing of an answer is loaded."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, exists, func, select
from sqlalchemy.orm import aliased

from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import ItemRow, Sample, ScoreRow
from evalsvc.store.session import Store


@dataclass(frozen=True, kw_only=True)
class Table:
    """Samples of both arms (each repeat and scoring stage for itself) by who is right.

    Attributes:
        both: Right in both.
        lost: Right in the baseline only.
        gained: Right in the candidate only.
        neither: Wrong in both.
    """

    both: int
    lost: int
    gained: int
    neither: int


def tables_by_family(store: Store, baseline: ArmRecord, candidate: ArmRecord) -> dict[tuple[str, str], Table]:
    """By suite and family, of the samples that are scored in both arms under the versions that count.

    A partly right answer (a value below 1) is not right here; the gate reads the values themselves.
    """
    base, cand = _side(baseline, "base"), _side(candidate, "cand")
    right, also = base.c.value >= 1, cand.c.value >= 1

    def count(first: Any, second: Any) -> Any:
        return func.sum(case((first & second, 1), else_=0))

    query = (
        select(
            ItemRow.suite,
            ItemRow.family,
            count(right, also),
            count(right, ~also),
            count(~right, also),
            count(~right, ~also),
        )
        .select_from(base)
        .join(
            cand,
            (cand.c.item_pk == base.c.item_pk) & (cand.c.through == base.c.through) & (cand.c.repeat == base.c.repeat),
        )
        .join(ItemRow, ItemRow.id == base.c.item_pk)
        .group_by(ItemRow.suite, ItemRow.family)
        .order_by(ItemRow.suite, ItemRow.family)
    )
    with store.session() as session:
        return {
            (suite, family): Table(both=both, lost=lost, gained=gained, neither=neither)
            for suite, family, both, lost, gained, neither in session.execute(query)
        }


def _side(arm: ArmRecord, name: str) -> Any:
    """An arm's scored samples with the value that counts: of several the newest one."""
    sample, item, score, newer = aliased(Sample), aliased(ItemRow), aliased(ScoreRow), aliased(ScoreRow)

    def of(row: Any) -> list[Any]:
        own = [row.sample_id == sample.id, row.metric == item.metric, row.filter == item.filter]
        if arm.rescored:
            named = ((item.suite == suite, version) for suite, version in arm.rescored.items())
            own.append(row.scoring_version == case(*named, else_=row.scoring_version))
        return own

    return (
        select(sample.item_pk, sample.through, sample.repeat, score.value)
        .join(item, item.id == sample.item_pk)
        .join(score, and_(*of(score)))
        .where(sample.arm_id == arm.id, sample.status == "scored")
        .where(~exists().where(*of(newer), newer.id > score.id))
        .subquery(name)
    )
