"""Charts of cells and shares: what dropped where, and how wrong answers are wrong."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from evalsvc.dashboards.charts import NOISE, QUIET
from evalsvc.dashboards.reads import Candidate
from evalsvc.dashboards.rows import FAMILY
from evalsvc.dashboards.text import points, visible_text

SMALLEST_CELL = 20  # items; a drop of fewer is noise to look at
_CELL_HEIGHT, _AXIS_HEIGHT = 30, 220  # the page fits axis, titles and legend into the height


def _ends(characters: int) -> str:
    """Both ends of a long name, so that names which begin alike stay apart; the tooltip has all of it."""
    head, tail = characters // 2, characters - characters // 2 - 1
    cut = f"slice(datum.label, 0, {head}) + '…' + slice(datum.label, -{tail})"
    return f"length(datum.label) > {characters} ? {cut} : datum.label"


def _names(characters: int) -> alt.Axis:
    """An axis of names beside the middle of their rows."""
    return alt.Axis(labelLimit=240, labelFlush=False, labelExpr=_ends(characters))


def heat_frame(candidates: Sequence[Candidate]) -> pd.DataFrame:
    """One line a candidate and family that the gate described: drop in points, n, and what stands in the cell."""
    lines = []
    for candidate in candidates:
        for row in candidate.rows:
            if row.level != FAMILY or row.drop is None:
                continue
            small = row.n < SMALLEST_CELL
            lines.append(
                {
                    "arm": visible_text(candidate.arm.name, None),
                    "cell": visible_text(f"{row.suite} · {row.label}", None),
                    "drop": None if small or row.blind else row.drop,
                    "n": row.n,
                    "b": row.lost,
                    "c": row.gained,
                    "text": f"n {row.n}" if small else "blind" if row.blind else points(row.drop, signed=True),
                }
            )
    return pd.DataFrame(lines, columns=["arm", "cell", "drop", "n", "b", "c", "text"])


def heat_map(frame: pd.DataFrame) -> alt.LayerChart:
    """Families by candidates, coloured from a gain (blue) over 0 to a drop (orange); small and blind cells blank."""
    largest = max([5.0, *(abs(float(drop)) for drop in frame["drop"].dropna().tolist())])
    base = alt.Chart(frame).encode(
        x=alt.X(
            "arm:N",
            title="candidate",
            sort=None,
            axis=alt.Axis(labelAngle=-40, orient="bottom", labelLimit=110, labelOverlap=False, labelExpr=_ends(20)),
        ),
        y=alt.Y("cell:N", title=None, sort=None, axis=_names(36)),
        tooltip=[
            alt.Tooltip("arm:N", title="candidate"),
            alt.Tooltip("cell:N", title="suite and family"),
            alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
            alt.Tooltip("n:Q", title="items n"),
            alt.Tooltip("b:Q", title="lost b"),
            alt.Tooltip("c:Q", title="gained c"),
        ],
    )
    colour = alt.Color(
        "drop:Q",
        scale=alt.Scale(domain=[-largest, 0, largest], range=["#2166ac", "#f3f1ec", "#d55e00"], interpolate="lab"),
        legend=alt.Legend(title="drop, points", orient="bottom", gradientLength=140),
    )
    cells = base.transform_filter("isValid(datum.drop)").mark_rect(cornerRadius=3).encode(color=colour)
    ink = alt.condition("isValid(datum.drop)", alt.value("#1c2430"), alt.value(QUIET))
    deepest = -0.6 * largest  # white is read on deep blue, dark ink on orange
    deep = f"isValid(datum.drop) && datum.drop < {deepest:g}"
    gains = base.transform_filter(deep).mark_text(fontSize=11, color="#ffffff").encode(text="text:N")
    rows = len(set(frame["cell"]))
    layers = [
        cells,
        base.transform_filter(f"!({deep})").mark_text(fontSize=11).encode(text="text:N", color=ink),
        *([gains] if any(float(drop) < deepest for drop in frame["drop"].dropna().tolist()) else []),
    ]
    return alt.LayerChart(layer=layers, height=_CELL_HEIGHT * rows + _AXIS_HEIGHT, width="container")


def taxonomy(frame: pd.DataFrame, arms: Sequence[str]) -> alt.Chart:
    """Shares of an arm's answers by error class, baseline and candidate side by side.

    Args:
        frame: `suite`, `error`, `arm`, `count`, `n` and `share` (in percent of the arm's scored answers of the suite).
        arms: Names of baseline and candidate, each with its colour also where the other has no error.
    """
    rows = frame[["suite", "error"]].drop_duplicates()
    height = 34 * len(rows) + _AXIS_HEIGHT
    return (
        alt.Chart(frame.assign(row=frame["suite"] + " · " + frame["error"]))
        .mark_bar()
        .encode(
            y=alt.Y("row:N", title=None, sort=None, axis=_names(36)),
            yOffset=alt.YOffset("arm:N", scale=alt.Scale(domain=arms)),
            x=alt.X("share:Q", title="share of scored answers, %"),
            color=alt.Color(
                "arm:N",
                scale=alt.Scale(domain=arms, range=[QUIET, NOISE]),
                legend=alt.Legend(title=None, orient="bottom", labelLimit=240),
            ),
            tooltip=[
                alt.Tooltip("arm:N"),
                alt.Tooltip("suite:N"),
                alt.Tooltip("error:N", title="error class"),
                alt.Tooltip("count:Q", title="answers"),
                alt.Tooltip("n:Q", title="of n"),
                alt.Tooltip("share:Q", format=".2f", title="share, %"),
            ],
        )
        .properties(height=height, width="container")
    )
