"""From an experiment file to a finished run: its arms, group by group, then the baseline against itself."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from evalsvc.beginnings import beginnings, flaws
from evalsvc.decision import Stop
from evalsvc.divergence import along_answers, paths_of
from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.evidence import average_repeats, counted_by_suite, differing_factors, up_to
from evalsvc.expected import FOLDER
from evalsvc.experiment import ArmConfig, Experiment, experiment_hash, load_experiment, model_path
from evalsvc.looking import complete_looks, find_stop
from evalsvc.ordering import plan_looks
from evalsvc.parallel import Reporter, run_parallel
from evalsvc.paths import cache_dir
from evalsvc.policy import Policy
from evalsvc.questions import Question, hash_of, questions
from evalsvc.reusing import copy_earlier
from evalsvc.runner import ArmRun, Watch, placed, run_group
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.run_keys import run_of_key
from evalsvc.store.session import Store, open_store
from evalsvc.suites.load import load_suite
from evalsvc.tally import Doing
from evalsvc.targets.base import ArmFacts
from evalsvc.templates import known_template

PROOF_TEXT = "text"  # lets a stage run where nothing was left to ask; a few tokens fit in any pool


@dataclass(frozen=True)
class Prepared:
    """An experiment with everything that its file names, read and checked; nothing heavy is loaded."""

    path: Path
    experiment: Experiment
    base_dir: Path
    asked: list[Question]
    hash: str
    passages: list[str]
    allow_code: bool = False
    template: str | None = None

    @property
    def own_prompts(self) -> list[Question]:
        """What the suites of kind `prompts` ask."""
        names = {suite.name for suite in self.experiment.suites if suite.kind == "prompts"}
        return [question for question in self.asked if question.suite.name in names]

    def hash_under(self, versions: Mapping[str, str]) -> str:
        """The experiment's hash if suites were scored under these versions, the others under their own."""
        asked = [
            {
                "key": list(q.key),
                "chance": q.item.chance,
                "scoring": versions.get(q.suite.name, q.suite.scoring_version),
            }
            for q in self.asked
        ]
        return experiment_hash(self.experiment, asked, self.passages)

    @property
    def versions(self) -> dict[str, Any]:
        """What a history names when it changed: of each suite a hash of all that it asks and its scoring version."""
        asked: dict[str, list[list[Any]]] = {}
        for question in self.asked:
            asked.setdefault(question.suite.name, []).append([*question.key, question.item.chance])
        scoring = {question.suite.name: question.suite.scoring_version for question in self.asked}
        suites = {name: {"items": hash_of(sorted(keys)), "scoring": scoring[name]} for name, keys in asked.items()}
        return {"suites": suites, "template": None if self.template is None else hash_of(self.template)}

    def items_by_suite(self) -> dict[str, int]:
        """Items of each suite that carry a verdict, each item once; suites without any are left out."""
        items = {(q.suite.name, q.item.id) for q in self.asked if q.item.metric}
        counts = {s.name: sum(name == s.name for name, _ in items) for s in self.experiment.suites}
        return {name: count for name, count in counts.items() if count}


def prepare(path: Path, *, allow_code: bool = False) -> Prepared:
    """Reads an experiment and its suites.

    Args:
        path: The experiment file.
        allow_code: Whether Python that a user's task files name may run.

    Raises:
        ConfigError: A file that cannot be used; names it and the line.
    """
    experiment = load_experiment(path)
    base_dir = path.parent
    for name, arm in experiment.arms.items():
        for key, file in (("calibration", arm.calibration), ("scales", arm.scales)):
            if file is not None and not (base_dir / file).is_file():
                raise ConfigError(f"{path}: arm {name}: {key} {base_dir / file} does not exist")
    passages = [] if experiment.probe is None else _passages(base_dir / experiment.probe)
    template = known_template(experiment.model, base_dir)
    if template is None and (base_dir / Path(experiment.model).expanduser()).is_dir():
        chatting = next((spec.name for spec in experiment.suites if spec.apply_chat_template), None)
        if chatting is not None:
            raise ConfigError(
                f"{path}: suite {chatting} says apply_chat_template, and model {experiment.model} has no chat template"
            )
    suites = [load_suite(spec, base_dir, template, allow_code=allow_code) for spec in experiment.suites]
    asked = questions(suites, experiment.throughs)
    prepared = Prepared(path, experiment, base_dir, asked, "", passages, allow_code, template)
    return replace(prepared, hash=prepared.hash_under({}))


def _passages(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"probe {path}: cannot be read ({error})") from None
    passages = [part.strip() for part in text.split("\n\n") if part.strip()]
    if not passages:
        raise ConfigError(f"probe {path}: holds no text")
    return passages


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
        found = _keyed(store, key, prepared.hash, fingerprints)
    else:
        status = "running" if reuse else None
        found = None if new else writer.find_run(store, prepared.hash, fingerprints, status=status)
    run_id = _open_run(store, prepared, "main", None, key) if found is None else found
    arms = _open_arms(store, run_id, facts.values(), prepared)
    jobs = [Job(run_id, group) for group in _groups([facts[n] for n, arm in arms.items() if not _finished(store, arm)])]
    aa_id = None
    if experiment.aa is not None:
        aa_id, job = _aa_job(store, prepared, run_id, facts[experiment.baseline])
        jobs += [job] if job else []
    if found is None:
        report.note(f"run {run_id} begins" + ("" if new or reuse else _why_new(store, prepared, run_id)))
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


def _why_new(store: Store, prepared: Prepared, run_id: int) -> str:
    """What keeps the latest earlier run of an experiment of this name from being gone on with; empty when none is."""
    named = [r for r in queries.runs(store) if r.experiment == prepared.experiment.name and r.kind == "main"]
    earlier = max((r for r in named if r.id < run_id), key=lambda r: r.id, default=None)
    if earlier is None:
        return ""
    what = "another model or engine" if earlier.experiment_hash == prepared.hash else "other items, plans or settings"
    return f": run {earlier.id} had {what}"


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
    aa_id = _open_run(store, prepared, "aa", run_id) if found is None else found
    arm = _open_arms(store, aa_id, [facts], prepared)[facts.name]
    return aa_id, None if _finished(store, arm) else Job(aa_id, (facts.name,), again=True)


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
    arms = _open_arms(store, job.run_id, [target.facts(name) for name in job.arms], prepared)
    labels = {name: f"{name} again (A/A)" if job.again else name for name in arms}
    watch = None if job.again else _watch(store, prepared, job.run_id, policy)
    _run(store, target, arms, prepared, experiment.seed + job.again, report, labels, watch)
    begun = beginnings(target, [question.request for question in prepared.asked])
    if experiment.baseline in job.arms and not job.again:
        for flaw in flaws(begun):
            report.note(flaw)
    compared = [arm for name, arm in arms.items() if job.again or name != experiment.baseline]
    problems: dict[str, list[str]] = {}
    beside = {} if job.again else _along_answers(store, target, compared, prepared)
    if prepared.passages and compared:
        first = _target(prepared, experiment.batch, {experiment.baseline}) if job.again else target
        problems = _probe(store, target, compared, prepared, first, beside, together=not job.again)
    for arm in compared if not prepared.passages else ():
        if arm.facts.name in beside:
            writer.save_probe(store, arm.arm_id, beside[arm.facts.name])
    for name, arm in arms.items():
        _finish(store, target, arm, problems.get(name, []), begun)


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


def _keyed(store: Store, key: str, digest: str, fingerprints: Mapping[str, str]) -> int | None:
    """The run of a key, where it is still of this experiment, model and engine."""
    found = run_of_key(store, key)
    return found if found is not None and writer.continues(store, found, digest, fingerprints) else None


def _open_run(store: Store, prepared: Prepared, kind: str, linked: int | None, key: str | None = None) -> int:
    experiment = prepared.experiment
    return writer.open_run(
        store,
        experiment=experiment.name,
        experiment_hash=prepared.hash,
        resolved={**experiment.model_dump(mode="json"), FOLDER: str(prepared.base_dir.resolve())},
        baseline=experiment.baseline,
        seed=experiment.seed + (kind == "aa"),
        kind=kind,
        linked_run_id=linked,
        key=key,
    )


def _open_arms(store: Store, run_id: int, facts: Iterable[ArmFacts], prepared: Prepared) -> dict[str, ArmRun]:
    experiment, versions = prepared.experiment, prepared.versions
    return {
        fact.name: ArmRun(
            run_id,
            writer.open_arm(
                store,
                run_id,
                name=fact.name,
                fingerprint=fact.fingerprint,
                plan=fact.plan,
                stages=fact.stages,
                injected=fact.injected,
                details={**fact.details, "note": experiment.arms[fact.name].note, **versions},
                expected=len(prepared.asked),
            ),
            fact,
        )
        for fact in facts
    }


def _finished(store: Store, arm: ArmRun) -> bool:
    return any(held.id == arm.arm_id and held.status == "finished" for held in queries.arms(store, arm.run_id))


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
    looks = plan_looks(map(placed, prepared.asked), prepared.experiment.seed, policy.block_items)
    rows = Counter(placed(question).place for question in prepared.asked)

    def decide(arm: ArmRun) -> Stop | None:
        held = {record.name: record for record in queries.arms(store, run_id)}
        if arm.facts.name == baseline or baseline not in held:
            return None
        base, candidate = held[baseline], held[arm.facts.name]
        pairs = queries.pairs(store, base, candidate)
        there = complete_looks(looks, pairs, rows)
        seen = average_repeats(up_to(pairs, there))
        wanted = policy.more_sampling is not None
        choices = (queries.choices(store, base), queries.choices(store, candidate)) if wanted else ({}, {})
        return find_stop(counted_by_suite(seen, differing_factors(base, candidate)), there, policy, choices)

    return Watch(policy.block_items, decide)


def _probe(
    store: Store,
    target: Any,
    arms: Sequence[ArmRun],
    prepared: Prepared,
    first: Any,
    beside: Mapping[str, Mapping[str, Any]],
    *,
    together: bool,
) -> dict[str, list[str]]:
    """Compares distributions of arms with the baseline's and stores what was found.

    Args:
        store: Where the probes go.
        target: Who serves the arms.
        arms: Those to compare.
        prepared: Whose passages.
        first: Who serves the baseline that they are compared with.
        beside: What else is stored in each arm's probe.
        together: As in `EmbeddedTarget.distributions`.

    Returns:
        By arm what `silent_stages` found.
    """
    from evalsvc.targets.embedded import kl_by_stage

    name = prepared.experiment.baseline
    plain, baseline = first.facts(name), first.distributions(name, prepared.passages)
    problems = {}
    for arm in arms:
        found = target.distributions(arm.facts.name, prepared.passages, together=together)
        probe = kl_by_stage(baseline, found)
        writer.save_probe(store, arm.arm_id, {**probe, **beside.get(arm.facts.name, {})})
        problems[arm.facts.name] = silent_stages(plain, arm.facts, probe)
    return problems


def _along_answers(
    store: Store, target: Any, arms: Sequence[ArmRun], prepared: Prepared
) -> dict[str, dict[str, dict[str, Any]]]:
    """By arm its KL to the baseline along the baseline's answers to own prompts; empty without such prompts."""
    asked = prepared.own_prompts
    if not asked or not arms:
        return {}
    baseline = prepared.experiment.baseline
    record = next(arm for arm in queries.arms(store, arms[0].run_id) if arm.name == baseline)
    paths = paths_of(asked, answers(store, record), target.encode)
    return along_answers(target, baseline, [arm.facts.name for arm in arms], paths)


def silent_stages(baseline: ArmFacts, arm: ArmFacts, probe: dict[str, dict[str, float]]) -> list[str]:
    """Where a stage holds another quantized format than the baseline's and yet answers with the baseline's bits.

    Counted bytes cannot tell a format that is held from one that is also read; this can.
    """
    problems = []
    for stage, found in probe.items():
        ours, theirs = baseline.stages[stage], arm.stages[stage]
        formats = [f"{key}={theirs[key]}" for key in ("weights", "kv") if ours[key] != theirs[key]]
        quantized = [text for text in formats if not text.endswith(("=fp32", "=bf16"))]
        if quantized and found["kl_max"] == 0:
            problems.append(f"{stage}: {', '.join(quantized)} changes no bit of the baseline's distributions")
    return problems


def _finish(store: Store, target: Any, arm: ArmRun, problems: Iterable[str], begun: Mapping[str, Any] | None) -> None:
    """Stores the proof. A stage that this process never ran (its samples came before a kill) runs once for it."""
    proof = target.proof(arm.facts.name)
    if not all(proof[stage]["tokens_computed"] for stage in ("prefill", "decode")):
        target.distributions(arm.facts.name, [PROOF_TEXT])
        proof = target.proof(arm.facts.name)
    proof["mismatches"] += problems
    proof["beginnings"] = begun
    writer.finish_arm(store, arm.arm_id, proof, "mismatched" if proof["mismatches"] else "matched")
