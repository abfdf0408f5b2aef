"""From an experiment file to a finished run: its arms, group by group, then the baseline against itself."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from evalsvc.beginnings import beginnings, flaws
from evalsvc.decision import Stop
from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.evidence import average_repeats, differing_factors, up_to
from evalsvc.experiment import ArmConfig, model_path
from evalsvc.looking import complete_looks, find_stop
from evalsvc.opening import is_finished, open_arms, open_run, run_under, why_new
from evalsvc.ordering import plan_looks
from evalsvc.parallel import Reporter, run_parallel
from evalsvc.paths import cache_dir
from evalsvc.policy import Policy
from evalsvc.prepared import Prepared, prepare
from evalsvc.probing import along_own_prompts, store_probes, store_proof
from evalsvc.reusing import copy_earlier
from evalsvc.runner import ArmRun, Watch, placed, run_group
from evalsvc.store import queries, writer
from evalsvc.store.beside import read_choices
from evalsvc.store.session import Store, open_store
from evalsvc.tally import Doing
from evalsvc.targets.base import ArmFacts


def execute(
    prepared: Prepared,
    store: Store,
    report: Reporter,
    *,
    new: bool = False,
    key: str | None = None,
    reuse: bool = False,
    policy: Policy | None = None,
) -> int:
    """Runs what is missing and returns the id of the main run.

    Args:
        prepared: From `prepare`.
        store: Open for writing, and locked by the caller.
        report: Told of progress.
        new: Start another run even when this one is finished or under way.
        key: Go on with the run that was begun under this key, finished or not; else start another under it.
        reuse: Copy what earlier runs of the very same arms answered into a new run, or into the unfinished one, and
            say so. The A/A is computed all the same, and so is the baseline where the policy wants it fresh.
        policy: A sequential one stops candidates once they are decided; None asks everything.

    Raises:
        EvalsvcError: Anything that stops the run; what was answered is stored.
    """
    experiment = prepared.experiment
    facts = _facts(prepared)
    fingerprints = {name: fact.fingerprint for name, fact in facts.items()}
    if key is not None:
        found = run_under(store, key, prepared.hash, fingerprints)
    else:
        status = "running" if reuse else None
        found = None if new else writer.find_run(store, prepared.hash, fingerprints, status=status)
    run_id = open_run(store, prepared, "main", None, key) if found is None else found
    if found is not None:
        store.claim(found)
    arms = open_arms(store, run_id, facts.values(), prepared)
    jobs = [
        Job(run_id, group) for group in _groups([facts[n] for n, arm in arms.items() if not is_finished(store, arm)])
    ]
    aa_id = None
    if experiment.aa is not None:
        aa_id, job = _aa_job(store, prepared, run_id, facts[experiment.baseline])
        jobs += [job] if job else []
    if found is None:
        report.note(f"run {run_id} begins" + ("" if new or reuse else why_new(store, prepared, run_id)))
    elif jobs:
        report.note(f"run {run_id} goes on from what is stored; --new starts another")
    else:
        report.note(f"run {run_id} is finished, nothing is computed; --new starts another")
    if reuse:
        rule = None if policy is None else policy.baseline
        copy_earlier(store, arms.values(), prepared.asked, experiment.baseline, rule, report)
    for batch in _batches(jobs, prepared, policy):
        workers = min(experiment.workers, len(batch))
        if workers > 1:
            todo = [
                (str(prepared.path), prepared.allow_code, prepared.hash, store.address, job, policy) for job in batch
            ]
            run_parallel(run_job_elsewhere, todo, workers, report)
            continue
        for job in batch:
            run_job(prepared, store, job, policy, report)
    writer.finish_run(store, run_id)
    if aa_id is not None:
        writer.finish_run(store, aa_id)
    return run_id


@dataclass(frozen=True)
class Job:
    """Arms that one engine answers together; `again` is the baseline's second run (A/A)."""

    run_id: int
    arms: tuple[str, ...]
    again: bool = False


def _batches(jobs: Sequence[Job], prepared: Prepared, policy: Policy | None) -> list[list[Job]]:
    """Jobs that may run side by side.

    A sequential design needs the baseline's answers before what looks at them, and so does the KL along the answers to
    own prompts.
    """
    if (policy is None or policy.design == "fixed") and not prepared.own_prompts:
        return [list(jobs)]
    baseline = prepared.experiment.baseline
    first = [job for job in jobs if baseline in job.arms and not job.again]
    return [first, [job for job in jobs if job not in first]]


def _groups(facts: Iterable[ArmFacts]) -> list[tuple[str, ...]]:
    """Names of arms by prefill stage, so that each prompt is computed once for all arms of a group."""
    groups: dict[str, list[str]] = {}
    for fact in facts:
        groups.setdefault(json.dumps(fact.stages["prefill"], sort_keys=True), []).append(fact.name)
    return [tuple(names) for names in groups.values()]


def _aa_job(store: Store, prepared: Prepared, run_id: int, facts: ArmFacts) -> tuple[int, Job | None]:
    """The A/A run of a main run, and what is left to do of it."""
    found = writer.find_run(store, prepared.hash, {facts.name: facts.fingerprint}, kind="aa", linked_run_id=run_id)
    aa_id = open_run(store, prepared, "aa", run_id) if found is None else found
    if found is not None:
        store.claim(found)
    arm = open_arms(store, aa_id, [facts], prepared)[facts.name]
    return aa_id, None if is_finished(store, arm) else Job(aa_id, (facts.name,), again=True)


def run_job_elsewhere(
    path: str, allow_code: bool, digest: str, database: str, job: Job, policy: Policy | None, report: Reporter
) -> None:
    """A job in a process of its own, which reads everything again.

    Raises:
        ConfigError: What was read is no longer what the run began with.
    """
    prepared = prepare(Path(path), allow_code=allow_code)
    if prepared.hash != digest:
        raise ConfigError(f"{path}: it or a suite of it was edited while its run was under way; run again")
    with open_store(database) as store:
        run_job(prepared, store, job, policy, report)


def run_job(prepared: Prepared, store: Store, job: Job, policy: Policy | None, report: Reporter) -> None:
    """Answers what is missing of a job's arms, compares distributions with the baseline's, and stores the proofs.

    The A/A asks in another order and in batches of another size, and shares nothing with the first run.
    """
    experiment = prepared.experiment
    batch = experiment.aa.batch if job.again and experiment.aa is not None else experiment.batch
    target = _target(prepared, batch, {*job.arms, experiment.baseline})
    arms = open_arms(store, job.run_id, [target.facts(name) for name in job.arms], prepared)
    labels = {name: f"{name} again (A/A)" if job.again else name for name in arms}
    watch = None if job.again else _watch(store, prepared, job.run_id, policy)
    _run(store, target, arms, prepared, experiment.seed + job.again, report, labels, watch)
    begun = beginnings(target, [question.request for question in prepared.asked])
    if experiment.baseline in job.arms and not job.again:
        for flaw in flaws(begun):
            report.note(flaw)
    compared = [arm for name, arm in arms.items() if job.again or name != experiment.baseline]
    problems: dict[str, list[str]] = {}
    beside = {} if job.again else along_own_prompts(store, target, compared, prepared)
    if prepared.passages and compared:
        first = _target(prepared, experiment.batch, {experiment.baseline}) if job.again else target
        problems = store_probes(store, target, compared, prepared, first, beside, together=not job.again)
    for arm in compared if not prepared.passages else ():
        if arm.facts.name in beside:
            writer.save_probe(store, arm.arm_id, beside[arm.facts.name])
    for name, arm in arms.items():
        store_proof(store, target, arm, problems.get(name, []), begun)


def _facts(prepared: Prepared) -> dict[str, ArmFacts]:
    """Facts of all arms; calibrations that are not in the cache run here.

    Raises:
        ConfigError: Two arms are the same, so that every sample would have one key in both.
    """
    names = prepared.experiment.arms_in_order
    target = _target(prepared, prepared.experiment.batch, set(names))
    facts = {name: target.facts(name) for name in names}
    first: dict[str, str] = {}
    for name, fact in facts.items():
        same = first.setdefault(fact.fingerprint, name)
        if same != name:
            message = f"{prepared.path}: arms {same} and {name} are the same ({fact.plan}); remove or change one"
            raise ConfigError(message)
    return facts


def arm_specs(arms: Mapping[str, ArmConfig], base_dir: Path) -> dict[str, Any]:
    """What arms ask of the engine, by name; their files are beside the experiment."""
    from evalsvc.engine.arm import ArmSpec

    return {
        name: ArmSpec(
            arm.parsed,
            None if arm.calibration is None else base_dir / arm.calibration,
            dict(arm.inject),
            None if arm.scales is None else base_dir / arm.scales,
        )
        for name, arm in arms.items()
    }


def _target(prepared: Prepared, batch: int, names: Collection[str]):
    try:
        from evalsvc.targets.embedded import EmbeddedTarget
    except ModuleNotFoundError as error:
        raise CapabilityError(f"{error.name} is not installed; a run needs `pip install 'evalsvc[engine]'`") from error

    experiment, cache = prepared.experiment, cache_dir()
    wanted = {name: arm for name, arm in experiment.arms.items() if name in names}
    return EmbeddedTarget(
        model_path(experiment, prepared.base_dir, cache),
        arm_specs(wanted, prepared.base_dir),
        threads=experiment.threads,
        batch=batch,
        kv_tokens=experiment.kv_tokens,
        integrity=experiment.integrity,
        cache=cache / "scales",
    )


def _run(
    store: Store,
    target: Any,
    arms: Mapping[str, ArmRun],
    prepared: Prepared,
    seed: int,
    report: Reporter,
    labels: Mapping[str, str],
    watch: Watch | None,
) -> None:
    started = monotonic()
    counters = {name: report.progress(label) for name, label in labels.items()}

    def count(name: str, done: int, total: int, doing: Doing) -> None:
        counters[name](done, total, doing)

    baseline = prepared.experiment.baseline
    outcomes = run_group(store, target, list(arms.values()), prepared.asked, seed, count, watch, baseline)
    seconds = monotonic() - started
    for name, outcome in outcomes.items():
        label, others = labels[name], ", ".join(labels[other] for other in outcomes if other != name)
        together = f" together with {others}" if others else ""
        report.note(f"{label}: {outcome.stored} samples in {seconds:.1f} s{together} ({arms[name].facts.plan})")
        if outcome.errors:
            report.note(f"{label}: {outcome.errors} of them have no score, first {outcome.first_error}")
        stop = outcome.stop
        if stop is not None and stop.items < stop.planned:
            writer.stop_arm(store, arms[name].arm_id, asdict(stop))
            saved = stop.planned - stop.items
            share = f"{saved:,} items ({100 * saved / stop.planned:.0f} %) are not asked"
            report.note(f"{label}: {stop.word} after {stop.items:,} of {stop.planned:,} items; {share}")


def _watch(store: Store, prepared: Prepared, run_id: int, policy: Policy | None) -> Watch | None:
    """The sequential design of a run; None for a fixed one. The baseline is always asked everything."""
    if policy is None or policy.design == "fixed":
        return None
    baseline = prepared.experiment.baseline
    judged = [placed(question) for question in prepared.asked if question.item.metric]
    looks = plan_looks(judged, prepared.experiment.seed, policy.block_items)
    rows = Counter(item.place for item in judged)

    def decide(arm: ArmRun) -> Stop | None:
        held = {record.name: record for record in queries.arms(store, run_id)}
        if arm.facts.name == baseline or baseline not in held:
            return None
        base, candidate = held[baseline], held[arm.facts.name]
        pairs = queries.pairs(store, base, candidate)
        there = complete_looks(looks, pairs, rows)
        seen = average_repeats(up_to(pairs, there))
        wanted = policy.more_sampling is not None
        choices = (read_choices(store, base), read_choices(store, candidate)) if wanted else ({}, {})
        return find_stop(seen, differing_factors(base, candidate), there, policy, choices)

    return Watch(policy.block_items, decide)
