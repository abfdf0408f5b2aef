"""Data to charts. Pure: the same rows always give the same specification."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from evalsvc.dashboards.rows import FAMILY, VerdictRow
from evalsvc.dashboards.text import p_value, points, visible_text

DESCRIBED, BLIND = "described", "blind"
# word -> (colour, shape): told apart without colour too.
MARKS = {
    "PASS": ("#009e73", "circle"),
    "REGRESSED": ("#d55e00", "triangle-down"),
    "INCONCLUSIVE": ("#e69f00", "diamond"),
    "INVALID": ("#7a8594", "cross"),
    BLIND: ("#9aa4b0", "triangle-right"),
    DESCRIBED: ("#8792a0", "square"),
}
MARGIN, FAIL, NOISE = "#6f5fd6", "#d55e00", "#0072b2"  # seen on light and on dark pages
QUIET = "#717c8b"  # of small words: contrast 4.2 and more to light and to dark pages
_ROW_HEIGHT = 42
_AXIS_HEIGHT = 76  # the page fits axis and title into the height that is asked for
_LABEL_UP, _MARK_AT = -11, 0.72  # a row's name stands above its marks, so that a phone has room for both
_LABEL_TO = 0.44  # share of a row that its name and counts have for themselves
_NAME_PIXELS = 215  # a longer name is cut; the table has it whole
_INDENT = "\u2003"


def forest_frame(rows: Iterable[VerdictRow]) -> pd.DataFrame:
    """One line a row that has a drop: label, drop, bounds and margin in points, and the word that colours it."""
    lines = []
    seen: dict[str, int] = {}
    for row in rows:
        if row.drop is None:
            continue
        label = visible_text(row.full_label, None)
        seen[label] = seen.get(label, 0) + 1
        lines.append(
            {
                "row": label if seen[label] == 1 else f"{label} ({seen[label]})",
                "name": visible_text((_INDENT if row.level == FAMILY else "") + row.label, 80),
                "counts": f"n {row.n:,} · b {row.lost:,} · c {row.gained:,}",
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
    columns = ["row", "name", "counts", "drop", "lower", "upper", "margin", "verdict", "b", "c", "n", "p", "text"]
    return pd.DataFrame(lines, columns=columns)


def points_domain(frames: Sequence[pd.DataFrame], noise: tuple[float, float] | None = None) -> tuple[float, float]:
    """The range in points that shows every bound, every margin, the noise and zero, with a little air."""
    values = [0.0, *(noise or ())]
    for frame in frames:
        for column in ("drop", "lower", "upper", "margin"):
            values += [float(value) for value in frame[column].dropna()]
    low, high = min(values), max(values)
    air = max(1.0, 0.04 * (high - low))
    return low - air, high + air


def forest(
    frame: pd.DataFrame, domain: tuple[float, float], noise: tuple[float, float] | None = None
) -> alt.LayerChart:
    """Drop with its interval a row, zero, the row's margin with what lies beyond it shaded.

    Args:
        frame: What `forest_frame` returned, at least one line.
        domain: Range of the axis in points.
        noise: Interval of the drop of the baseline against itself, in points; None without an A/A.
    """
    frame = frame.assign(end=domain[1], zero=0.0)
    if noise is not None:
        frame = frame.assign(noise_from=noise[0], noise_to=noise[1])
    scale = alt.Scale(domain=list(domain), nice=False, zero=False, clamp=True)
    colour, shape = _marks(frame)
    rows = alt.Scale(type="band", domain=list(frame["row"]), paddingInner=0.06, paddingOuter=0)
    below = {  # a row's part under its name
        "y": alt.Y("row:N", scale=rows, title=None, axis=None, bandPosition=_LABEL_TO),
        "y2": alt.Y2("row:N", bandPosition=1),
    }
    y = alt.Y("row:N", scale=rows, title=None, axis=None, bandPosition=_MARK_AT)
    named = alt.Y("row:N", scale=rows, axis=None, bandPosition=0.5)
    x = alt.X("drop:Q", scale=scale, axis=alt.Axis(title="drop in points (right is worse)", format="~r", tickCount=8))
    tooltip = _forest_tooltip()
    base = alt.Chart(frame)
    with_margin = base.transform_filter("isValid(datum.margin)")
    margin = with_margin.mark_rule(strokeWidth=2.5, color=MARGIN)
    beyond = with_margin.mark_rect(color=FAIL, opacity=0.13)
    judged = any(frame["margin"].notna().tolist())
    word: dict[str, Any] = {"baseline": "middle", "dy": _LABEL_UP, "fontSize": 12, "color": QUIET}
    layers = [
        *([_noise_band(base, scale, below)] if noise is not None else []),
        *([beyond.encode(**below, x=alt.X("margin:Q", scale=scale), x2="end:Q")] if judged else []),
        base.mark_rule(color=QUIET, strokeWidth=1.5).encode(**below, x=alt.X("zero:Q", scale=scale)),
        base.mark_rule(strokeWidth=2.5, strokeCap="round").encode(
            y=y, x=alt.X("lower:Q", scale=scale), x2="upper:Q", color=colour, tooltip=tooltip
        ),
        *([margin.encode(**below, x=alt.X("margin:Q", scale=scale), tooltip=tooltip)] if judged else []),
        base.mark_point(filled=True, size=110, opacity=1).encode(y=y, x=x, color=colour, shape=shape, tooltip=tooltip),
        *_names(base, frame, named, word),
        base.mark_text(**word, align="right").encode(y=named, x=alt.value("width"), text="counts:N"),
    ]
    height = _ROW_HEIGHT * len(frame) + _AXIS_HEIGHT
    return alt.LayerChart(layer=layers, height=height, width="container").configure_view(stroke=None)


def _names(base: alt.Chart, frame: pd.DataFrame, named: alt.Y, word: dict[str, Any]) -> list[alt.Chart]:
    """Names of rows, those of families further in; a browser draws no space before a text."""
    layers = []
    for inner, x in ((False, 4), (True, 20)):
        if any(name.startswith(_INDENT) == inner for name in frame["name"]):
            some = base.transform_filter(f"(indexof(datum.name, '{_INDENT}') == 0) == {str(inner).lower()}")
            text = some.mark_text(**word, align="left", limit=_NAME_PIXELS)
            layers.append(text.encode(y=named, x=alt.value(x), text="name:N"))
    return layers


def _noise_band(base: alt.Chart, scale: alt.Scale, below: dict[str, Any]) -> alt.Chart:
    tooltip = [
        alt.Tooltip("noise_from:Q", format=".2f", title="A/A, baseline against itself: lower, points"),
        alt.Tooltip("noise_to:Q", format=".2f", title="upper, points"),
    ]
    return base.mark_rect(color=NOISE, opacity=0.14).encode(
        **below, x=alt.X("noise_from:Q", scale=scale), x2="noise_to:Q", tooltip=tooltip
    )


def _marks(frame: pd.DataFrame) -> tuple[alt.Color, alt.Shape]:
    words = [word for word in MARKS if word in set(frame["verdict"])]
    colours, shapes = ([MARKS[word][part] for word in words] for part in (0, 1))
    return (
        alt.Color("verdict:N", scale=alt.Scale(domain=words, range=colours), legend=None),
        alt.Shape("verdict:N", scale=alt.Scale(domain=words, range=shapes), legend=None),
    )


def _forest_tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("row:N", title="row"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
        alt.Tooltip("lower:Q", format=".2f", title="lower bound, points"),
        alt.Tooltip("upper:Q", format=".2f", title="upper bound, points"),
        alt.Tooltip("margin:Q", format=".2f", title="margin, points"),
        alt.Tooltip("b:Q", title="lost b"),
        alt.Tooltip("c:Q", title="gained c"),
        alt.Tooltip("n:Q", title="items n"),
        alt.Tooltip("p:N", title="p"),
    ]
