"""Storing a run that is complete when it comes: one transaction, so that it is there whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from evalsvc.store.records import NewArm
from evalsvc.store.schema import Arm, Run, utc_now
from evalsvc.store.session import Store
from evalsvc.store.writer import insert_samples


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Where a recorded run is; `new` is false when it was there before."""

    run_id: int
    again_id: int | None
    new: bool


def record_run(
    store: Store, *, experiment: str, experiment_hash: str, arms: Sequence[NewArm], again: NewArm | None = None
) -> Stored:
    """Stores a finished run of recorded arms and, where there is one, its A/A; unless the same is stored already.

    Args:
        store: Open for writing.
        experiment: Its name.
        experiment_hash: Hash of everything that is stored; the same hash is the same run.
        arms: The baseline first.
        again: The baseline's second run.

    Raises:
        StoreError: A sample cannot be stored; then nothing was.
    """
    with store.transaction() as session:
        same = select(Run.id).where(Run.experiment_hash == experiment_hash).order_by(Run.id.desc())
        found = session.scalar(same.where(Run.kind == "main"))
        if found is not None:
            repeat = session.scalar(same.where(Run.kind == "aa", Run.linked_run_id == found))
            return Stored(run_id=found, again_id=repeat, new=False)
        about = {"experiment": experiment, "experiment_hash": experiment_hash, "baseline": arms[0].name}
        about |= {"seed": 0, "status": "finished", "resolved": {"recorded": [arm.name for arm in arms]}}
        run_id = _add(store, session, Run(**about, kind="main", finished_at=utc_now()), arms)
        if again is None:
            return Stored(run_id=run_id, again_id=None, new=True)
        repeat = Run(**about, kind="aa", linked_run_id=run_id, finished_at=utc_now())
        return Stored(run_id=run_id, again_id=_add(store, session, repeat, [again]), new=True)


def _add(store: Store, session: Session, run: Run, arms: Sequence[NewArm]) -> int:
    session.add(run)
    session.flush()
    for new in arms:
        fields = {
            key: getattr(new, key)
            for key in ("name", "fingerprint", "plan", "stages", "details", "proof_status", "capabilities")
        }
        arm = Arm(run_id=run.id, **fields, injected={}, status="finished", expected=len(new.samples))
        session.add(arm)
        session.flush()
        insert_samples(store, session, arm, new.samples)
    return run.id
