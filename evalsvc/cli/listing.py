"""Runs and arms as tables for a terminal. Stored text is `Text`, never markup."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.beginnings import in_words
from evalsvc.calling import CallFigures
from evalsvc.cli.common import one_line
from evalsvc.cli.proof_report import render_proof
from evalsvc.serving.figures import CellFigures
from evalsvc.store.rates import FailureRates
from evalsvc.store.records import ArmRecord, ArmTotals, BaselineRecord, RunRecord


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        numeric = column in ("samples", "errors", "mean", "max", "tokens", "answers", "failing")
        whole = numeric or column in ("run", "status", "started", "since")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text("" if cell is None else "\n".join(map(one_line, str(cell).split("\n")))) for cell in cells))


def render_runs(runs: Sequence[RunRecord]) -> RenderableType:
    """One line a run."""
    if not runs:
        return Text("no runs yet; `evalsvc run FILE` makes one")
    table = _table("run", "experiment", "status", "started", "samples", "errors", "arms")
    for run in runs:
        experiment = run.experiment if run.kind == "main" else f"{run.experiment} (A/A of {run.linked_run_id})"
        started = run.created_at.replace("T", " ")[5:16]
        _add(table, run.id, experiment, run.status, started, f"{run.samples:,}", run.errors, "\n".join(run.arms))
    return table


def render_run(run: RunRecord, arms: Sequence[ArmRecord]) -> RenderableType:
    """A run and its arms."""
    table = _table("arm", "status", "proof", "plan")
    for arm in arms:
        mark = " [injected]" if arm.injected else " (baseline)" if arm.name == run.baseline else ""
        _add(table, arm.address + mark, arm.status, arm.proof_status or "none", arm.plan)
    return Group(render_runs([run]), Text(""), table)


def render_baselines(baselines: Sequence[BaselineRecord]) -> RenderableType:
    """One line a promotion."""
    if not baselines:
        return Text("no baselines yet; `evalsvc baseline promote ADDRESS --name NAME --why TEXT` names one")
    table = _table("name", "arm", "since", "why")
    for record in baselines:
        since = record.created_at.replace("T", " ")[:16]
        _add(table, f"@{record.name}" + ("" if record.current else " (before)"), record.address, since, record.why)
    return table


def render_arm(
    arm: ArmRecord,
    totals: ArmTotals,
    failures: Mapping[str, FailureRates] | None = None,
    calls: Mapping[str, CallFigures] | None = None,
    serving: Sequence[CellFigures] = (),
) -> RenderableType:
    """What an arm is, what it answered and how that failed, and what was measured of it."""
    facts = _table("arm", arm.address)
    injected = ", ".join(f"{name} {value}" for name, value in arm.injected.items())
    seconds = ", ".join(
        f"{stage} {value:,.1f} s" + (f" (with {', '.join(others)})" if others else "")
        for stage, (value, others) in arm.seconds().items()
    )
    for name, value in (
        ("run", f"{arm.run_id} ({arm.experiment}, {arm.run_kind}, {arm.run_status})"),
        ("plan", arm.plan),
        ("injected", injected),
        ("status", arm.status),
        ("stopped", _stopped(arm)),
        ("samples", f"{totals.samples:,} of {arm.expected:,}, {totals.errors} errors, {totals.skipped} skipped"),
        ("copied", ", ".join(f"{count:,} from {source}" for source, count in arm.details.get("reused", {}).items())),
        ("escaped", _escaped(totals)),
        ("tokens", _tokens(totals)),
        ("computing", seconds),
        ("note", arm.details.get("note")),
        ("fingerprint", arm.fingerprint),
        ("proof", arm.proof_status or "none"),
        ("prompts", in_words((arm.proof or {}).get("beginnings"))),
    ):
        if value:
            _add(facts, name, value)
    parts: list[RenderableType] = [facts]
    if failures:
        parts += [Text(""), _failures_table(failures)]
    if calls:
        parts += [Text(""), _calls_table(calls)]
    if serving:
        parts += [Text(""), Text(f"served on {serving[0].device}; times are medians"), _serving_table(serving)]
    if arm.probe:
        parts += [Text(""), _probe_table(arm.probe)]
    if arm.proof:
        parts += [Text(""), render_proof(arm.proof)]
    return Group(*parts)


def _stopped(arm: ArmRecord) -> str | None:
    if arm.stopped is None:
        return None
    return f"{arm.stopped['word']} after {arm.stopped['items']:,} of {arm.stopped['planned']:,} items"


def _escaped(totals: ArmTotals) -> str | None:
    """What cannot be read back as it was written."""
    if not totals.escaped:
        return None
    return f"{totals.escaped:,} samples hold characters that no database text can; they stand as \\udc80-like escapes"


def _tokens(totals: ArmTotals) -> str | None:
    if totals.prompt_tokens is None or totals.answer_tokens is None:
        return None
    return f"{totals.prompt_tokens:,} of prompts, {totals.answer_tokens:,} of answers"


def _failures_table(failures: Mapping[str, FailureRates]) -> Table:
    """Share of each suite's generated answers that show a failure mode, and which modes."""
    table = _table("failure modes", "answers", "failing", "of which")
    for suite, found in failures.items():
        modes = ", ".join(f"{mode.replace('_', ' ')} {n:,}" for mode, n in found.shown.items())
        _add(table, suite, f"{found.answers:,}", f"{100 * found.any / found.answers:.1f} %", modes or "none")
    return table


def _calls_table(calls: Mapping[str, CallFigures]) -> Table:
    """When each suite's answers call a tool, and how many calls fit their schemas."""
    table = _table("tool calls", "answers", "with a call", "schemas fit", "F1 as expected", "F1 to baseline")
    for suite, found in calls.items():
        shares = (found.schema_accuracy, found.expected.f1, found.reference and found.reference.f1)
        cells = ("-" if share is None else f"{100 * share:.1f} %" for share in shares)
        _add(table, suite, f"{found.answers:,}", f"{found.triggered:,}", *cells)
    return table


def _serving_table(serving: Sequence[CellFigures]) -> Table:
    """Speed, throughput and cost of each measured cell."""
    columns = ("first token", "next token", "prompt/s", "generated/s", "cost of a million")
    table = _table("prompt x at once", *columns)
    for cell in serving:
        seconds = (cell.times.get(name, {}).get(50) for name in ("ttft_s", "itl_s"))
        rates = cell.prompt_tokens_s, cell.generated_tokens_s, cell.cost_per_million_tokens
        cells = [s and f"{1000 * s.mean:,.1f} ms" for s in seconds] + [r and f"{r.mean:,.1f}" for r in rates]
        said = [c or "-" for c in cells] if cell.status == "measured" else [cell.message, *(None for _ in columns[1:])]
        _add(table, f"{cell.prompt_tokens} x {cell.concurrency}", *said)
    return table


def calls_document(found: CallFigures) -> dict[str, Any]:
    """Figures of tool calls as plain JSON; proportions stay proportions."""
    shares = {"schema_accuracy": found.schema_accuracy, "f1_expected": found.expected.f1}
    return {**asdict(found), **shares, "f1_reference": found.reference and found.reference.f1}


def _probe_table(probe: Mapping[str, Any]) -> Table:
    """Divergence of the next-token distribution from the baseline's over a fixed text."""
    table = _table("KL to baseline", "mean", "max", "tokens")
    for stage, found in probe.items():
        values = found if isinstance(found, Mapping) else {"kl_mean": found}
        cells = [values.get(name) for name in ("kl_mean", "kl_max")]
        _add(table, stage, *(f"{c:.3g}" if isinstance(c, float) else c for c in cells), values.get("tokens"))
    return table
