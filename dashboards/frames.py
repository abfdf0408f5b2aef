"""Rows to tables of plain columns, each of one kind, so that every table renders and sorts."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from evalsvc.alternatives import Alternative
from evalsvc.dashboards.reads import Repeat
from evalsvc.dashboards.reads_flips import Shown
from evalsvc.dashboards.rows import VerdictRow
from evalsvc.dashboards.text import visible_text
from evalsvc.expected import Compared
from evalsvc.verdict.measure import measure_counts

CELL_CHARACTERS = 300


def verdict_frame(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """A decision's rows; drop, bounds and margin in points, empty where unknown."""
    return pd.DataFrame(
        {
            "row": text_column([row.full_label for row in rows]),
            "verdict": text_column(["INVALID: blind" if row.blind else row.word or "described" for row in rows]),
            "n": number_column([row.n for row in rows]),
            "lost b": number_column([row.lost for row in rows]),
            "gained c": number_column([row.gained for row in rows]),
            "drop": number_column([row.drop for row in rows]),
            "lower": number_column([row.lower for row in rows]),
            "upper": number_column([row.upper for row in rows]),
            "margin": number_column([row.margin for row in rows]),
            "p": number_column([row.p if row.p_adjusted is None else row.p_adjusted for row in rows]),
            "remark": text_column([row.remark for row in rows]),
            "factors met": text_column([", ".join(row.factors_met) for row in rows]),
            "level": text_column([row.level for row in rows]),
        }
    )


def verdict_columns() -> dict[str, Any]:
    """How the columns of `verdict_frame` are shown."""
    number = st.column_config.NumberColumn
    return {
        name: number("drop, points" if name == "drop" else name, format="%.2f", help=f"points: {text}")
        for name, text in (
            ("drop", "(b - c) / n"),
            ("lower", "one-sided lower bound of the drop"),
            ("upper", "one-sided upper bound of the drop"),
            ("margin", "drop that the policy accepts"),
        )
    } | {
        "row": st.column_config.TextColumn("row", width=210),
        "remark": st.column_config.TextColumn("remark", width=210),
        "p": number("p", format="%.3g", help="one-sided p of no drop; after Holm where the row carries a verdict"),
    }


def text_column(values: Sequence[object]) -> pd.Series:
    """Any values as text, every character visible and whole numbers with all their digits; None stays empty."""
    return pd.Series([None if value is None else cell(value) for value in values], dtype="string")


def number_column(values: Sequence[object]) -> pd.Series:
    """Numbers that sort as numbers; whatever is none (None, text, a list) stays empty, and is never 0."""
    return pd.Series([_number(value) for value in values], dtype="Float64")


def table(lines: Sequence[Sequence[object]], **columns: Callable[[Sequence[object]], pd.Series]) -> pd.DataFrame:
    """At least one line as a table: each column by name, a `text_column` or a `number_column`."""
    values = zip(*lines, strict=True)
    return pd.DataFrame({name: column(held) for (name, column), held in zip(columns.items(), values, strict=True)})


def cell(value: object) -> str:
    """One value as the text of a cell, cut where it is long."""
    return visible_text(value if isinstance(value, str) else repr(value), CELL_CHARACTERS)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value == value else None


def noise_interval(repeat: Repeat | None) -> tuple[float, float] | None:
    """95 % interval of the A/A's drop in points, by the measurement that verdicts use; None without a checked A/A."""
    if repeat is None or not repeat.checked or not repeat.checked["n"]:
        return None
    lost, gained, n = (int(repeat.checked[name]) for name in ("lost", "gained", "n"))
    found = measure_counts(lost, gained, n).interval
    return 100 * found[0], 100 * found[1]


def noise_items(repeat: Repeat | None) -> int:
    """Items of the A/A."""
    return int((repeat.checked or {}).get("n", 0)) if repeat is not None else 0


def two_by_two_columns() -> dict[str, Any]:
    """How the columns of `two_by_two` are shown: a task's name whole."""
    column = st.column_config
    return {"task": column.TextColumn("task", width=190), "p": column.NumberColumn("p", format="%.3g")}


def two_by_two(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """Items by right and wrong in both arms, a line a row that has counts, in the decision's order."""
    known = [row for row in rows if row.baseline_right is not None and row.n]
    right = [int(row.baseline_right or 0) for row in known]
    return pd.DataFrame(
        {
            "task": text_column([row.full_label for row in known]),
            "n": number_column([row.n for row in known]),
            "both right": number_column([r - row.lost for r, row in zip(right, known, strict=True)]),
            "lost b": number_column([row.lost for row in known]),
            "gained c": number_column([row.gained for row in known]),
            "both wrong": number_column([row.n - r - row.gained for r, row in zip(right, known, strict=True)]),
            "p": number_column([row.p for row in known]),
            "test": text_column([row.method for row in known]),
        }
    )


def score_frame(ours: Shown, theirs: Shown) -> pd.DataFrame:
    """Every metric of two samples side by side."""
    left, right = ({(s[0], s[1]): s for s in shown.scores} for shown in (ours, theirs))
    keys = list(dict.fromkeys((*left, *right)))
    sides = {"baseline": left, "candidate": right}
    columns: dict[str, Any] = {
        "metric": text_column([metric for metric, _ in keys]),
        "filter": text_column([name for _, name in keys]),
    }
    for name, side in sides.items():
        columns[name] = number_column([side[key][2] if key in side else None for key in keys])
        columns[f"{name}: error class"] = text_column([side[key][3] if key in side else None for key in keys])
    return pd.DataFrame(columns)


def alternatives_frame(alternatives: Sequence[Alternative], written: int | None) -> pd.DataFrame:
    """The likeliest tokens at one place, the one that was written marked."""
    texts = [a.text if a.text is None else json.dumps(a.text, ensure_ascii=False) for a in alternatives]
    return pd.DataFrame(
        {
            "written": text_column(["✓" if a.token == written else "" for a in alternatives]),
            "token": text_column(texts),
            "id": number_column([a.token for a in alternatives]),
            "probability": number_column([a.probability for a in alternatives]),
        }
    )


def field_frame(fields: Sequence[tuple[str, Any, Any]]) -> pd.DataFrame:
    """Fields of two JSON answers as text, and whether they are equal."""
    return pd.DataFrame(
        {
            "field": text_column([name for name, _, _ in fields]),
            "baseline": text_column([one for _, one, _ in fields]),
            "candidate": text_column([other for _, _, other in fields]),
            "equal": text_column(["✓" if repr(one) == repr(other) else "✗" for _, one, other in fields]),
        }
    )


def expected_frame(rows: Sequence[Compared], names: Sequence[str]) -> pd.DataFrame:
    """What is expected, then of each answer what it has there and whether that is right.

    Args:
        rows: As `evalsvc.expected.compared` returns them.
        names: Of the arms, in the order of the answers.
    """
    mark = {True: "✓", False: "✗", None: "?"}
    columns: dict[str, Any] = {
        "what": text_column([row.what for row in rows]),
        "expected": text_column([row.expected for row in rows]),
    }
    for place, name in enumerate(names):
        said = [f"{mark[row.right[place]]} {row.said[place] or ''}".strip() for row in rows]
        columns[f"{'baseline' if place == 0 and len(names) > 1 else 'candidate'}: {cell(name)}"] = text_column(said)
    return pd.DataFrame(columns)
