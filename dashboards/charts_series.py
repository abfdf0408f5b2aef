"""Charts along time, items and tokens: histories and power curves."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from evalsvc.dashboards.charts import FAIL, MARGIN, NOISE, QUIET
from evalsvc.dashboards.charts_axes import log_axis, tight_log_scale
from evalsvc.dashboards.text import visible_text
from evalsvc.history import Point

_HEIGHT = 420
CHANGED = alt.Tooltip("changed:N", title="changed since the run before")


def history_frame(points: Sequence[Point], words: dict[str, str]) -> pd.DataFrame:
    """One line a run that could be compared: time, drop and its interval in points, counts, word and change.

    Args:
        points: Of one arm, oldest first.
        words: By address the gate's word, where a gate decided.
    """
    columns = ["address", "began", "drop", "lower", "upper", "n", "lost", "gained", "verdict", "changed", "level"]
    lines = []
    for point in points:
        if point.drop is None or point.interval is None:
            continue
        change = point.change
        level = None if change is None else f"level {100 * change.before:.2f} to {100 * change.after:.2f} points"
        lines.append(
            {
                "address": visible_text(point.address, 80),
                "began": pd.Timestamp(point.created_at),
                "drop": 100 * point.drop,
                "lower": 100 * point.interval[0],
                "upper": 100 * point.interval[1],
                "n": point.n,
                "lost": point.lost,
                "gained": point.gained,
                "verdict": words.get(point.address, "not decided"),
                "changed": visible_text("; ".join(point.changed), 200),
                "level": level,
            }
        )
    return pd.DataFrame(lines, columns=columns)


def history(frame: pd.DataFrame, promotions: Sequence[tuple[str, str]] = ()) -> alt.LayerChart:
    """Drop over time with its 95 % band; heavy rules are change points, thin ones promotions, triangles deployments.

    Args:
        frame: What `history_frame` returned, at least one line.
        promotions: Time (ISO 8601) and name of each promotion.
    """
    dates = alt.Axis(format="%Y-%m-%d", tickCount=6, labelOverlap=True)
    x = alt.X("began:T", title="run began, UTC", scale=alt.Scale(type="utc"), axis=dates)
    drops = "drop in points (up is worse)"
    y = alt.Y("drop:Q", title=drops)
    tooltip = [
        alt.Tooltip("address:N", title="run and arm"),
        alt.Tooltip("began:T", format="%Y-%m-%d %H:%M"),
        alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
        alt.Tooltip("lower:Q", format=".2f", title="95 % lower"),
        alt.Tooltip("upper:Q", format=".2f", title="95 % upper"),
        alt.Tooltip("n:Q", title="items n"),
        alt.Tooltip("lost:Q", title="lost b"),
        alt.Tooltip("gained:Q", title="gained c"),
        alt.Tooltip("verdict:N"),
        CHANGED,
    ]
    base = alt.Chart(frame)
    word_colours = {"PASS": "#009e73", "REGRESSED": "#d55e00", "INCONCLUSIVE": "#e69f00", "INVALID": "#7a8594"}
    words = [word for word in (*word_colours, "not decided") if word in set(frame["verdict"])]
    shapes = {"PASS": "circle", "REGRESSED": "triangle-down", "INCONCLUSIVE": "diamond", "INVALID": "cross"}
    legend = alt.Legend(title="verdict", orient="bottom")
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=words, range=[word_colours.get(word, QUIET) for word in words]),
        legend=legend,
    )
    shape = alt.Shape(
        "verdict:N",
        scale=alt.Scale(domain=words, range=[shapes.get(word, "square") for word in words]),
        legend=legend,
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color=QUIET).encode(y="zero:Q")
    deployed = base.transform_filter("datum.changed != ''").mark_point(
        shape="triangle-up", filled=True, size=70, color=QUIET, opacity=1
    )
    changes = base.transform_filter("isValid(datum.level)").mark_rule(color=FAIL, strokeWidth=3, strokeDash=[6, 3])
    layers: list[alt.Chart] = [
        base.mark_area(color=NOISE, opacity=0.16).encode(x=x, y=alt.Y("lower:Q", title=drops), y2="upper:Q"),
        zero,
        base.mark_rule(color=NOISE, opacity=0.4).encode(x=x, y=alt.Y("lower:Q", title=drops), y2="upper:Q"),
        base.mark_line(color=NOISE, strokeWidth=1.5, opacity=0.7).encode(x=x, y=y),
        *([changes.encode(x=x, tooltip=["level:N", *tooltip])] if any(frame["level"].notna().tolist()) else []),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ]
    if any(frame["changed"].tolist()):
        foot = alt.YValue("height")
        layers.append(deployed.encode(x=x, y=foot, tooltip=[alt.Tooltip("address:N", title="run and arm"), CHANGED]))
    if promotions:
        known = pd.DataFrame(
            {
                "began": [pd.Timestamp(at) for at, _ in promotions],
                "name": [visible_text(f"@{name} promoted", 80) for _, name in promotions],
            }
        )
        layers.append(
            alt.Chart(known).mark_rule(color=MARGIN, strokeWidth=1.5).encode(x=x, tooltip=["name:N", "began:T"])
        )
    return alt.LayerChart(layer=layers, height=_HEIGHT, width="container")


def power(frame: pd.DataFrame, items: int, margin: float) -> alt.LayerChart:
    """What n items find and prove, over n; the margin as a line, the asked n as a rule.

    Args:
        frame: `items`, `points` and `what`, a line a value.
        items: The number of items asked about.
        margin: In points.
    """
    sizes, shown = [*frame["items"].tolist(), items], [*frame["points"].tolist(), margin]
    across, up = log_axis(sizes, form=",~r", inside=True), log_axis(shown, inside=True)
    x = alt.X("items:Q", title="items n (log)", scale=tight_log_scale(sizes), axis=across)
    y = alt.Y("points:Q", title="drop or margin, points (log)", scale=tight_log_scale(shown), axis=up)
    kinds = list(dict.fromkeys(frame["what"]))
    curve = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "what:N",
                scale=alt.Scale(domain=kinds, range=[NOISE, FAIL, "#009e73"][: len(kinds)]),
                legend=alt.Legend(
                    title=None, orient="bottom", columns=1, labelLimit=320, symbolType="stroke", symbolStrokeWidth=3
                ),
            ),
            strokeDash=alt.StrokeDash("what:N", scale=alt.Scale(domain=kinds), legend=None),
            tooltip=["what:N", "items:Q", alt.Tooltip("points:Q", format=".2f")],
        )
    )
    line = alt.Chart(pd.DataFrame({"margin": [margin]})).mark_rule(color=MARGIN, strokeDash=[6, 3], strokeWidth=2)
    asked = alt.Chart(pd.DataFrame({"items": [items]})).mark_rule(color=QUIET)
    layers = [curve, line.encode(y="margin:Q"), asked.encode(x="items:Q")]
    return alt.LayerChart(layer=layers, height=_HEIGHT, width="container")
