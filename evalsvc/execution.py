"""From an experiment file to a finished run: each arm, then the baseline against itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from evalsvc.errors import ConfigError
from evalsvc.experiment import Experiment, experiment_hash, load_experiment, model_directory
from evalsvc.paths import cache_dir
from evalsvc.runner import ArmRun, Question, questions, run_arm
from evalsvc.store import queries, writer
from evalsvc.store.session import Store
from evalsvc.suites.load import load_suite
from evalsvc.targets.base import ArmFacts


class Reporter(Protocol):
    """Who is told how a run goes on."""

    def note(self, text: str) -> None:
        """One line of news."""

    def progress(self, label: str) -> Callable[[int, int], None]:
        """A counter for one arm: called with samples stored and samples in all."""
        ...


@dataclass(frozen=True)
class Prepared:
    """An experiment with everything that its file names, read and checked; nothing heavy is loaded."""

    experiment: Experiment
    base_dir: Path
    asked: list[Question]
    hash: str
    passages: list[str]

    def items_by_suite(self) -> dict[str, int]:
        """Items of each suite, each item once."""
        items = {(q.suite.name, q.item.id) for q in self.asked}
        return {s.name: sum(name == s.name for name, _ in items) for s in self.experiment.suites}


def prepare(path: Path) -> Prepared:
    """Reads an experiment and its suites.

    Raises:
        ConfigError: A file that cannot be used; names it and the line.
    """
    experiment = load_experiment(path)
    base_dir = path.parent
    for name, arm in experiment.arms.items():
        if arm.calibration is not None and not (base_dir / arm.calibration).is_file():
            raise ConfigError(f"{path}: arm {name}: calibration {base_dir / arm.calibration} does not exist")
    passages = [] if experiment.probe is None else _passages(base_dir / experiment.probe)
    asked = questions([load_suite(spec, base_dir) for spec in experiment.suites], experiment.throughs)
    keys = [list(question.key) for question in asked]
    digest = experiment_hash(
        experiment, [{"key": key, "chance": q.item.chance} for key, q in zip(keys, asked, strict=True)], passages
    )
    return Prepared(experiment, base_dir, asked, digest, passages)


def _passages(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"probe {path}: cannot be read ({error})") from None
    passages = [part.strip() for part in text.split("\n\n") if part.strip()]
    if not passages:
        raise ConfigError(f"probe {path}: holds no text")
    return passages


def execute(prepared: Prepared, store: Store, report: Reporter, *, new: bool = False) -> int:
    """Runs what is missing and returns the id of the main run.

    Args:
        prepared: From `prepare`.
        store: Open for writing, and locked by the caller.
        report: Told of progress.
        new: Start another run even when this one is finished or under way.

    Raises:
        EvalsvcError: Anything that stops the run; what was answered is stored.
    """
    experiment = prepared.experiment
    target = _target(prepared, experiment.batch)
    facts = {name: target.facts(name) for name in experiment.arms_in_order}
    fingerprints = {name: fact.fingerprint for name, fact in facts.items()}
    run_id = None if new else writer.find_run(store, prepared.hash, fingerprints)
    if run_id is None:
        run_id = _open_run(store, prepared, "main", None)
        report.note(f"run {run_id} begins")
    else:
        report.note(f"run {run_id} goes on from what is stored; --new starts another")
    arms = _open_arms(store, run_id, list(facts.values()), prepared.asked)
    baseline: dict[str, list[Any]] | None = None
    for name, arm in arms.items():
        if _finished(store, arm):
            continue
        _run(store, target, arm, prepared, experiment.seed, report, name)
        if prepared.passages:
            baseline = baseline or target.distributions(experiment.baseline, prepared.passages)
            if name != experiment.baseline:
                _probe(store, target, arm, prepared, baseline)
        _finish(store, target, arm)
        if name != experiment.baseline:
            target.release(name)
    writer.finish_run(store, run_id)
    if experiment.aa is not None:
        _run_aa(store, prepared, run_id, facts[experiment.baseline], report, baseline, target)
    return run_id


def _run_aa(
    store: Store, prepared: Prepared, run_id: int, facts: ArmFacts, report: Reporter, baseline: Any, first: Any
):
    """The baseline a second time: another order, batches of another size, nothing shared with the first."""
    experiment = prepared.experiment
    assert experiment.aa is not None
    found = writer.find_run(store, prepared.hash, {facts.name: facts.fingerprint}, kind="aa", linked_run_id=run_id)
    aa_id = _open_run(store, prepared, "aa", run_id) if found is None else found
    arm = _open_arms(store, aa_id, [facts], prepared.asked)[facts.name]
    if not _finished(store, arm):
        target = _target(prepared, experiment.aa.batch)
        _run(store, target, arm, prepared, experiment.seed + 1, report, f"{facts.name} again (A/A)")
        if prepared.passages:
            baseline = baseline or first.distributions(facts.name, prepared.passages)
            _probe(store, target, arm, prepared, baseline, together=False)
        _finish(store, target, arm)
    writer.finish_run(store, aa_id)


def _target(prepared: Prepared, batch: int):
    from evalsvc.engine.arm import ArmSpec
    from evalsvc.targets.embedded import EmbeddedTarget

    experiment, cache = prepared.experiment, cache_dir()
    specs = {
        name: ArmSpec(
            arm.parsed,
            None if arm.calibration is None else prepared.base_dir / arm.calibration,
            dict(arm.inject),
        )
        for name, arm in experiment.arms.items()
    }
    return EmbeddedTarget(
        model_directory(experiment, prepared.base_dir, cache),
        specs,
        threads=experiment.threads,
        batch=batch,
        kv_tokens=experiment.kv_tokens,
        cache=cache / "scales",
    )


def _open_run(store: Store, prepared: Prepared, kind: str, linked: int | None) -> int:
    experiment = prepared.experiment
    return writer.open_run(
        store,
        experiment=experiment.name,
        experiment_hash=prepared.hash,
        resolved=experiment.model_dump(mode="json"),
        baseline=experiment.baseline,
        seed=experiment.seed + (kind == "aa"),
        kind=kind,
        linked_run_id=linked,
    )


def _open_arms(store: Store, run_id: int, facts: Sequence[ArmFacts], asked: Sequence[Question]) -> dict[str, ArmRun]:
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
                details=fact.details,
                expected=len(asked),
            ),
            fact,
        )
        for fact in facts
    }


def _finished(store: Store, arm: ArmRun) -> bool:
    return any(held.id == arm.arm_id and held.status == "finished" for held in queries.arms(store, arm.run_id))


def _run(store: Store, target: Any, arm: ArmRun, prepared: Prepared, seed: int, report: Reporter, label: str) -> None:
    started = monotonic()
    outcome = run_arm(store, target, arm, prepared.asked, seed, report.progress(label))
    seconds = monotonic() - started
    report.note(f"{label}: {outcome.stored} samples in {seconds:.1f} s ({arm.facts.plan})")
    if outcome.errors:
        report.note(f"{label}: {outcome.errors} of them have no score, first {outcome.first_error}")


def _probe(store: Store, target: Any, arm: ArmRun, prepared: Prepared, baseline: Any, *, together: bool = True) -> None:
    from evalsvc.targets.embedded import kl_by_stage

    found = target.distributions(arm.facts.name, prepared.passages, together=together)
    writer.save_probe(store, arm.arm_id, kl_by_stage(baseline, found))


def _finish(store: Store, target: Any, arm: ArmRun) -> None:
    proof = target.proof(arm.facts.name)
    writer.finish_arm(store, arm.arm_id, proof, "mismatched" if proof["mismatches"] else "matched")
