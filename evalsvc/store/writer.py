"""The one writer. Each function is one transaction: after it returns, a killed process loses nothing of it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from evalsvc.errors import StoreError
from evalsvc.store.job_tables import RunKeyRow
from evalsvc.store.records import Rescored
from evalsvc.store.samples import add_samples as add_samples
from evalsvc.store.samples import insert_ignoring, insert_samples, score_values
from evalsvc.store.schema import Arm, DecisionRow, ItemRow, Run, Sample, ScoreRow, utc_now
from evalsvc.store.session import Store
from evalsvc.store.texts import storable_text

__all__ = ["add_samples", "insert_samples", "storable_text"]


def open_run(
    store: Store,
    *,
    experiment: str,
    experiment_hash: str,
    resolved: dict[str, Any],
    baseline: str,
    seed: int,
    kind: str = "main",
    linked_run_id: int | None = None,
    key: str | None = None,
) -> int:
    """Starts a run and returns its id; a `key` means this one from now on.

    It is claimed before anybody can see it, so that nobody takes it for one that was interrupted.
    """
    with store.transaction() as session:
        run = Run(
            experiment=experiment,
            experiment_hash=experiment_hash,
            resolved=resolved,
            baseline=baseline,
            seed=seed,
            kind=kind,
            linked_run_id=linked_run_id,
        )
        session.add(run)
        session.flush()
        if key is not None:
            session.merge(RunKeyRow(key=key, run_id=run.id))
        store.claim(run.id)
        return run.id


def open_arm(
    store: Store,
    run_id: int,
    *,
    name: str,
    fingerprint: str,
    plan: str,
    stages: dict[str, dict[str, Any]],
    injected: dict[str, Any],
    details: dict[str, Any],
    expected: int,
    capabilities: dict[str, dict[str, Any]] | None = None,
) -> int:
    """Opens an arm of a run, or finds it when it was opened before.

    Raises:
        StoreError: The run is unknown, or has an arm of this name with another fingerprint.
    """
    with store.transaction() as session:
        if session.get(Run, run_id) is None:
            raise StoreError(f"{store.name}: there is no run {run_id}")
        arm = session.scalar(select(Arm).where(Arm.run_id == run_id, Arm.name == name))
        if arm is None:
            arm = Arm(
                run_id=run_id,
                name=name,
                fingerprint=fingerprint,
                plan=plan,
                stages=stages,
                injected=injected,
                details=details,
                expected=expected,
                capabilities=capabilities,
            )
            session.add(arm)
            session.flush()
        elif arm.fingerprint != fingerprint:
            raise StoreError(
                f"{store.name}: arm '{name}' of run {run_id} was opened with fingerprint {arm.fingerprint[:12]} "
                f"and is now {fingerprint[:12]}: model, plan or engine changed; start another run"
            )
        return arm.id


def add_scores(
    store: Store,
    rescored: Sequence[Rescored],
    versions: Mapping[int, Mapping[str, str]],
    experiment_hashes: Mapping[int, str] | None = None,
) -> int:
    """Adds scores to stored samples, and says under which scoring version arms are read from now on, all or nothing.

    Stored scores stay; a score that is there already is left alone.

    Args:
        store: Where.
        rescored: What to add.
        versions: By arm and suite the version that counts.
        experiment_hashes: By run the hash under which it is found again.

    Returns:
        How many scores were added.

    Raises:
        StoreError: A value that is not finite, or an unknown sample.
    """
    made = [(r.sample_id, r.scoring_version, score) for r in rescored for score in r.scores]
    for sample_id, _, score in made:
        if not math.isfinite(score.value):
            raise StoreError(f"{store.name}: {score.metric} of sample {sample_id} is {score.value}")
    with store.transaction() as session:
        rows = [score_values(session, *each) for each in made]
        added = 0
        if rows:
            statement = insert_ignoring(session, ScoreRow.__table__).returning(ScoreRow.__table__.c.id)
            added = len(session.connection().execute(statement, rows).all())
        for arm_id, by_suite in versions.items():
            arm = session.get_one(Arm, arm_id)
            arm.details = {**arm.details, "rescored": {**arm.details.get("rescored", {}), **by_suite}}
        for run_id, digest in (experiment_hashes or {}).items():
            session.get_one(Run, run_id).experiment_hash = digest
        return added


def done_keys(store: Store, arm_id: int) -> set[tuple[str, str, str, str, str, int]]:
    """`NewSample.key` of everything that a resumed run need not ask again: scored and skipped samples."""
    query = (
        select(
            ItemRow.suite,
            ItemRow.item_id,
            ItemRow.item_hash,
            Sample.request_hash,
            Sample.settings_hash,
            Sample.repeat,
        )
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .where(Sample.arm_id == arm_id, Sample.status.in_(("scored", "skipped")))
    )
    with store.session() as session:
        return {(row[0], row[1], row[2], row[3], row[4], row[5]) for row in session.execute(query)}


def save_probe(store: Store, arm_id: int, probe: dict[str, Any]) -> None:
    """Stores an arm's KL against the baseline per stage; an earlier one is replaced."""
    _update_arm(store, arm_id, probe=probe)


def save_series(store: Store, series: Mapping[int, Mapping[str, Any]]) -> None:
    """Keeps by arm what a history found of it, by frozen baseline; what is kept for other baselines stays."""
    with store.transaction() as session:
        for arm_id, found in series.items():
            arm = session.get_one(Arm, arm_id)
            arm.series = {**(arm.series or {}), **found}


def stop_arm(store: Store, arm_id: int, stopped: dict[str, Any]) -> None:
    """Notes in an arm's details where a sequential design stopped it."""
    with store.transaction() as session:
        arm = session.get_one(Arm, arm_id)
        arm.details = {**arm.details, "stopped": stopped}


def finish_arm(store: Store, arm_id: int, proof: dict[str, Any] | None, proof_status: str) -> None:
    """Marks an arm finished, with what was measured of it."""
    _update_arm(store, arm_id, proof=proof, proof_status=proof_status, status="finished")


def finish_run(store: Store, run_id: int) -> None:
    """Marks a run finished.

    Raises:
        StoreError: The run is unknown or one of its arms is not finished.
    """
    with store.transaction() as session:
        run = session.get(Run, run_id)
        if run is None:
            raise StoreError(f"{store.name}: there is no run {run_id}")
        open_arms = session.scalars(select(Arm.name).where(Arm.run_id == run_id, Arm.status != "finished")).all()
        if open_arms:
            raise StoreError(f"{store.name}: run {run_id} cannot finish, its arms {', '.join(open_arms)} have not")
        run.status = "finished"
        run.finished_at = run.finished_at or utc_now()


def save_decision(
    store: Store,
    baseline_arm_id: int,
    candidate_arm_id: int,
    policy_hash: str,
    verdict: str,
    exit_code: int,
    decision: dict[str, Any],
) -> int:
    """Stores a gate's decision and returns its id.

    Raises:
        StoreError: The decision holds NaN or infinity, which JSON has no word for, or something JSON cannot hold.
    """
    try:
        json.dumps(decision, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{store.name}: a decision that is no plain JSON is not stored ({error})") from error
    with store.transaction() as session:
        row = DecisionRow(
            baseline_arm_id=baseline_arm_id,
            candidate_arm_id=candidate_arm_id,
            policy_hash=policy_hash,
            verdict=verdict,
            exit_code=exit_code,
            decision=decision,
        )
        session.add(row)
        session.flush()
        return row.id


def find_run(
    store: Store,
    experiment_hash: str,
    fingerprints: Mapping[str, str],
    kind: str = "main",
    linked_run_id: int | None = None,
    status: str | None = None,
) -> int | None:
    """The latest run of an experiment that can be gone on with.

    Args:
        store: The database.
        experiment_hash: Hash of the resolved experiment.
        fingerprints: Arm name to fingerprint, of all arms; the arms that a run has opened so far must agree.
        kind: `main` or `aa`.
        linked_run_id: The run that an A/A repeats.
        status: `running`, `finished`, or None for either.
    """
    query = select(Run.id).where(
        Run.experiment_hash == experiment_hash,
        Run.kind == kind,
        Run.linked_run_id.is_(None) if linked_run_id is None else Run.linked_run_id == linked_run_id,
    )
    if status is not None:
        query = query.where(Run.status == status)
    with store.session() as session:
        for run_id in session.scalars(query.order_by(Run.id.desc())).all():
            arms = session.execute(select(Arm.name, Arm.fingerprint).where(Arm.run_id == run_id)).all()
            if all(fingerprints.get(name) == fingerprint for name, fingerprint in arms):
                return run_id
    return None


def continues(store: Store, run_id: int, experiment_hash: str, fingerprints: Mapping[str, str]) -> bool:
    """Whether one run can be gone on with; arguments as of `find_run`."""
    with store.session() as session:
        run = session.get(Run, run_id)
        arms = session.execute(select(Arm.name, Arm.fingerprint).where(Arm.run_id == run_id)).all()
    same = run is not None and run.experiment_hash == experiment_hash
    return same and all(fingerprints.get(name) == fingerprint for name, fingerprint in arms)


def _update_arm(store: Store, arm_id: int, **values: Any) -> None:
    with store.transaction() as session:
        changed = session.execute(update(Arm).where(Arm.id == arm_id).values(**values).returning(Arm.id))
        if changed.scalar_one_or_none() is None:
            raise StoreError(f"{store.name}: there is no arm {arm_id}")
