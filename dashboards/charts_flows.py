"""Flipped items from arm to arm, as bands between stacks of right and wrong: a Sankey diagram out of areas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import pandas as pd

from evalsvc.dashboards.charts import FAIL, QUIET

RIGHT, WRONG = "right", "wrong"
COLOURS = {RIGHT: "#009e73", WRONG: FAIL}
_STEPS = 13  # points of a band's edge
_STACK = 0.08  # half the width of a stack, of the distance between two
_HEIGHT = 340


def states(baseline: str, flips: Mapping[str, Mapping[Any, bool]]) -> tuple[list[str], dict[tuple[bool, ...], int]]:
    """How items that any arm flips go through the arms.

    Args:
        baseline: Its name.
        flips: By arm the items that it flips, each with whether the baseline has it right.

    Returns:
        The columns, baseline first, and how many items have each sequence of right (True) and wrong over them.
    """
    columns = [baseline, *flips]
    right = {item: was for found in flips.values() for item, was in found.items()}
    paths = Counter((was, *(was != (item in found) for found in flips.values())) for item, was in right.items())
    return columns, dict(paths)


def stacks(columns: Sequence[str], paths: Mapping[tuple[bool, ...], int]) -> pd.DataFrame:
    """One line a column and state: `x`, `arm`, `state`, `items`, and its share of the height, `low` to `high`."""
    total = sum(paths.values())
    lines = []
    for place, name in enumerate(columns):
        right = sum(count for path, count in paths.items() if path[place])
        for state, low, high in ((RIGHT, 0, right), (WRONG, right, total)):
            if high > low:
                share = {"low": low / total, "high": high / total}
                lines.append({"x": place, "arm": name, "state": state, "items": high - low, **share})
    return pd.DataFrame(lines, columns=["x", "arm", "state", "items", "low", "high"])


def bands(columns: Sequence[str], paths: Mapping[tuple[bool, ...], int]) -> pd.DataFrame:
    """Points of each band between neighbours: `band`, `about`, `x`, `low`, `high`, `state` (where it ends), `items`."""
    total = sum(paths.values())
    lines = []
    for place, (left, right) in enumerate(pairwise(columns)):
        moved = Counter[tuple[bool, bool]]()
        for path, count in paths.items():
            moved[path[place], path[place + 1]] += count
        starts, ends = (_offsets(moved, by) for by in (0, 1))
        for (one, other), count in moved.items():
            about = f"{left}: {RIGHT if one else WRONG}, {right}: {RIGHT if other else WRONG}"
            for step in range(_STEPS):
                t = step / (_STEPS - 1)
                low = starts[one, other] + (ends[one, other] - starts[one, other]) * t * t * (3 - 2 * t)
                lines.append(
                    {
                        "band": f"{place}: {about}",
                        "about": about,
                        "x": place + _STACK + t * (1 - 2 * _STACK),
                        "low": low / total,
                        "high": (low + count) / total,
                        "state": RIGHT if other else WRONG,
                        "items": count,
                    }
                )
    return pd.DataFrame(lines, columns=["band", "about", "x", "low", "high", "state", "items"])


def _offsets(moved: Mapping[tuple[bool, bool], int], by: int) -> dict[tuple[bool, bool], int]:
    """Where each band begins in a column's stacks, right ones first, sorted by this end and then by the other."""
    at, found = 0, {}
    for key in sorted(moved, key=lambda key: (not key[by], not key[1 - by])):
        found[key] = at
        at += moved[key]
    return found


def flows(columns: Sequence[str], paths: Mapping[tuple[bool, ...], int]) -> alt.LayerChart:
    """The bands, and the stacks with how many items each holds.

    Args:
        columns: As `states` returns them, three or more.
        paths: As `states` returns them, not empty.
    """
    blocks, moving = stacks(columns, paths), bands(columns, paths)
    middle = (blocks["low"] + blocks["high"]) / 2
    blocks = blocks.assign(left=blocks["x"] - _STACK, right=blocks["x"] + _STACK, middle=middle)
    across = alt.Scale(domain=[-0.35, len(columns) - 0.65], nice=False)
    x = alt.X("x:Q", title=None, scale=across, axis=None)
    height = alt.Scale(domain=[1.0, -0.3], nice=False)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=None, axis=None, scale=height)

    colour = alt.Color(
        "state:N",
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
        legend=alt.Legend(title="item is", orient="bottom"),
    )
    base = alt.Chart(blocks)
    heads = pd.DataFrame({"x": range(len(columns)), "arm": columns, "top": [-0.04] * len(columns)})
    layers = [
        alt.Chart(moving)
        .mark_area(opacity=0.35)
        .encode(x=x, y=y("low"), y2="high:Q", detail="band:N", color=colour, tooltip=["about:N", "items:Q"]),
        base.mark_rect().encode(
            x=alt.X("left:Q", scale=across, axis=None),
            x2="right:Q",
            y=y("low"),
            y2="high:Q",
            color=colour,
            tooltip=["arm:N", "state:N", "items:Q"],
        ),
        base.mark_text(align="left", dx=4, fontSize=12, color=QUIET).encode(
            x=alt.X("right:Q", scale=across, axis=None), y=y("middle"), text="items:Q"
        ),
        alt.Chart(heads)
        .mark_text(fontSize=12, color=QUIET, limit=110, angle=325, align="left", baseline="middle")
        .encode(x=x, y=y("top"), text="arm:N"),
    ]
    return alt.LayerChart(layer=layers, height=_HEIGHT, width="container").configure_view(stroke=None)
