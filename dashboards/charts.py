"""Data to charts. Pure: the same rows always give the same specification."""

from collections.abc import Iterable, Sequence

import altair as alt
import pandas as pd

from evalsvc.dashboards.rows import FAMILY, VerdictRow
from evalsvc.dashboards.text import p_value, points, visible_text

DESCRIBED, BLIND = "described", "blind"
# word -> (colour, shape): told apart without colour too.
MARKS = {
    "PASS": ("#1b7f4b", "circle"),
    "REGRESSED": ("#c02626", "triangle-down"),
    "INCONCLUSIVE": ("#c07d00", "diamond"),
    "INVALID": ("#5b6675", "cross"),
    BLIND: ("#9aa4b0", "square"),
    DESCRIBED: ("#7d8896", "stroke"),
}
_ROW_HEIGHT = 28
_AXIS_HEIGHT = 76  # the page fits axis and title into the height that is asked for
_INDENT = "\u2003"


def forest_frame(rows: Iterable[VerdictRow]) -> pd.DataFrame:
    """One line a row that has a drop: label, drop, bounds and margin in points, and the word that colours it."""
    lines = []
    seen: dict[str, int] = {}
    for row in rows:
        if row.drop is None:
            continue
        label = visible_text((_INDENT if row.level == FAMILY else "") + row.label, 80)
        seen[label] = seen.get(label, 0) + 1
        lines.append(
            {
                "row": label if seen[label] == 1 else f"{label} ({seen[label]})",
                "drop": row.drop,
                "lower": row.lower,
                "upper": row.upper,
                "margin": None if row.blind else row.margin,
                "verdict": BLIND if row.blind else row.word or DESCRIBED,
                "b": row.lost,
                "c": row.gained,
                "n": row.n,
                "p": p_value(row.p if row.p_adjusted is None else row.p_adjusted),
                "text": f"{points(row.drop, signed=True)}  [{points(row.lower)}, {points(row.upper)}]",
            }
        )
    columns = ["row", "drop", "lower", "upper", "margin", "verdict", "b", "c", "n", "p", "text"]
    return pd.DataFrame(lines, columns=columns)


def points_domain(frames: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """The range in points that shows every bound, every margin and zero, with a little air."""
    values = [0.0]
    for frame in frames:
        for column in ("drop", "lower", "upper", "margin"):
            values += [float(value) for value in frame[column].dropna()]
    low, high = min(values), max(values)
    air = max(1.0, 0.04 * (high - low))
    return low - air, high + air


def forest(frame: pd.DataFrame, domain: tuple[float, float]) -> alt.LayerChart:
    """Drop with its interval a row, zero as a thin line, the margin as a heavy dashed mark a row.

    Args:
        frame: What `forest_frame` returned, at least one line.
        domain: Range of the axis in points.
    """
    words = [word for word in MARKS if word in set(frame["verdict"])]
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=words, range=[MARKS[word][0] for word in words]),
        legend=None,
    )
    shape = alt.Shape(
        "verdict:N",
        scale=alt.Scale(domain=words, range=[MARKS[word][1] for word in words]),
        legend=None,
    )
    y = alt.Y("row:N", sort=list(frame["row"]), title=None, axis=_row_axis())
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    x = alt.X("drop:Q", scale=scale, axis=alt.Axis(title="drop in points", grid=True, format="~r", tickCount=12))
    tooltip = [
        alt.Tooltip("row:N", title="row"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
        alt.Tooltip("lower:Q", format=".2f", title="lower bound"),
        alt.Tooltip("upper:Q", format=".2f", title="upper bound"),
        alt.Tooltip("margin:Q", format=".2f"),
        alt.Tooltip("b:Q", title="lost b"),
        alt.Tooltip("c:Q", title="gained c"),
        alt.Tooltip("n:Q", title="items n"),
        alt.Tooltip("p:N", title="p"),
    ]
    base = alt.Chart(frame)
    zero = alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color="#9aa4b0", strokeWidth=1).encode(x="zero:Q")
    interval = base.mark_rule(strokeWidth=2.5, strokeCap="round").encode(
        y=y, x=alt.X("lower:Q", scale=scale), x2="upper:Q", color=colour, tooltip=tooltip
    )
    point = base.mark_point(filled=True, size=110, opacity=1).encode(
        y=y, x=x, color=colour, shape=shape, tooltip=tooltip
    )
    margin = (
        base.transform_filter("isValid(datum.margin)")
        .mark_tick(thickness=2, size=_ROW_HEIGHT - 6, color="#1c2430")
        .encode(y=y, x=alt.X("margin:Q", scale=scale), tooltip=tooltip)
    )
    number = base.mark_text(align="left", dx=14, fontSize=11, color="#5b6675").encode(
        y=y, x=alt.value("width"), text="text:N"
    )
    chart = alt.layer(zero, interval, margin, point, number)
    return alt.LayerChart(layer=chart.layer, height=_ROW_HEIGHT * len(frame) + _AXIS_HEIGHT).configure_view(stroke=None)


def _row_axis() -> alt.Axis:
    return alt.Axis(
        labelLimit=260, labelFontSize=12, labelPadding=10, ticks=False, domain=False, minExtent=150, labelFlush=False
    )
