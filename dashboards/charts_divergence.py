"""Charts of next-token distributions: how far an arm's are from the baseline's, and where along a text."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from evalsvc.dashboards.charts import FAIL, MARGIN, NOISE, QUIET
from evalsvc.dashboards.charts_axes import WHOLE_WIDTH, log_axis

_ROW_HEIGHT, _AXIS_HEIGHT, _HEIGHT = 42, 90, 340
_KL = "KL to the baseline, nats (log; right is further)"
COLOURS = (NOISE, FAIL, "#009e73", MARGIN)  # of texts and stages, told apart by shape, too
SHAPES = ("circle", "square", "triangle-up", "diamond")


def quantiles(frame: pd.DataFrame) -> alt.LayerChart:
    """Mean, quantiles and largest KL of every arm and stage, on a log axis; what is unknown or 0 has no mark.

    Args:
        frame: `row` (arm and stage), `mean`, `median`, `p99`, `p999`, `largest` (nats), `tokens`, `text`.
    """
    rows = alt.Scale(type="band", domain=list(frame["row"]))
    y = alt.Y("row:N", scale=rows, title=None, axis=None, bandPosition=0.72)
    scale = alt.Scale(type="log")
    every = [value for field in _QUANTILES for value in frame[field].tolist()]

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=_KL, scale=scale, axis=log_axis(every))

    tooltip = [
        alt.Tooltip("row:N", title="arm and stage"),
        *(alt.Tooltip(f"{name}:Q", format=".3g", title=title) for name, title in _QUANTILES.items()),
        alt.Tooltip("tokens:Q", title="tokens n"),
    ]
    base = alt.Chart(frame)

    def known(*fields: str) -> alt.Chart:
        return base.transform_filter(" && ".join(f"datum.{field} > 0" for field in fields))

    stored = {field for field in _QUANTILES if any(value > 0 for value in frame[field].tolist() if value is not None)}
    middle = known("median").mark_point(filled=False, size=70, strokeWidth=2, color=NOISE)
    to_mean = known("median", "mean").mark_rule(color=NOISE, strokeWidth=2, opacity=0.45)
    layers = [
        known("mean", "largest")
        .mark_rule(color=NOISE, strokeWidth=2, opacity=0.45)
        .encode(y=y, x=x("mean"), x2="largest:Q"),
        *([to_mean.encode(y=y, x=x("median"), x2="mean:Q")] if "median" in stored else []),
        *([middle.encode(y=y, x=x("median"), tooltip=tooltip)] if "median" in stored else []),
        *(
            known(name)
            .mark_point(shape="stroke", angle=90, color=NOISE, strokeWidth=2.5, size=size)
            .encode(y=y, x=x(name), tooltip=tooltip)
            for name, size in (("p99", 40), ("p999", 130), ("largest", 280))
            if name in stored
        ),
        known("mean")
        .mark_point(filled=True, size=90, color=NOISE, opacity=1)
        .encode(y=y, x=x("mean"), tooltip=tooltip),
        base.mark_text(align="left", dy=-11, fontSize=12, color=QUIET, limit=WHOLE_WIDTH).encode(
            y=alt.Y("row:N", scale=rows, axis=None), x=alt.value(4), text="text:N"
        ),
    ]
    return alt.LayerChart(layer=layers, height=_ROW_HEIGHT * len(frame) + _AXIS_HEIGHT, width="container")


_QUANTILES = {
    "mean": "mean KL, nats",
    "median": "median",
    "p99": "99 % of tokens up to",
    "p999": "99.9 % of tokens up to",
    "largest": "largest",
}


def along(frame: pd.DataFrame, field: str, title: str, *, log: bool) -> alt.LayerChart:
    """A figure by the token's place in its text, a line a text and stage.

    Args:
        frame: `where`, `tokens at` (a range of places, in order), `tokens` and the figure.
        field: Column of the figure.
        title: Its name and unit.
        log: Whether its axis is logarithmic; then a 0 has no mark.
    """
    kinds = list(dict.fromkeys(frame["where"]))
    places: Sequence[str] = list(dict.fromkeys(frame.sort_values("start")["place"]))
    x = alt.X("place:O", title="token's place in its text", sort=places, axis=alt.Axis(labelAngle=-30))
    y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False))
    if log:
        y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(type="log"), axis=log_axis(frame[field].tolist()))
    colour = alt.Color(
        "where:N",
        scale=alt.Scale(domain=kinds, range=list(COLOURS[: len(kinds)])),
        legend=alt.Legend(title=None, orient="bottom", columns=2, labelLimit=200),
    )
    shape = alt.Shape("where:N", scale=alt.Scale(domain=kinds, range=list(SHAPES[: len(kinds)])), legend=None)
    tooltip = [
        alt.Tooltip("where:N"),
        alt.Tooltip("place:O", title="tokens"),
        alt.Tooltip(f"{field}:Q", format=".3g", title=title),
        alt.Tooltip("tokens:Q", title="tokens n"),
    ]
    base = alt.Chart(frame.loc[frame[field] > 0] if log else frame)
    layers = [
        base.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ]
    return alt.LayerChart(layer=layers, height=_HEIGHT, width="container")
