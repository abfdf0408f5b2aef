"""The one writer. Each function is one transaction: after it returns, a killed process loses nothing of it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlalchemy.orm import Session

from evalsvc.errors import StoreError
from evalsvc.store.job_tables import RunKeyRow
from evalsvc.store.records import NewSample, NewScore, Rescored
from evalsvc.store.schema import Arm, DecisionRow, ItemRow, Run, Sample, ScoreRow, TurnRow, utc_now
from evalsvc.store.session import Store

_CHUNK = 500  # values in one IN (...): SQLite's oldest limit is 999
_ITEM_FIELDS = ("family", "cluster", "metric", "filter", "chance", "scored_by")
_SAMPLE_KEY = ("run_id", "arm_fingerprint", "item_pk", "request_hash", "settings_hash", "repeat")


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
    """Starts a run and returns its id; a `key` means this one from now on."""
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
            )
            session.add(arm)
            session.flush()
        elif arm.fingerprint != fingerprint:
            raise StoreError(
                f"{store.name}: arm '{name}' of run {run_id} was opened with fingerprint {arm.fingerprint[:12]} "
                f"and is now {fingerprint[:12]}: model, plan or engine changed; start another run"
            )
        return arm.id


def add_samples(store: Store, run_id: int, arm_id: int, samples: Sequence[NewSample]) -> int:
    """Stores samples with their items and scores, all or none.

    A key that is stored already is left alone, unless it holds an error: then the new sample takes its place, for a
    resumed run tries it again. Safe against a second process that stores the same keys.

    Returns:
        How many samples were stored or replaced.

    Raises:
        StoreError: Unknown arm, a value that is not finite, or an item that contradicts its stored description.
    """
    if not samples:
        return 0
    for sample in samples:
        _check(store, sample)
    with store.transaction() as session:
        arm = session.get(Arm, arm_id)
        if arm is None or arm.run_id != run_id:
            raise StoreError(f"{store.name}: run {run_id} has no arm {arm_id}")
        item_pks = _upsert_items(store, session, samples)
        stored: list[tuple[int, NewSample]] = []
        connection = session.connection()
        upsert = _upsert_samples_statement(session)
        for sample in samples:
            values = _sample_values(arm, item_pks[(sample.suite, sample.item_id, sample.item_hash)], sample)
            sample_id = connection.execute(upsert, values).scalar_one_or_none()
            if sample_id is not None:
                stored.append((sample_id, sample))
        _replace_scores(session, stored)
        _replace_turns(session, stored)
        return len(stored)


def insert_samples(store: Store, session: Session, arm: Arm, samples: Sequence[NewSample]) -> None:
    """Stores all samples of an arm that has none, inside a transaction that is open.

    Raises:
        StoreError: As `add_samples`, and a key that comes twice.
    """
    for sample in samples:
        _check(store, sample)
    item_pks = _upsert_items(store, session, samples)
    rows = [_sample_values(arm, item_pks[(s.suite, s.item_id, s.item_hash)], s) for s in samples]
    statement = _insert(session, Sample.__table__)
    statement = statement.returning(Sample.__table__.c.id, sort_by_parameter_order=True)
    ids = session.connection().execute(statement, rows).scalars().all()
    scores = [
        _score_values(i, sample.scoring_version, s)
        for i, sample in zip(ids, samples, strict=True)
        for s in sample.scores
    ]
    if scores:
        session.connection().execute(_insert(session, ScoreRow.__table__), scores)
    _replace_turns(session, list(zip(ids, samples, strict=True)))


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
    rows = [_score_values(r.sample_id, r.scoring_version, score) for r in rescored for score in r.scores]
    odd = next((row for row in rows if not math.isfinite(row["value"])), None)
    if odd is not None:
        raise StoreError(f"{store.name}: {odd['metric']} of sample {odd['sample_id']} is {odd['value']}")
    with store.transaction() as session:
        added = 0
        if rows:
            statement = _insert(session, ScoreRow.__table__).on_conflict_do_nothing().returning(ScoreRow.__table__.c.id)
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


def storable_text(text: str) -> str:
    r"""Text as it is stored: a lone surrogate, which UTF-8 cannot hold, becomes its visible escape (`\udc80`).

    Everything else, null bytes and line separators included, is stored as it came.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def _check(store: Store, sample: NewSample) -> None:
    """Refuses what could not be found or compared again."""
    where = f"{store.name}: item '{storable_text(sample.item_id)}' of suite '{storable_text(sample.suite)}'"
    for score in sample.scores:
        if not math.isfinite(score.value):
            raise StoreError(f"{where}: {score.metric} is {score.value}; store an error instead of such a score")
    for name in ("suite", "item_id", "item_hash", "request_hash", "settings_hash", *_ITEM_FIELDS[:4]):
        value = getattr(sample, name)
        if storable_text(value) != value:
            raise StoreError(f"{where}: its {name} holds a lone surrogate, which no database text can; rename it")


def _upsert_items(store: Store, session: Session, samples: Sequence[NewSample]) -> dict[tuple[str, str, str], int]:
    """Primary keys by (suite, item id, item hash), new items inserted."""
    described = {(s.suite, s.item_id, s.item_hash): s for s in samples}
    rows = [
        {"suite": suite, "item_id": item_id, "item_hash": item_hash}
        | {name: getattr(sample, name) for name in _ITEM_FIELDS}
        for (suite, item_id, item_hash), sample in described.items()
    ]
    session.connection().execute(_insert(session, ItemRow.__table__).on_conflict_do_nothing(), rows)
    found: dict[tuple[str, str, str], int] = {}
    ids = sorted({item_id for _, item_id, _ in described})
    for start in range(0, len(ids), _CHUNK):
        for item in session.scalars(select(ItemRow).where(ItemRow.item_id.in_(ids[start : start + _CHUNK]))):
            key = (item.suite, item.item_id, item.item_hash)
            if key not in described:
                continue
            for name in _ITEM_FIELDS:
                old, new = getattr(item, name), getattr(described[key], name)
                if old != new:
                    raise StoreError(
                        f"{store.name}: item '{item.item_id}' of suite '{item.suite}' is stored with {name} {old!r} "
                        f"and is now {new!r} under the same hash; use a new database"
                    )
            found[key] = item.id
    return found


def _upsert_samples_statement(session: Session) -> Any:
    """Inserts, or replaces an error; returns no row when the key is stored already."""
    statement = _insert(session, Sample.__table__)
    replaced = {
        column.name: statement.excluded[column.name]
        for column in Sample.__table__.columns
        if column.name not in _SAMPLE_KEY and not column.primary_key
    }
    return statement.on_conflict_do_update(
        index_elements=_SAMPLE_KEY, set_=replaced, where=Sample.status == "error"
    ).returning(Sample.__table__.c.id)


def _sample_values(arm: Arm, item_pk: int, sample: NewSample) -> dict[str, Any]:
    return {
        "run_id": arm.run_id,
        "arm_id": arm.id,
        "arm_fingerprint": arm.fingerprint,
        "item_pk": item_pk,
        "request_hash": sample.request_hash,
        "settings_hash": sample.settings_hash,
        "rendered_hash": sample.rendered_hash,
        "repeat": sample.repeat,
        "through": sample.through,
        "status": sample.status,
        "error_class": sample.error_class,
        "error_message": None if sample.error_message is None else storable_text(sample.error_message),
        "prompt": storable_text(sample.prompt),
        "answer": storable_text(sample.answer),
        "finish_reason": sample.finish_reason,
        "prompt_tokens": sample.prompt_tokens,
        "answer_tokens": sample.answer_tokens,
        "stage_tokens": dict(sample.stage_tokens),
        "handed_over": sample.handed_over,
        "timings": dict(sample.timings),
        "created_at": utc_now(),
    }


def _replace_scores(session: Session, stored: Sequence[tuple[int, NewSample]]) -> None:
    ids = [sample_id for sample_id, _ in stored]
    for start in range(0, len(ids), _CHUNK):
        session.execute(delete(ScoreRow).where(ScoreRow.sample_id.in_(ids[start : start + _CHUNK])))
    rows = [
        _score_values(sample_id, sample.scoring_version, score)
        for sample_id, sample in stored
        for score in sample.scores
    ]
    if rows:
        session.connection().execute(_insert(session, ScoreRow.__table__), rows)


def _replace_turns(session: Session, stored: Sequence[tuple[int, NewSample]]) -> None:
    ids = [sample_id for sample_id, _ in stored]
    for start in range(0, len(ids), _CHUNK):
        session.execute(delete(TurnRow).where(TurnRow.sample_id.in_(ids[start : start + _CHUNK])))
    rows = [
        {
            "sample_id": sample_id,
            "turn": number,
            "answer": None if turn.answer is None else storable_text(turn.answer),
            "finish_reason": turn.finish_reason,
            "token_ids": list(turn.token_ids),
        }
        for sample_id, sample in stored
        for number, turn in enumerate(sample.turns)
    ]
    if rows:
        session.connection().execute(_insert(session, TurnRow.__table__), rows)


def _score_values(sample_id: int, scoring_version: str, score: NewScore) -> dict[str, Any]:
    return {
        "sample_id": sample_id,
        "scoring_version": scoring_version,
        "metric": score.metric,
        "filter": score.filter,
        "value": score.value,
        "error_class": score.error_class,
    }


def _update_arm(store: Store, arm_id: int, **values: Any) -> None:
    with store.transaction() as session:
        changed = session.execute(update(Arm).where(Arm.id == arm_id).values(**values).returning(Arm.id))
        if changed.scalar_one_or_none() is None:
            raise StoreError(f"{store.name}: there is no arm {arm_id}")


def _insert(session: Session, table: Any) -> Any:
    """An INSERT that knows ON CONFLICT, in the words of this database."""
    from sqlalchemy.dialects import postgresql, sqlite

    assert isinstance(table, Table)
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(table)
