"""Page 11: what failed; jobs, queue and leases; what each arm really was."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from evalsvc.dashboards import frames, markup, reads_arms, tables
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.frames import number_column, text_column
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.store import queries
from evalsvc.store.job_tables import AlertRow, DeliveryRow, ExecutionRow, ScheduleRow
from evalsvc.store.schema import IncidentRow
from evalsvc.store.session import Store

NEWEST = 50
INTEGRITY = "integrity"  # error class of a sample that met a page that is not its own
_TABLES = (
    (
        "Queue and executions",
        f"Planned times of jobs, the newest {NEWEST}.",
        ExecutionRow,
        ("id", "job", "planned_at", "status", "attempt", "failures", "holder", "lease_until", "exit_code", "run_id",
         "message"),
        "planned_at",
    ),
    ("Schedules", "Jobs as the scheduler last saw them.", ScheduleRow,
     ("job", "cron", "time_zone", "seen_until", "late"), "job"),
    ("Alerts", "The last word of every job, candidate and arm's integrity.", AlertRow,
     ("job", "subject", "word", "alert", "planned_at"), "planned_at"),
    (
        "Integrity incidents",
        f"Slots of KV pages that did not hold what was written for a request; each ended it as an error. The newest "
        f"{NEWEST}.",
        IncidentRow,
        ("id", "run_id", "arm", "request", "stage", "page", "slot", "layer", "expected_tag", "expected_position",
         "found_tag", "found_position", "content", "step", "created_at"),
        "id",
    ),
    ("Notices", f"Deliveries of what changed, the newest {NEWEST}.", DeliveryRow,
     ("id", "channel", "status", "tries", "message", "delivered_at"), "id"),
)  # fmt: skip


def show(store: Store, view: RunView) -> None:
    """What went wrong in the run, the tables of jobs, then proof and abilities of every arm."""
    st.html(markup.header(view, "Jobs and health"))
    failed = {
        arm.id: kept(store, (arm,), "failed samples", lambda arm=arm: reads_arms.failed_samples(store, arm))
        for arm in view.arms
    }
    _incidents(view, failed)
    _errors(view, failed)
    _jobs(store)
    _held_by_stages(store, view)
    _ran(view)
    _abilities(view)


def _held_by_stages(store: Store, view: RunView) -> None:
    """Formats, bytes and KL of each stage of each arm."""
    explained = (
        "Measured, not asked for. weights: bytes of the format; resident: what this process holds for it. "
        "KL: of the next token against the run's own baseline over a fixed text, per stage."
    )
    st.html(markup.title("What each stage held", explained))
    totals = [
        (arm, kept(store, (arm,), "totals", lambda arm=arm: queries.arm_totals(store, arm.id))) for arm in view.arms
    ]
    st.html(tables.arms_table([(view.named(arm), arm, total) for arm, total in totals]))


def _abilities(view: RunView) -> None:
    """What the target of each arm can do, a line a capability; arms whose targets are alike share a column."""
    arms = view.arms
    st.html(
        markup.title("What each arm's target can do", "As it was tried before the first item, or read of its files.")
    )
    names = dict.fromkeys(name for arm in arms for name in arm.capabilities)
    if not names:
        st.caption("Nobody asked these targets: the run is of an earlier version. A new run does.")
        return
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for number, arm in enumerate(arms):
        said = tuple(_ability(arm.capabilities.get(name)) for name in names)
        alike.setdefault(said, []).append(f"{view.named(arm)} (baseline)" if number == 0 else view.named(arm))
    table = {"capability": text_column(list(names))}
    for said, whose in alike.items():
        every = f"all {len(whose)} arms" if len(whose) == len(arms) > 1 else ", ".join(whose)
        table[every] = text_column(said)
    st.html(tables.wrapped(pd.DataFrame(table)))


def _ability(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    return f"{'✓' if found.get('can') else '✗'} {found.get('about') or ''}".strip()


def _ran(view: RunView) -> None:
    """On what and by which kernels each stage ran, counted; a declared arm's own words."""
    st.html(markup.title("What each arm ran", "Device, arithmetic and kernels of each stage, as its proof counted."))
    arms = view.arms
    if not any(arm.proof for arm in arms):
        st.caption("No stage of these arms was measured: a run on the embedded engine stores what it really ran.")
        return
    lines = []
    for arm in arms:
        stages = [stage for stage in ("prefill", "decode") if (arm.proof or {}).get(stage)]
        lines += [(arm, stage, (arm.proof or {})[stage]) for stage in stages] or [(arm, "", {})]
    proofs = [proof for _, _, proof in lines]
    details = [arm.details for arm, _, _ in lines]
    shown = pd.DataFrame(
        {
            "arm": text_column([view.named(arm) for arm, _, _ in lines]),
            "stage": text_column([stage for _, stage, _ in lines]),
            "device": text_column([found.get("device") for found in details]),
            "longest text": number_column([found.get("max_length") for found in details]),
            "computed in": text_column([_held(p, "weights", "compute_dtype") for p in proofs]),
            "weights held as": text_column([_counted(_held(p, "weights", "code_dtypes")) for p in proofs]),
            "KV held as": text_column([_held(p, "kv", "dtype") for p in proofs]),
            "tokens computed": number_column([p.get("tokens_computed") for p in proofs]),
            "kernels, calls": text_column([_counted(p.get("kernels")) for p in proofs]),
        }
    )
    st.html(tables.wrapped(shown.dropna(axis="columns", how="all")))


def _held(proof: Mapping[str, Any], part: str, key: str) -> Any:
    found = proof.get(part)
    return found.get(key) if isinstance(found, Mapping) else None


def _counted(counts: Any) -> str | None:
    if not isinstance(counts, Mapping):
        return None
    return ", ".join(f"{name} {count:,}" if isinstance(count, int) else str(name) for name, count in counts.items())


def _incidents(view: RunView, failed: Mapping[int, Sequence[tuple[str, str, int, str]]]) -> None:
    """What breaks the trust in an arm: a plan that it did not run, and pages of its KV cache that lied."""
    st.html(markup.title("Integrity", "A broken check is never a wrong answer: the arm's verdicts are INVALID."))
    said = []
    for arm in view.arms:
        if arm.proof_status == "mismatched":
            wrong = "; ".join(str(found) for found in (arm.proof or {}).get("mismatches", ())) or "its plan"
            said.append((view.named(arm), "what was measured does not match the plan", None, wrong))
        for _, error, count, message in failed[arm.id]:
            if error == INTEGRITY:
                said.append((view.named(arm), "pages of the KV cache failed their check", count, message))
    if not said:
        st.caption("No incident in the arms of this run.")
        return
    st.warning(f"{len(said)} integrity incident{'s' if len(said) > 1 else ''} in this run.")
    columns = {"arm": text_column, "incident": text_column, "samples": number_column, "what was found": text_column}
    show_table(frames.table(said, **columns))


def _errors(view: RunView, failed: Mapping[int, Sequence[tuple[str, str, int, str]]]) -> None:
    held = {
        arm.id: total
        for arm, total in zip(view.arms, (view.baseline_held, *(c.held for c in view.candidates)), strict=True)
    }
    st.html(markup.title("Samples without a score", "An error is never a wrong answer: it is counted apart."))
    lines = [
        (view.named(arm), status, error, count, held[arm.id].samples, message)
        for arm in view.arms
        for status, error, count, message in failed[arm.id]
    ]
    if not lines:
        counted = sum(found.samples for found in held.values())
        st.caption(f"Every one of the {counted:,} samples of these arms has a score.")
        return
    columns = {"arm": text_column, "status": text_column, "error class": text_column}
    columns |= {"samples": number_column, "of n": number_column, "one of the messages": text_column}
    show_table(frames.table(lines, **columns))


_TIMES = ("_at", "_until")  # how names of columns end that hold times


def _shown(name: str, value: Any) -> Any:
    """A stored value for its cell: a time (ISO 8601, UTC) to its second, yes and no in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value[:19].replace("T", " ") if isinstance(value, str) and name.endswith(_TIMES) else value


def _heading(name: str) -> str:
    return name.replace("_", " ") + (", UTC" if name.endswith(_TIMES) else "")


def _jobs(store: Store) -> None:
    any_shown = False
    for title, explained, table, columns, newest in _TABLES:
        found = reads_arms.rows_of_table(store, table, columns, NEWEST, newest)
        if not found:
            continue
        st.html(markup.title(title, explained))
        numbers = {"id", "attempt", "failures", "exit_code", "run_id", "tries", "page", "slot", "layer", "step"}
        numbers |= {"expected_tag", "expected_position", "found_tag", "found_position"}
        show_table(
            pd.DataFrame(
                {
                    _heading(name): (frames.number_column if name in numbers else frames.text_column)(
                        [_shown(name, row[name]) for row in found]
                    )
                    for name in columns
                }
            )
        )
        any_shown = True
    if not any_shown:
        st.html(markup.title("Jobs", "Nothing is scheduled in this database."))
        st.caption("`evalsvc scheduler --jobs jobs.yaml` plans jobs into it, and `evalsvc worker` runs them.")
