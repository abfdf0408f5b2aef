"""Reading: plain records out of the database, never a half-loaded row. Nothing here writes."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import and_, func, select

from evalsvc.errors import ConfigError
from evalsvc.modes import ANY, FREE, METRICS, PREFIX, spans
from evalsvc.store.presence import words
from evalsvc.store.records import ArmRecord, ArmTotals, BaselineRecord, Pair, RunRecord, Side
from evalsvc.store.schema import Arm, BaselineRow, DecisionRow, ItemRow, Run, Sample, ScoreRow
from evalsvc.store.session import Store
from evalsvc.store.sides import scores_by_suite, sides, sides_query, whole

_CHUNK = 500  # values in one IN (...): SQLite's oldest limit is 999
_RUN_FIELDS = (
    *("id", "experiment", "experiment_hash", "kind", "linked_run_id", "baseline", "status"),
    *("created_at", "finished_at", "seed"),
)  # all but the resolved experiment, which nobody lists


def runs(store: Store) -> list[RunRecord]:
    """All runs, oldest first."""
    word = words(store)
    with store.session() as session:
        rows = session.execute(select(*(getattr(Run, name) for name in _RUN_FIELDS)).order_by(Run.id)).all()
        arms: dict[int, list[Any]] = {}
        for arm in session.execute(select(Arm.run_id, Arm.name, Arm.stored, Arm.errors).order_by(Arm.id)):
            arms.setdefault(arm.run_id, []).append(arm)
    return [
        RunRecord(
            id=run.id,
            experiment=run.experiment,
            experiment_hash=run.experiment_hash,
            kind=run.kind,
            linked_run_id=run.linked_run_id,
            baseline=run.baseline,
            status=word(run.id, run.status),
            created_at=run.created_at,
            finished_at=run.finished_at,
            seed=run.seed,
            arms=tuple(arm.name for arm in arms.get(run.id, ())),
            samples=sum(arm.stored for arm in arms.get(run.id, ())),
            errors=sum(arm.errors for arm in arms.get(run.id, ())),
        )
        for run in rows
    ]


def run_record(store: Store, run_id: int) -> RunRecord:
    """One run.

    Raises:
        ConfigError: There is no such run.
    """
    known = runs(store)
    for record in known:
        if record.id == run_id:
            return record
    raise ConfigError(f"there is no run {run_id} in {store.name}; {_existing_runs(r.id for r in known)}")


def arms(store: Store, run_id: int | None = None) -> list[ArmRecord]:
    """The arms of one run, or of all, in the order in which they were opened."""
    query = select(Arm, Run).join(Run, Arm.run_id == Run.id).order_by(Arm.id)
    if run_id is not None:
        query = query.where(Arm.run_id == run_id)
    word = words(store)
    with store.session() as session:
        found = [_arm_record(arm, run) for arm, run in session.execute(query)]
    return [
        replace(arm, status=word(arm.run_id, arm.status), run_status=word(arm.run_id, arm.run_status)) for arm in found
    ]


def begun(store: Store) -> dict[int, str]:
    """By run when it began, ISO 8601 in UTC."""
    with store.session() as session:
        return {row.id: row.created_at for row in session.execute(select(Run.id, Run.created_at))}


def measured_at(store: Store, arm: ArmRecord, began: str) -> str:
    """When an arm was measured: when its run began, or when the oldest answer was stored that it copied from others."""
    if not arm.details.get("reused"):
        return began
    with store.session() as session:
        return min(began, session.scalar(select(func.min(Sample.created_at)).where(Sample.arm_id == arm.id)) or began)


def suites_of(store: Store, arm: ArmRecord) -> list[str]:
    """Suites of which an arm has samples."""
    query = select(ItemRow.suite).join(Sample, Sample.item_pk == ItemRow.id).where(Sample.arm_id == arm.id)
    with store.session() as session:
        return sorted(session.scalars(query.distinct()))


def metrics_of(store: Store, arm: ArmRecord) -> list[str]:
    """Names of the scores that an arm's samples have; of failure modes also what is read as `free_of.MODE`."""
    query = select(ScoreRow.metric).join(Sample, ScoreRow.sample_id == Sample.id).where(Sample.arm_id == arm.id)
    with store.session() as session:
        found = set(session.scalars(query.distinct()))
    return sorted(found | ({FREE + name.removeprefix(PREFIX) for name in METRICS} if ANY in found else set()))


def resolve_arm(store: Store, address: str) -> ArmRecord:
    """The arm that a person means by `RUN:ARM`, `@NAME`, or `ARM` alone: that of the latest finished main run.

    Raises:
        ConfigError: No such run, arm or promoted baseline, or `ARM` is only in unfinished runs; says what there is.
    """
    known = arms(store)
    if address.startswith("@"):
        arm_id = _promoted(store, address)
        return next(arm for arm in known if arm.id == arm_id)
    head, colon, tail = address.partition(":")
    if colon and head.isdecimal():
        run_id = int(head)
        of_run = [arm for arm in known if arm.run_id == run_id]
        if not of_run:
            with store.session() as session:
                ids = session.scalars(select(Run.id).order_by(Run.id)).all()
            what = f"run {run_id} has no arms yet" if run_id in ids else f"there is no run {run_id} in {store.name}"
            raise ConfigError(f"{address}: {what}; {_existing_runs(ids)}")
        for arm in of_run:
            if arm.name == tail:
                return arm
        raise ConfigError(f"{address}: run {run_id} has no arm '{tail}'; it has {_listed(a.name for a in of_run)}")
    named = [arm for arm in known if arm.name == address]
    finished = [arm for arm in named if arm.run_kind == "main" and arm.run_status == "finished"]
    if finished:
        return max(finished, key=lambda arm: arm.run_id)
    if named:
        raise ConfigError(
            f"arm '{address}' is in no finished run; finish its run, or name one: {_listed(a.address for a in named)}"
        )
    if not known:
        raise ConfigError(f"there is no arm '{address}': {store.name} has no arms; `evalsvc run FILE` makes them")
    names = dict.fromkeys(arm.name for arm in known)
    hint = _meant(store, address, known)
    raise ConfigError(f"there is no arm '{address}' in {store.name}; it has {_listed(names)}{hint}")


def _meant(store: Store, address: str, known: Sequence[ArmRecord]) -> str:
    """What a person who typed the name of no arm may have meant; empty where nothing is near."""
    if any(record.current and record.name == address for record in baselines(store)):
        return f"; did you mean @{address}?"
    head, colon, tail = address.partition(":")
    if colon or address.isdecimal():
        near = [arm for arm in known if (arm.name == tail if colon else str(arm.run_id) == head)]
        return f"; write RUN:ARM, such as {(near or known)[-1].address}"
    return ""


def baselines(store: Store) -> list[BaselineRecord]:
    """All promotions, oldest first."""
    query = select(BaselineRow, Arm.run_id, Arm.name).join(Arm, BaselineRow.arm_id == Arm.id).order_by(BaselineRow.id)
    with store.session() as session:
        rows = [(row, f"{run_id}:{arm}") for row, run_id, arm in session.execute(query)]
    newest = {row.name: row.id for row, _ in rows}
    return [
        BaselineRecord(
            name=row.name,
            arm_id=row.arm_id,
            address=address,
            why=row.why,
            created_at=row.created_at,
            current=newest[row.name] == row.id,
        )
        for row, address in rows
    ]


def _promoted(store: Store, address: str) -> int:
    current = {record.name: record.arm_id for record in baselines(store) if record.current}
    if address[1:] in current:
        return current[address[1:]]
    known = f"it has {_listed(f'@{name}' for name in current)}" if current else "no arm was promoted yet"
    message = f"{address}: {store.name} has no such baseline; {known}; `evalsvc baseline promote` names one"
    raise ConfigError(message)


def aa_of(store: Store, run_id: int) -> ArmRecord | None:
    """The baseline arm of the newest finished A/A run that repeats `run_id`."""
    query = (
        select(Arm, Run)
        .join(Run, and_(Arm.run_id == Run.id, Arm.name == Run.baseline))
        .where(Run.kind == "aa", Run.linked_run_id == run_id, Run.status == "finished")
        .order_by(Run.id.desc())
        .limit(1)
    )
    with store.session() as session:
        row = session.execute(query).first()
        return None if row is None else _arm_record(row[0], row[1])


def pairs(store: Store, baseline: ArmRecord, candidate: ArmRecord, *, scores_of: Collection[str] = ()) -> list[Pair]:
    """All items of two arms side by side, ordered by suite, family, item, `through` and repeat.

    A side is None where its arm has no sample of the item. A side's value is the score of the item's own metric and
    filter, and None unless the sample is scored. It is read under the scoring version that its arm was last scored
    again under (`ArmRecord.rescored`), else under the newest; a sample that has no score under that version is an
    error of class `not_rescored`.

    Args:
        store: Open database.
        baseline: One arm.
        candidate: The other, or the same one.
        scores_of: Suites whose sides also carry their samples' other metrics (`Side.scores`).

    Raises:
        EvidenceError: An arm holds two samples for one place of the table, so that it is unclear which counts.
    """
    with store.session() as session:
        ours, theirs = scores_by_suite(session, baseline, scores_of), scores_by_suite(session, candidate, scores_of)
        ranges = {suite: spans(found.values()) for suite, found in ours.items()}
        left = sides(session.execute(sides_query(baseline.id)), baseline, whole(ours, ranges))
        right = sides(session.execute(sides_query(candidate.id)), candidate, whole(theirs, ranges))
    paired = []
    for key in left.keys() | right.keys():
        item, base = left.get(key, (None, None))
        other_item, cand = right.get(key, (None, None))
        shown = item if item is not None else other_item
        assert shown is not None
        paired.append(
            Pair(
                suite=shown.suite,
                family=shown.family,
                cluster=shown.cluster,
                item_id=shown.item_id,
                through=shown.through,
                scored_by=shown.scored_by,
                metric=shown.metric,
                chance=shown.chance,
                repeat=shown.repeat,
                baseline=base,
                candidate=cand,
            )
        )
    return sorted(paired, key=lambda p: (p.suite, p.family, p.item_id, p.through, p.repeat))


def flips(store: Store, baseline: ArmRecord, candidate: ArmRecord, suite: str | None = None) -> list[dict[str, Any]]:
    """The items whose correctness differs, with what both arms said.

    Returns:
        Dicts of suite, family, item, through, repeat, direction (`lost` or `gained`), prompt, baseline_answer,
        candidate_answer, baseline_finish, candidate_finish, baseline_error, candidate_error.
    """
    flipped: list[tuple[Pair, Side, Side]] = []
    for pair in pairs(store, baseline, candidate):
        base, cand = pair.baseline, pair.candidate
        if base is None or cand is None or base.value is None or cand.value is None or base.value == cand.value:
            continue
        if suite is None or pair.suite == suite:
            flipped.append((pair, base, cand))
    texts = _texts(store, [side.sample_id for _, *sides in flipped for side in sides])
    return [
        {
            "suite": pair.suite,
            "family": pair.family,
            "item": pair.item_id,
            "through": pair.through,
            "repeat": pair.repeat,
            "direction": "lost" if (base.value or 0) > (cand.value or 0) else "gained",
            "prompt": texts[base.sample_id][0],
            "baseline_answer": texts[base.sample_id][1],
            "candidate_answer": texts[cand.sample_id][1],
            "baseline_finish": base.finish_reason,
            "candidate_finish": cand.finish_reason,
            "baseline_error": base.error_class,
            "candidate_error": cand.error_class,
        }
        for pair, base, cand in flipped
    ]


def decisions(store: Store, run_id: int) -> list[dict[str, Any]]:
    """The latest decision of each (baseline, candidate) whose candidate is an arm of this run, in arm order.

    Returns:
        Dicts of id, baseline and candidate (names), baseline_arm_id, candidate_arm_id, baseline_run_id, policy_hash,
        verdict, exit_code, created_at and decision (the decision object's JSON).
    """
    of_run = select(Arm.id).where(Arm.run_id == run_id)
    newest = (
        select(func.max(DecisionRow.id))
        .where(DecisionRow.candidate_arm_id.in_(of_run))
        .group_by(DecisionRow.baseline_arm_id, DecisionRow.candidate_arm_id)
    )
    query = select(DecisionRow).where(DecisionRow.id.in_(newest))
    by_id = {arm.id: arm for arm in arms(store)}
    with store.session() as session:
        rows = session.scalars(query).all()
    return [
        {
            "id": row.id,
            "baseline": by_id[row.baseline_arm_id].name,
            "candidate": by_id[row.candidate_arm_id].name,
            "baseline_arm_id": row.baseline_arm_id,
            "candidate_arm_id": row.candidate_arm_id,
            "baseline_run_id": by_id[row.baseline_arm_id].run_id,
            "policy_hash": row.policy_hash,
            "verdict": row.verdict,
            "exit_code": row.exit_code,
            "created_at": row.created_at,
            "decision": row.decision,
        }
        for row in sorted(rows, key=lambda row: (row.candidate_arm_id, row.baseline_arm_id))
    ]


def arm_totals(store: Store, arm_id: int) -> ArmTotals:
    """Counts, tokens and seconds of work (`prefill_s` and `decode_s`) of one arm."""
    prefill, decode = (Sample.timings[name].as_float() for name in ("prefill_s", "decode_s"))
    query = select(
        func.count(),
        func.count().filter(Sample.status == "error"),
        func.count().filter(Sample.status == "skipped"),
        func.sum(Sample.prompt_tokens),
        func.sum(Sample.answer_tokens),
        func.sum(func.coalesce(prefill + decode, prefill, decode)),
        func.count().filter(Sample.escaped),
    ).where(Sample.arm_id == arm_id)
    with store.session() as session:
        samples, errors, skipped, prompt_tokens, answer_tokens, seconds, escaped = session.execute(query).one()
    return ArmTotals(
        samples=samples,
        errors=errors,
        skipped=skipped,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        seconds=seconds,
        escaped=escaped,
    )


def _texts(store: Store, sample_ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """(prompt, answer) by sample id."""
    texts: dict[int, tuple[str, str]] = {}
    with store.session() as session:
        for start in range(0, len(sample_ids), _CHUNK):
            chunk = sample_ids[start : start + _CHUNK]
            for row in session.execute(select(Sample.id, Sample.prompt, Sample.answer).where(Sample.id.in_(chunk))):
                texts[row.id] = (row.prompt, row.answer)
    return texts


def _arm_record(arm: Arm, run: Run) -> ArmRecord:
    return ArmRecord(
        id=arm.id,
        run_id=run.id,
        run_kind=run.kind,
        run_status=run.status,
        linked_run_id=run.linked_run_id,
        experiment=run.experiment,
        baseline=run.baseline,
        name=arm.name,
        fingerprint=arm.fingerprint,
        plan=arm.plan,
        stages=arm.stages,
        injected=arm.injected,
        details=arm.details,
        status=arm.status,
        proof=arm.proof,
        proof_status=arm.proof_status,
        probe=arm.probe,
        expected=arm.expected,
        seed=run.seed,
        experiment_hash=run.experiment_hash,
        series=arm.series or {},
        capabilities=arm.capabilities or {},
    )


def _listed(names: Iterable[str], limit: int = 12) -> str:
    shown = list(names)
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more


def _existing_runs(ids: Iterable[int]) -> str:
    known = [str(run_id) for run_id in ids]
    return f"runs: {_listed(known)}" if known else "no run is stored; `evalsvc run FILE` makes one"
