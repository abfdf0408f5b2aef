"""What is measured of arms beside their answers: distributions against the baseline's, and the proof."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalsvc.divergence import along_answers, paths_of
from evalsvc.prepared import Prepared
from evalsvc.runner import ArmRun
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.session import Store
from evalsvc.targets.base import ArmFacts

PROOF_TEXT = "text"  # lets a stage run where nothing was left to ask; a few tokens fit in any pool


def store_probes(
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


def along_own_prompts(
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


def store_proof(
    store: Store, target: Any, arm: ArmRun, problems: Iterable[str], begun: Mapping[str, Any] | None
) -> None:
    """Stores the proof. A stage that this process never ran (its samples came before a kill) runs once for it."""
    proof = target.proof(arm.facts.name)
    if not all(proof[stage]["tokens_computed"] for stage in ("prefill", "decode")):
        target.distributions(arm.facts.name, [PROOF_TEXT])
        proof = target.proof(arm.facts.name)
    proof["mismatches"] += problems
    proof["beginnings"] = begun
    writer.finish_arm(store, arm.arm_id, proof, "mismatched" if proof["mismatches"] else "matched")
