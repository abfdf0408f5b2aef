"""The rows of a run and of its arms: found where one can be gone on with, opened where none can."""

from collections.abc import Iterable, Mapping

from evalsvc.expected import FOLDER
from evalsvc.prepared import Prepared
from evalsvc.runner import ArmRun
from evalsvc.store import queries, writer
from evalsvc.store.run_keys import run_of_key
from evalsvc.store.session import Store
from evalsvc.targets.base import ArmFacts


def why_new(store: Store, prepared: Prepared, run_id: int) -> str:
    """What keeps the latest earlier run of an experiment of this name from being gone on with; empty when none is."""
    named = [r for r in queries.runs(store) if r.experiment == prepared.experiment.name and r.kind == "main"]
    earlier = max((r for r in named if r.id < run_id), key=lambda r: r.id, default=None)
    if earlier is None:
        return ""
    what = "another model or engine" if earlier.experiment_hash == prepared.hash else "other items, plans or settings"
    return f": run {earlier.id} had {what}"


def run_under(store: Store, key: str, digest: str, fingerprints: Mapping[str, str]) -> int | None:
    """The run of a key, where it is still of this experiment, model and engine."""
    found = run_of_key(store, key)
    return found if found is not None and writer.continues(store, found, digest, fingerprints) else None


def open_run(store: Store, prepared: Prepared, kind: str, linked: int | None, key: str | None = None) -> int:
    """Begins a run of kind `main`, or `aa` linked to its main run, and returns its id."""
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


def open_arms(store: Store, run_id: int, facts: Iterable[ArmFacts], prepared: Prepared) -> dict[str, ArmRun]:
    """The arms of a run by name, each opened where the run has none of that name yet."""
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
                capabilities=fact.capabilities,
            ),
            fact,
        )
        for fact in facts
    }


def is_finished(store: Store, arm: ArmRun) -> bool:
    """Whether an arm has all its samples and its proof."""
    return any(held.id == arm.arm_id and held.status == "finished" for held in queries.arms(store, arm.run_id))
