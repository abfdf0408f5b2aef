"""What a run says at its end: decisions, and what was measured of each arm."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.beginnings import flaws
from evalsvc.cli.common import one_line
from evalsvc.cli.deciding import decide_stored, stored_aa
from evalsvc.decision import AAResult, Decision
from evalsvc.policy import Policy
from evalsvc.row import format_points
from evalsvc.series import keep_series
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store
from evalsvc.store.writer import save_decision

MIB = 2**20


def decide_run(store: Store, run_id: int, policy: Policy) -> list[Decision]:
    """Decides about every candidate of a run and stores the decisions."""
    arms = queries.arms(store, run_id)
    baseline = next(arm for arm in arms if arm.name == arm.baseline)
    decisions = []
    for arm in arms:
        if arm.id != baseline.id:
            decision = decide_stored(store, baseline, arm, policy)
            save_decision(
                store, baseline.id, arm.id, policy.sha256, decision.verdict, decision.exit_code, decision.to_json()
            )
            decisions.append(decision)
    return decisions


def keep_histories(store: Store, run_id: int) -> None:
    """Keeps what `evalsvc history` will want of a run's arms, against every promoted baseline."""
    arms = queries.arms(store, run_id)
    known = {arm.id: arm for arm in queries.arms(store)}
    promoted = {record.arm_id for record in queries.baselines(store) if record.current}
    for arm_id in promoted:
        keep_series(store, known[arm_id], arms)


def measured_arms(store: Store, run_id: int) -> list[dict[str, Any]]:
    """Per arm (the A/A last): time in seconds, tokens, mean KL and bytes per stage. Unknown is None.

    A stage's tokens and seconds are also those of the arms in its `shared_with`; an arm's own `seconds` leave them out.
    """
    arms = queries.arms(store, run_id)
    again = queries.aa_of(store, run_id)
    return [_measured(store, arm) for arm in (*arms, *([again] if again else []))]


def _measured(store: Store, arm: ArmRecord) -> dict[str, Any]:
    totals = queries.arm_totals(store, arm.id)
    stages = {}
    for stage in ("prefill", "decode"):
        proof, probe = (arm.proof or {}).get(stage, {}), (arm.probe or {}).get(stage, {})
        weights, kv = proof.get("weights", {}), proof.get("kv", {})
        stages[stage] = {
            "formats": {key: arm.stages[stage][key] for key in ("weights", "kv")},
            "kl_mean": probe.get("kl_mean"),
            "weight_format_bytes": weights.get("format_bytes"),
            "weight_resident_bytes": weights.get("resident_bytes"),
            "kv_bytes_per_token": kv.get("bytes_per_token"),
            "kv_resident_bytes": kv.get("resident_bytes"),
            "tokens": proof.get("tokens_computed"),
            "seconds": proof.get("seconds"),
            "shared_with": proof.get("shared_with", []),
        }
    return {
        "address": arm.address,
        "aa": arm.run_kind == "aa",
        "injected": arm.injected,
        "proof": arm.proof_status,
        "batches": (arm.proof or {}).get("batches"),
        "beginnings": (arm.proof or {}).get("beginnings"),
        # not the samples' own times, which overlap in a batch
        "seconds": sum(seconds for seconds, others in arm.seconds().values() if not others),
        "prompt_tokens": totals.prompt_tokens,
        "answer_tokens": totals.answer_tokens,
        "errors": totals.errors,
        "stages": stages,
    }


def render_arms(store: Store, run_id: int) -> RenderableType:
    """What each arm is, by measurement, and the A/A check."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("arm", overflow="fold", min_width=10)
    table.add_column("stage", no_wrap=True)
    for name in ("KL", "weights\nMiB", "in mem.\nMiB", "KV\nB/token", "pool\nMiB", "tokens", "seconds"):
        table.add_column(name, justify="right")
    measured = measured_arms(store, run_id)
    for arm in measured:
        table.add_section()
        name = Text(one_line(arm["address"]), "bold")
        name.append(" again (A/A)" if arm["aa"] else " [injected]" if arm["injected"] else "", "bold magenta")
        for stage, held in arm["stages"].items():
            cells = [Text(stage), *(Text(cell) for cell in _stage_cells(held))]
            table.add_row(name if stage == "prefill" else Text(""), *cells)
    probed = any(stage["kl_mean"] is not None for arm in measured for stage in arm["stages"].values())
    kl = (
        "mean divergence from the baseline's next-token distributions over a fixed text, each stage alone, in nats"
        if probed
        else "none over a fixed text, which takes a candidate and a `probe:` in the experiment; along answers: `agree`"
    )
    lines = [
        f"KL: {kl}; weights, KV: bytes of the plan's own format; in mem., pool: what the process held, on CPU with a "
        "decoded copy of quantized weights (two stages of one weights format hold one); tokens: computed, not answered",
        *_shared_lines(measured),
        _aa_line(store, run_id),
    ]
    notes = {arm.name: arm.details.get("note") for arm in queries.arms(store, run_id)}
    lines += [f"{name}: {note}" for name, note in notes.items() if note]
    lines += dict.fromkeys(flaw for arm in measured for flaw in flaws(arm["beginnings"]))
    return Group(table, *(Text(one_line(line), "dim") for line in lines))


def _shared_lines(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Which arms' stages computed for several arms at once."""
    groups: dict[tuple[str, ...], None] = {}
    for arm in measured:
        own = arm["address"].split(":", 1)[1]
        for stage, held in arm["stages"].items():
            if held["shared_with"]:
                groups[stage, *sorted([own, *held["shared_with"]])] = None
    each = "; ".join(f"{stage} of {', '.join(names)}" for stage, *names in groups)
    return [f"* computed once, for all these arms together: {each}"] if each else []


def _stage_cells(held: dict[str, Any]) -> list[str]:
    kl, mark = held["kl_mean"], "*" if held["shared_with"] else ""
    return [
        "-" if kl is None else "0" if kl == 0 else f"{kl:.2g}",
        *(_mib(held[key]) for key in ("weight_format_bytes", "weight_resident_bytes")),
        "" if held["kv_bytes_per_token"] is None else f"{held['kv_bytes_per_token']:,.0f}",
        _mib(held["kv_resident_bytes"]),
        "" if held["tokens"] is None else f"{held['tokens']:,}{mark}",
        "" if held["seconds"] is None else f"{held['seconds']:.1f}{mark}",
    ]


def _mib(count: int | None) -> str:
    return "" if count is None else f"{count / MIB:,.0f}"


def _aa_line(store: Store, run_id: int) -> str:
    check = stored_aa(store, run_id)
    if check is None:
        return "A/A: not run"
    again = queries.aa_of(store, run_id)
    first = next(arm for arm in queries.arms(store, run_id) if again and arm.name == again.name)
    ours, theirs = ((arm.proof or {}).get("batches", {}) if arm else {} for arm in (first, again))
    if ours.get("count") and ours.get("sha256") == theirs.get("sha256"):
        return "A/A: both runs had the SAME batches, so it shows nothing"
    sizes = [f"{held['mean_requests']:.1f}" if held.get("mean_requests") else "?" for held in (ours, theirs)]
    return (
        f"A/A: asked in another order and in other batches, as its proof shows (mean {sizes[0]} against {sizes[1]} "
        f"requests); {_noise(check)}" + (", CHECK FAILED" if check.failed else "")
    )


def _noise(check: AAResult) -> str:
    if check.discordance is None:
        return check.in_words
    uncounted = f" (not counted: {'; '.join(check.left_out)})" if check.left_out else ""
    return f"discordance {format_points(check.discordance)} points{uncounted}"


def run_document(store: Store, run_id: int, decisions: Sequence[Decision], exit_code: int) -> dict[str, Any]:
    """A run as one JSON document."""
    check = stored_aa(store, run_id)
    return {
        "schema": "evalsvc.run/1",
        "run": run_id,
        "exit_code": exit_code,
        "decisions": [decision.to_json() for decision in decisions],
        "arms": measured_arms(store, run_id),
        "aa": None if check is None else check.to_json(),
    }
