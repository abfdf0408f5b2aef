"""Page 10: what so many items can show, at the discordance that was seen."""

from math import ceil, isfinite

import numpy as np
import pandas as pd
import streamlit as st

from evalsvc.dashboards import charts_series, markup
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.reads import Candidate, RunView
from evalsvc.dashboards.rows import POOLED
from evalsvc.planning import POWER, Pilot, plan_items
from evalsvc.policy import typed_policy
from evalsvc.store import queries
from evalsvc.store.session import Store
from evalsvc.verdict.paired import smallest_provable_margin
from evalsvc.verdict.power import detectable_drop, provable_margin

LARGEST_ITEMS = 200_000


def show(store: Store, view: RunView) -> None:
    """Items, margin and discordance to ask about; what they show, and the curve over items."""
    st.html(markup.header(view, "Power"))
    row = None if view.chosen is None else view.chosen.row(POOLED)
    seen = None if row is None or not row.n else 100 * (row.lost + row.gained) / row.n
    columns = st.columns(3)
    items = int(columns[0].number_input("Items n", 1, LARGEST_ITEMS, row.n if row and row.n else 1000, step=100))
    decided_by = float(row.margin) if row and row.margin else 1.0
    margin = float(columns[1].number_input("Margin, points", 0.01, 100.0, max(0.01, decided_by), step=0.5))
    discordance = float(
        columns[2].number_input(
            "Discordance, points",
            0.01,
            100.0,
            max(0.01, round(seen, 2)) if seen else 5.0,
            step=0.5,
            help="Share of items that flip either way.",
        )
    )
    if seen is None:
        st.info("No gate has decided the chosen candidate, so no discordance was seen: 5 points is an example.")
    elif not seen:
        st.info("No item of the chosen candidate flipped: give the discordance that you expect.")
    pilot = Pilot(discordance / 100, _seconds(store, view.chosen), _source(view, row))
    policy = typed_policy(name="power", margin_points=margin, alpha=0.05)
    plan = plan_items(items, pilot, policy)
    st.code("\n".join(plan.lines()), language=None, wrap_lines=True)
    sizes = sorted({items, *np.unique(np.geomspace(50, max(50_000, 4 * items), 24).astype(int)).tolist()})
    frame = _curves(sizes, pilot.discordance, policy.alpha)
    st.altair_chart(charts_series.power(frame, items, margin))
    st.html(
        markup.quiet(
            "For items that flip independently of each other, 80 % power, one-sided 5 %; over n from "
            f"{sizes[0]:,} to {sizes[-1]:,} items. Dashed: the margin; upright: the n asked about."
        )
    )
    needed = plan.items_to_pass
    if needed is not None and isfinite(needed) and ceil(needed) > items:
        st.caption(f"{ceil(needed) - items:,} more items would prove the margin in 4 of 5 runs when nothing is wrong.")


def _seconds(store: Store, chosen: Candidate | None) -> float | None:
    if chosen is None:
        return None
    totals = kept(store, (chosen.arm,), "totals", lambda: queries.arm_totals(store, chosen.arm.id))
    return totals.seconds / totals.samples if totals.seconds and totals.samples else None


def _source(view: RunView, row: object) -> str:
    if view.chosen is None or row is None:
        return ""
    return f"as of {view.chosen.arm.address} against {view.baseline.address}"


def _curves(sizes: list[int], discordance: float, alpha: float) -> pd.DataFrame:
    curves = {
        "drop found in 4 of 5 runs": lambda n: detectable_drop(n, discordance, alpha=alpha, power=POWER),
        "margin proven, gained as lost": lambda n: provable_margin(n, discordance, alpha=alpha),
        "margin proven, no item flips": lambda n: smallest_provable_margin(n, alpha),
    }
    lines = [
        {"items": n, "points": 100 * value, "what": what}
        for what, curve in curves.items()
        for n in sizes
        if isfinite(value := curve(n)) and 0 < value < 1
    ]
    return pd.DataFrame(lines, columns=["items", "points", "what"])
