"""Samples of earlier runs copied into a run: only what has the same key, with the scores that count now."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, exists, func, insert, literal, or_, select
from sqlalchemy.orm import Session, aliased

from evalsvc.errors import StoreError
from evalsvc.store.bulk import among
from evalsvc.store.schema import Arm, ItemRow, Run, Sample, ScoreRow, TurnRow
from evalsvc.store.session import Store

_Key = tuple[str, str, str, str, str, int]
_KEY = (ItemRow.suite, ItemRow.item_id, ItemRow.item_hash, Sample.request_hash, Sample.settings_hash, Sample.repeat)
_INSIDE = ("item_pk", "request_hash", "settings_hash", "repeat")  # a sample's key inside one arm


def copy_samples(
    store: Store,
    arm_id: int,
    wanted: Collection[_Key],
    versions: Mapping[str, str],
    fits: Callable[[Mapping[str, Any], str], bool] = lambda details, created_at: True,
) -> dict[str, int]:
    """Copies into an arm what finished main runs hold of the very same arm, the newest first; one transaction.

    A sample is copied where its arm has the same fingerprint and a proof that matches, its key is wanted, it is scored,
    and it has scores under its suite's scoring version: those are copied, no others. Answers, turns, timings and the
    time at which it was stored come along.

    Args:
        store: Where.
        arm_id: Whose; what it holds already stays.
        wanted: `NewSample.key` of everything that it answers.
        versions: By suite the scoring version that counts.
        fits: Of an earlier arm's details and the time at which it was measured (its run began, or what it copied
            itself was first stored), whether it may be copied from.

    Returns:
        By address (`RUN:ARM`) how many samples came from there; it is also noted in the arm's details.

    Raises:
        StoreError: There is no such arm.
    """
    copied: dict[str, int] = {}
    with store.transaction() as session:
        arm = session.scalar(select(Arm).where(Arm.id == arm_id).with_for_update())
        if arm is None:
            raise StoreError(f"{store.name}: there is no arm {arm_id}")
        left = set(wanted) - {key for key, _ in _keyed(session, select(*_KEY, Sample.id), arm_id)}
        scored = _scored(versions)
        sources: list[Any] = list(session.execute(_sources(arm))) if left else []
        for source, created_at in sources:
            if not fits(source.details, _measured_at(session, source, created_at)):
                continue
            found = {key: number for key, number in _keyed(session, scored, source.id) if key in left}
            if found:
                _copy(session, source, arm, list(found.values()), versions)
                copied[f"{source.run_id}:{source.name}"] = len(found)
                left -= found.keys()
        if copied:
            arm.stored += sum(copied.values())
            arm.details = {**arm.details, "reused": {**arm.details.get("reused", {}), **copied}}
    return copied


def _measured_at(session: Session, source: Arm, began: str) -> str:
    if not source.details.get("reused"):
        return began
    return min(began, session.scalar(select(func.min(Sample.created_at)).where(Sample.arm_id == source.id)) or began)


def _sources(arm: Arm) -> Any:
    """Finished arms that are the same, the newest first. Not an A/A's: it stays apart from what it is compared with."""
    return (
        select(Arm, Run.created_at)
        .join(Run, Run.id == Arm.run_id)
        .where(Arm.fingerprint == arm.fingerprint, Arm.id != arm.id, Arm.status == "finished")
        .where(Arm.proof_status == "matched", Run.kind == "main", Run.status == "finished")
        .order_by(Arm.id.desc())
    )


def _keyed(session: Session, query: Any, arm_id: int) -> Iterator[tuple[_Key, int]]:
    for *key, number in session.execute(
        query.join(ItemRow, Sample.item_pk == ItemRow.id).where(Sample.arm_id == arm_id)
    ):
        yield tuple(key), number  # pyright: ignore[reportReturnType]


def _scored(versions: Mapping[str, str]) -> Any:
    """Scored samples with scores under the version that counts."""
    counts = or_(*(and_(ItemRow.suite == suite, ScoreRow.scoring_version == v) for suite, v in versions.items()))
    under = exists().where(ScoreRow.sample_id == Sample.id, counts)
    return select(*_KEY, Sample.id).where(Sample.status == "scored", under)


def _copy(session: Session, source: Arm, arm: Arm, ids: Sequence[int], versions: Mapping[str, str]) -> None:
    """Samples, then the scores and turns of each under its new id; all of it inside the database."""
    chosen = among(session.connection(), Sample.id, ids)
    own = {"run_id": literal(arm.run_id), "arm_id": literal(arm.id)}
    names = [column.name for column in Sample.__table__.columns if column.name != "id"]
    columns = [own[name] if name in own else getattr(Sample, name) for name in names]
    session.execute(insert(Sample).from_select(names, select(*columns).where(chosen).order_by(Sample.id)))
    made = aliased(Sample)
    same = and_(made.arm_id == arm.id, *(getattr(made, name) == getattr(Sample, name) for name in _INSIDE))
    for row in (ScoreRow, TurnRow):
        names = [column.name for column in row.__table__.columns if column.name not in ("id", "sample_id")]
        parts = (
            select(made.id, *(getattr(row, name) for name in names))
            .select_from(row)
            .join(Sample, Sample.id == row.sample_id)
            .join(made, same)
            .where(Sample.arm_id == source.id, chosen)
            .order_by(row.id)
        )
        if row is ScoreRow:
            each = (and_(ItemRow.suite == s, ScoreRow.scoring_version == v) for s, v in versions.items())
            parts = parts.join(ItemRow, ItemRow.id == Sample.item_pk).where(or_(*each))
        session.execute(insert(row).from_select(["sample_id", *names], parts))
