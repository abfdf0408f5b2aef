"""Stored arms of one run as changes from its baseline, and which factor did what."""

from collections.abc import Iterator

import numpy as np

from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.evidence import average_repeats, count_once, differing_factors, nothing_scored, with_metric
from evalsvc.reading import read_side
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord, Pair
from evalsvc.store.session import Store
from evalsvc.verdict.attribution import Arm, Effect, attribute

POOLED = ""  # all suites, each item once


def attribute_run(store: Store, run_id: int, *, alpha: float = 0.05) -> tuple[list[Effect], list[str]]:
    """As `attribute_suites`, of all suites pooled alone."""
    found, left_out = attribute_suites(store, run_id, alpha=alpha, pooled_only=True)
    return found[POOLED], left_out


def attribute_suites(
    store: Store, run_id: int, *, alpha: float = 0.05, pooled_only: bool = False
) -> tuple[dict[str, list[Effect]], list[str]]:
    """Effects of a run's factors, from its finished, honest arms.

    Returns:
        By suite the effects, those of all suites pooled under the empty name, each with Holm of its own; and the arms
        that were left out, each with the reason.

    Raises:
        EvidenceError: No arm to compare the baseline with, or no item that is scored in it and in another arm.
    """
    arms = queries.arms(store, run_id)
    baseline = next(arm for arm in arms if arm.name == arm.baseline)
    left_out, chosen = [], dict[Arm, ArmRecord]()
    for arm in arms:
        changes = changes_of(baseline, arm)
        reason = _why_not(arm, changes, chosen)
        if reason:
            left_out.append(f"{arm.name}: {reason}")
        else:
            chosen[changes] = arm
    if len(chosen) < 2:
        raise EvidenceError(
            f"run {run_id}: no finished arm without faults beside {baseline.name}; nothing to attribute; an arm "
            "that differs from it in one factor would tell"
        )
    suites, columns, clusters = _columns(store, baseline, chosen)
    scored = {changes: ~np.isnan(values) for changes, values in columns.items()}
    if not any((scored[frozenset()] & found).any() for changes, found in scored.items() if changes):
        other = next(arm for changes, arm in chosen.items() if changes)
        raise EvidenceError(nothing_scored(baseline, other, queries.pairs(store, baseline, other)))
    found = {POOLED: attribute(columns, clusters, np.random.default_rng(0), alpha=alpha)}
    for suite in [] if pooled_only else sorted(set(suites)):
        where = [i for i, name in enumerate(suites) if name == suite]
        part = {changes: values[where] for changes, values in columns.items()}
        found[suite] = attribute(part, [clusters[i] for i in where], np.random.default_rng(0), alpha=alpha)
    return found, left_out


def changes_of(baseline: ArmRecord, arm: ArmRecord) -> Arm:
    """In which factors an arm differs from the baseline, and which formats it has there."""
    return frozenset(_changes(baseline, arm))


def _changes(baseline: ArmRecord, arm: ArmRecord) -> Iterator[tuple[str, str]]:
    for factor in differing_factors(baseline, arm):
        stage, _, key = factor.partition(".")
        held = arm.stages[stage]
        yield factor, str(held.get(key)) + (" (other checkpoint)" if _other_weights(baseline, arm, stage, key) else "")


def _other_weights(baseline: ArmRecord, arm: ArmRecord, stage: str, key: str) -> bool:
    return key == "weights" and baseline.stages[stage].get("checkpoint") != arm.stages[stage].get("checkpoint")


def _why_not(arm: ArmRecord, changes: Arm, chosen: dict[Arm, ArmRecord]) -> str:
    if arm.injected:
        return "it has planted faults"
    if arm.status != "finished":
        return "it is unfinished"
    if arm.proof_status == "mismatched":
        return "what it ran does not match its plan"
    if changes in chosen:
        return f"it differs from the baseline in the same formats as {chosen[changes].name}"
    return ""


def _columns(
    store: Store, baseline: ArmRecord, chosen: dict[Arm, ArmRecord]
) -> tuple[list[str], dict[Arm, np.ndarray], list[str]]:
    """The items' suites, each arm's value of each item, NaN without one, and the items' clusters; each item once."""
    differing = {factor for changes in chosen for factor, _ in changes}
    rows: dict[Arm, dict[tuple[str, str], Pair]] = {}
    for changes, arm in chosen.items():
        pairs = count_once(average_repeats(with_metric(queries.pairs(store, baseline, arm))), tuple(differing))
        rows[changes] = {(pair.suite, pair.item_id): pair for pair in pairs}
    items = sorted({key for found in rows.values() for key in found})
    columns = {changes: np.array([_value(rows[changes].get(key), "candidate") for key in items]) for changes in chosen}
    first = {key: pair for found in rows.values() for key, pair in found.items()}
    labels = [
        "\x1f".join((first[key].suite, first[key].family, first[key].cluster)) if first[key].cluster else ""
        for key in items
    ]
    return [suite for suite, _ in items], columns, labels


def _value(pair: Pair | None, role: str) -> float:
    value = None if pair is None else read_side(getattr(pair, role))
    return value if isinstance(value, float) else float("nan")


def run_of(store: Store, name: str) -> int:
    """A run by its number, or the latest finished main run of an experiment.

    Raises:
        ConfigError: Neither.
    """
    if name.isdecimal():
        return queries.run_record(store, int(name)).id
    runs = [run for run in queries.runs(store) if run.kind == "main"]
    named = [run.id for run in runs if run.experiment == name and run.status == "finished"]
    if not named:
        known = sorted({run.experiment for run in runs})
        raise ConfigError(f"no finished run of an experiment '{name}'; known: {', '.join(known) or 'none'}")
    return max(named)
