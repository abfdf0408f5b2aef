"""Page 11: jobs, queue and leases; what failed; what each arm really was."""

import pandas as pd
import streamlit as st

from evalsvc.dashboards import frames, markup, reads_arms, tables
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.store import queries
from evalsvc.store.job_tables import AlertRow, DeliveryRow, ExecutionRow, ScheduleRow
from evalsvc.store.session import Store

NEWEST = 50
_TABLES = (
    (
        "Queue and executions",
        f"Planned times of jobs, the newest {NEWEST}; times in UTC.",
        ExecutionRow,
        ("id", "job", "planned_at", "status", "attempt", "failures", "holder", "lease_until", "exit_code", "run_id",
         "message"),
        "planned_at",
    ),
    ("Schedules", "Jobs as the scheduler last saw them.", ScheduleRow,
     ("job", "cron", "time_zone", "seen_until", "late"), "job"),
    ("Alerts", "The last word of every job, candidate and arm's integrity.", AlertRow,
     ("job", "subject", "word", "alert", "planned_at"), "planned_at"),
    ("Notices", f"Deliveries of what changed, the newest {NEWEST}.", DeliveryRow,
     ("id", "channel", "status", "tries", "message", "delivered_at"), "id"),
)  # fmt: skip


def show(store: Store, view: RunView) -> None:
    """Proof of every arm, samples without a score, and the tables of jobs."""
    st.html(markup.header(view, "Jobs and health"))
    explained = (
        "Measured, not asked for. weights: bytes of the format; resident: what this process holds for it. "
        "KL: of the next token against the baseline over a fixed text, per stage."
    )
    st.html(markup.title("What each stage held", explained))
    totals = [
        (arm, kept(store, (arm,), "totals", lambda arm=arm: queries.arm_totals(store, arm.id))) for arm in view.arms
    ]
    st.html(tables.arms_table(totals))
    _errors(store, view)
    _jobs(store)


def _errors(store: Store, view: RunView) -> None:
    held = {
        arm.id: total
        for arm, total in zip(view.arms, (view.baseline_held, *(c.held for c in view.candidates)), strict=True)
    }
    st.html(markup.title("Samples without a score", "An error is never a wrong answer: it is counted apart."))
    lines = []
    for arm in view.arms:
        failed = kept(store, (arm,), "failed samples", lambda arm=arm: reads_arms.failed_samples(store, arm))
        lines += [(arm.name, held[arm.id].samples, *found) for found in failed]
    if not lines:
        counted = sum(found.samples for found in held.values())
        st.caption(f"Every one of the {counted:,} samples of these arms has a score.")
        return
    columns = list(zip(*lines, strict=True))
    show_table(
        pd.DataFrame(
            {
                "arm": frames.text_column(columns[0]),
                "status": frames.text_column(columns[2]),
                "error class": frames.text_column(columns[3]),
                "samples": frames.number_column(columns[4]),
                "of n": frames.number_column(columns[1]),
                "one of the messages": frames.text_column(columns[5]),
            }
        )
    )


def _jobs(store: Store) -> None:
    any_shown = False
    for title, explained, table, columns, newest in _TABLES:
        found = reads_arms.rows_of_table(store, table, columns, NEWEST, newest)
        if not found:
            continue
        st.html(markup.title(title, explained))
        numbers = {"id", "attempt", "failures", "exit_code", "run_id", "tries"}
        show_table(
            pd.DataFrame(
                {
                    name: (frames.number_column if name in numbers else frames.text_column)(
                        [row[name] for row in found]
                    )
                    for name in columns
                }
            )
        )
        any_shown = True
    if not any_shown:
        st.html(markup.title("Jobs", "Nothing is scheduled in this database."))
        st.caption("`evalsvc scheduler --jobs jobs.yaml` plans jobs into it, and `evalsvc worker` runs them.")
