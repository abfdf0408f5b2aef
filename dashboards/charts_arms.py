"""Charts of whole arms: what a plan costs in accuracy and gives in speed, and which change did it.

A layer that would have no mark is left out: an empty group of marks has nothing that a screen reader could say.
"""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from evalsvc.dashboards.charts import MARKS, NOISE, QUIET
from evalsvc.dashboards.charts_axes import WHOLE_WIDTH
from evalsvc.dashboards.text import visible_text
from evalsvc.verdict.attribution import Effect

_HEIGHT, _ROW_HEIGHT, _AXIS_HEIGHT = 460, 42, 90
_NAME_TO = 0.44  # share of a row that its name has for itself


def pareto(frame: pd.DataFrame, *, less_is_better: bool) -> pd.DataFrame:
    """The lines that no other is at least as good as in both, and better in one. Drop: less is better."""
    sign = 1.0 if less_is_better else -1.0
    gain, drop = sign * frame["value"].to_numpy(float), frame["drop"].to_numpy(float)
    beaten = [
        bool(np.any((gain <= g) & (drop <= d) & ((gain < g) | (drop < d)))) for g, d in zip(gain, drop, strict=True)
    ]
    return frame.loc[~np.array(beaten, dtype=bool)].sort_values(by="value")


def tradeoff(frame: pd.DataFrame, title: str, *, less_is_better: bool) -> alt.LayerChart:
    """Drop against one serving figure; plans that are not PASS hollow, the Pareto front as a step.

    Args:
        frame: `arm`, `value`, `low`, `high` (figure and its interval), `drop`, `lower`, `upper` (points), `n`, `word`.
        title: The figure with its unit.
        less_is_better: Of the figure.
    """
    better = "left" if less_is_better else "right"
    figure = f"{title} ({better} is better)"
    x = alt.X("value:Q", title=figure, scale=alt.Scale(zero=False, padding=24))
    drops = "drop in points (down is better)"
    y = alt.Y("drop:Q", title=drops)
    words = [word for word in (*MARKS, "baseline", "not decided") if word in set(frame["word"])]
    colours = [MARKS[word][0] if word in MARKS else QUIET for word in words]
    shapes = [MARKS[word][1] if word in MARKS else "square" for word in words]
    legend = alt.Legend(title="verdict", orient="bottom", symbolOpacity=1)
    colour = alt.Color("word:N", scale=alt.Scale(domain=words, range=colours), legend=legend)
    shape = alt.Shape("word:N", scale=alt.Scale(domain=words, range=shapes), legend=legend)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("word:N", title="verdict"),
        alt.Tooltip("value:Q", format=".4g", title=title),
        alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
        alt.Tooltip("n:Q", title="items n"),
    ]
    base = alt.Chart(frame)
    proven = "datum.word == 'PASS' || datum.word == 'baseline'"
    solid = [word in ("PASS", "baseline") for word in frame["word"]]
    around = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(opacity=0.6)
        .encode(x=alt.X("low:Q", title=figure), x2="high:Q", y=y, color=colour)
    )
    filled = (
        base.transform_filter(proven)
        .mark_point(filled=True, size=130, opacity=1)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    )
    hollow = (
        base.transform_filter(f"!({proven})")
        .mark_point(filled=False, size=130, strokeWidth=2.5)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    )
    front = alt.Chart(pareto(frame, less_is_better=less_is_better))
    layers = [
        front.mark_line(color=QUIET, strokeDash=[5, 4]).encode(x=x, y=y),
        base.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("lower:Q", title=drops), y2="upper:Q", color=colour),
        *([around] if any(frame["low"].notna().tolist()) else []),
        *([filled] if any(solid) else []),
        *([hollow] if not all(solid) else []),
        *_names(frame, x, y),
    ]
    return alt.LayerChart(layer=layers, height=_HEIGHT, width="container")


def _names(frame: pd.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Names of candidates above their marks, towards the middle of the chart; the baseline's below its own."""
    middle = (frame["value"].min() + frame["value"].max()) / 2
    candidate, right = frame["word"] != "baseline", frame["value"] > middle
    places = (
        (frame.loc[~candidate], {"align": "center", "dy": 16}),
        (frame.loc[candidate & ~right], {"align": "left", "dx": 9, "dy": -9}),
        (frame.loc[candidate & right], {"align": "right", "dx": -9, "dy": -9}),
    )
    return [
        alt.Chart(some).mark_text(**place, fontSize=11, color=QUIET).encode(x=x, y=y, text="arm:N")
        for some, place in places
        if len(some)
    ]


def effect_name(effect: Effect) -> str:
    """The change, or the two whose interaction it is."""
    return visible_text(" with ".join(f"{factor}={fmt}" for factor, fmt in effect.changes), 120)


def effects_frame(effects: Sequence[Effect], suite: str = "") -> pd.DataFrame:
    """One line an effect that the arms can tell, in points; an end that nothing bounds is empty.

    Args:
        effects: Of a run.
        suite: Whose items they are read from; empty for all suites pooled.
    """
    inside = f"{suite} · " if suite else ""
    known = [effect for effect in effects if effect.drop is not None]
    bound = [[None if e is None or not np.isfinite(e) else 100 * e for e in (k.lower, k.upper)] for k in known]
    return pd.DataFrame(
        {
            "suite": [suite] * len(known),
            "change": [effect_name(effect) for effect in known],
            "kind": ["interaction" if len(effect.changes) == 2 else "effect" for effect in known],
            "drop": [100 * (effect.drop or 0.0) for effect in known],
            "lower": [low for low, _ in bound],
            "upper": [high for _, high in bound],
            "p": [effect.p_adjusted for effect in known],
            "n": [effect.n for effect in known],
            "text": [f"n {effect.n:,} · {inside}{effect_name(effect)}" for effect in known],
        }
    )


def effects(frame: pd.DataFrame) -> alt.LayerChart:
    """Drops that changes cause, with their intervals and zero; interactions hollow."""
    rows = alt.Scale(type="band", domain=list(frame["text"]))
    y = alt.Y("text:N", scale=rows, title=None, axis=None, bandPosition=0.72)
    caused = "drop that it causes, in points (right is worse)"
    x = alt.X("drop:Q", title=caused)
    tooltip = [
        *([alt.Tooltip("suite:N")] if any(frame["suite"].tolist()) else []),
        alt.Tooltip("change:N"),
        alt.Tooltip("drop:Q", format=".2f", title="drop, points"),
        alt.Tooltip("lower:Q", format=".2f", title="lower, points"),
        alt.Tooltip("upper:Q", format=".2f", title="upper, points"),
        alt.Tooltip("p:Q", format=".3g", title="p after Holm"),
        alt.Tooltip("n:Q", title="items n"),
    ]
    base = alt.Chart(frame)
    below = {"y": alt.Y("text:N", scale=rows, axis=None, bandPosition=_NAME_TO), "y2": alt.Y2("text:N", bandPosition=1)}
    zero = base.transform_calculate(zero="0").mark_rule(color=QUIET, strokeWidth=1.5)  # beside the names, not in them
    bounded = base.transform_filter("isValid(datum.lower) && isValid(datum.upper)")
    whole = bounded.mark_rule(color=NOISE, strokeWidth=2.5).encode(y=y, x=alt.X("lower:Q", title=caused), x2="upper:Q")
    effect = base.transform_filter("datum.kind == 'effect'").mark_point(filled=True, size=100, color=NOISE, opacity=1)
    pair = base.transform_filter("datum.kind == 'interaction'")
    main = effect.encode(y=y, x=x, tooltip=tooltip)
    both = pair.mark_point(filled=False, size=100, color=NOISE, strokeWidth=2).encode(y=y, x=x, tooltip=tooltip)
    kinds = set(frame["kind"])
    layers = [
        zero.encode(**below, x=alt.X("zero:Q", title=caused)),
        *([whole] if any((frame["lower"].notna() & frame["upper"].notna()).tolist()) else []),
        *([main] if "effect" in kinds else []),
        *([both] if "interaction" in kinds else []),
        base.mark_text(align="left", dy=-11, fontSize=12, color=QUIET, limit=WHOLE_WIDTH).encode(
            y=alt.Y("text:N", scale=rows, axis=None), x=alt.value(4), text="text:N"
        ),
    ]
    return alt.LayerChart(layer=layers, height=_ROW_HEIGHT * len(frame) + _AXIS_HEIGHT, width="container")
