"""Page 7: what do we gain? Accuracy against one figure of serving at a time; the four are never mixed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from evalsvc.dashboards import charts_arms, frames, markup
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.rows import POOLED
from evalsvc.dashboards.selection import not_there, pick, pick_text
from evalsvc.dashboards.show import show_table
from evalsvc.serving.figures import CellFigures, Estimate, latest, rooms, served
from evalsvc.store.measurements import measurements
from evalsvc.store.records import Measurement
from evalsvc.store.session import Store

AT_MOST = "at most"


@dataclass(frozen=True)
class Figure:
    """One axis: its title with the unit, which way is better, and how it is read of a cell (None: of the capacity)."""

    title: str
    less_is_better: bool
    read: Callable[[CellFigures], Estimate | None] | None


FIGURES = {
    "speed": Figure("whole answer, median seconds", True, lambda cell: cell.times.get("e2e_s", {}).get(50)),
    "throughput": Figure("generated tokens a second, all requests", False, lambda cell: cell.generated_tokens_s),
    "capacity": Figure("tokens of keys and values that fit beside the weights of decode", False, None),
    "cost": Figure("price of a million tokens, prompts and answers", True, lambda cell: cell.cost_per_million_tokens),
}


def show(store: Store, view: RunView) -> None:
    """A scatter of the run's arms over the chosen figure, in the chosen cell of the grid."""
    st.html(markup.header(view, "Trade-off"))
    found = measurements(store, [arm.fingerprint for arm in view.arms])
    if not found:
        st.info(
            "Nothing was measured of how these arms serve. `evalsvc bench-serve FILE` measures speed, throughput and "
            "capacity of every arm of an experiment, with `--price-per-hour` the cost, too."
        )
        return
    lost = not_there("figure", FIGURES, "figure")
    left, middle, right = st.columns(3)
    with left:
        figure = pick("Figure", "figure", FIGURES, lambda one: one.title)
    cells = [cell for cell in served(found) if cell.status == "measured"]
    values: dict[str, Estimate] = {}
    if figure.read is None:
        values = _capacity(latest(found))
        about = "From the bytes of each plan's own formats, of the memory that was measured."
    else:
        lengths = sorted({cell.prompt_tokens for cell in cells})
        if not lengths:
            st.info("No cell of the grid could be measured; `evalsvc show RUN:ARM` says why of each.")
            return
        sizes = [str(n) for n in lengths]
        lost += not_there("prompt", sizes, "measured number of prompt tokens")
        with middle:
            length = int(pick_text("Prompt tokens", "prompt", sizes))
        at_length = [cell for cell in cells if cell.prompt_tokens == length]
        together = [*(str(n) for n in sorted({cell.concurrency for cell in at_length})), AT_MOST]
        lost += not_there("at_once", together, "measured number of requests at once")
        with right:
            at_once = pick_text("Requests at once", "at_once", together)
        chosen = _maximal(at_length) if at_once == AT_MOST else [c for c in at_length if str(c.concurrency) == at_once]
        values = {cell.fingerprint: value for cell in chosen if (value := figure.read(cell)) is not None}
        about = "Each arm at its own largest number of requests at once." if at_once == AT_MOST else "All arms alike."
    for sentence in lost:
        st.warning(sentence)
    frame = _frame(view, values)
    if frame.empty:
        st.info("No arm has both this figure and a drop: choose another cell, give a price, or let a gate decide.")
        return
    devices = sorted({m.device for m in found})
    if len(devices) > 1:
        st.warning("These figures are of several classes of devices, which are not compared: measure all on one.")
        return
    st.altair_chart(charts_arms.tradeoff(frame, figure.title, less_is_better=figure.less_is_better))
    st.html(
        markup.quiet(
            f"{about} Device: {devices[0]}. Drops: pooled, with the gate's bounds, {_sizes(frame)}. Filled: PASS and "
            "the baseline; hollow: anything else. Dashed: no other arm is better in both."
        )
    )
    number = st.column_config.NumberColumn
    titles = {"drop": "drop, points", "lower": "lower, points", "upper": "upper, points"}
    columns = {name: number(title, format="%.2f") for name, title in titles.items()}
    columns |= {"value": number(figure.title, format="%.4g"), "word": st.column_config.TextColumn("verdict")}
    show_table(frame.drop(columns=["low", "high"]), columns)


def _sizes(frame: pd.DataFrame) -> str:
    sizes = sorted({int(n) for n in frame["n"].dropna().tolist()})
    return "n " + " to ".join(f"{n:,}" for n in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "n unknown"


def _maximal(cells: Sequence[CellFigures]) -> list[CellFigures]:
    largest: dict[str, CellFigures] = {}
    for cell in cells:
        if cell.fingerprint not in largest or cell.concurrency > largest[cell.fingerprint].concurrency:
            largest[cell.fingerprint] = cell
    return list(largest.values())


def _capacity(found: Sequence[Measurement]) -> dict[str, Estimate]:
    return {
        m.fingerprint: Estimate(float(rooms(m)["decode"].tokens), None, None, 1)
        for m in found
        if m.kind == "capacity" and "decode" in m.figures
    }


def _frame(view: RunView, values: dict[str, Estimate]) -> pd.DataFrame:
    lines = []
    for candidate in (None, *view.candidates):
        arm = view.baseline if candidate is None else candidate.arm
        row = None if candidate is None else candidate.row(POOLED)
        value = values.get(arm.fingerprint)
        if value is None or (candidate is not None and (row is None or row.drop is None)):
            continue
        lines.append(
            {
                "arm": frames.cell(arm.name) + (" (baseline)" if candidate is None else ""),
                "value": value.mean,
                "low": value.low,
                "high": value.high,
                "drop": 0.0 if row is None else row.drop,
                "lower": None if row is None else row.lower,
                "upper": None if row is None else row.upper,
                "n": None if row is None else row.n,
                "word": "baseline" if candidate is None else candidate.word or "not decided",
            }
        )
    columns = ["arm", "value", "low", "high", "drop", "lower", "upper", "n", "word"]
    return pd.DataFrame(lines, columns=columns)
