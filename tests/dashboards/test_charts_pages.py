"""The charts of the other pages by their specification."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from evalsvc.dashboards import charts_arms, charts_axes, charts_divergence, charts_flows, charts_grid, charts_series
from evalsvc.dashboards.reads import Candidate
from evalsvc.history import Point
from evalsvc.verdict.attribution import Effect
from evalsvc.verdict.history import ChangePoint

POINT = Point(address="1:a", created_at="2026-01-01T02:00:00+00:00", n=200, drop=0.01, interval=(-0.01, 0.03))
CHANGED = replace(POINT, created_at="2026-01-02T02:00:00+00:00", change=ChangePoint(1, 0.01, 0.1, 0.002))
EFFECT = Effect(changes=(("decode.kv", "fp8"),), n=90, drop=0.05, lower=0.01, upper=float("inf"), p=0.1, p_adjusted=0.2)


def marks(spec: dict) -> list[str]:
    return [layer["mark"]["type"] for layer in spec["layer"]]


def without_data(spec: dict) -> list[dict]:
    """Layers that nothing gives values to."""
    return [] if "data" in spec else [layer for layer in spec["layer"] if "data" not in layer]


FRAMES = {
    "history": charts_series.history(charts_series.history_frame([POINT, CHANGED], {"1:a": "PASS"})),
    "power": charts_series.power(pd.DataFrame({"items": [10], "points": [3.0], "what": ["x"]}), 10, 1.0),
    "heat": charts_grid.heat_map(
        pd.DataFrame({"arm": ["a"], "cell": ["t"], "drop": [-12.0], "n": [30], "b": [1], "c": [2], "text": ["-12"]})
    ),
    "effects": charts_arms.effects(charts_arms.effects_frame([EFFECT])),
    "divergence": charts_divergence.quantiles(
        pd.DataFrame(
            {
                **{"row": ["a"], "mean": [0.1], "median": [None], "p99": [0.9], "p999": [1.0], "largest": [1.0]},
                **{"tokens": [40], "text": ["a · n 40"]},
            }
        )
    ),
    "along": charts_divergence.along(
        pd.DataFrame(
            {"where": ["decode"] * 2, "place": ["9-16", "1-8"], "start": [8, 0], "mean": [0.2, 0.0], "tokens": [9, 8]}
        ),
        "mean",
        "mean KL, nats (log)",
        log=True,
    ),
    "tradeoff": charts_arms.tradeoff(
        pd.DataFrame(
            {
                "arm": ["base", "a", "b"],
                "value": [10.0, 20.0, 15.0],
                "low": [None, 19.0, None],
                "high": [None, 21.0, None],
                "drop": [0.0, 1.0, 2.0],
                "lower": [None, 0.0, 1.0],
                "upper": [None, 2.0, 3.0],
                "n": [None, 100, 100],
                "word": ["baseline", "PASS", "REGRESSED"],
            }
        ),
        "tokens a second",
        less_is_better=False,
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_layer_has_values_and_every_axis_a_name(name):
    spec = FRAMES[name].to_dict()
    assert without_data(spec) == []
    titled = [layer["encoding"].get(axis, {}).get("title") for layer in spec["layer"] for axis in ("x", "y")]
    assert any(titled)


def test_a_deployment_stands_at_the_foot_of_the_run_that_it_came_before():
    deployed = replace(CHANGED, changed=("engine: 1 -> 2",))
    spec = charts_series.history(charts_series.history_frame([POINT, deployed], {})).to_dict()
    (foot,) = [layer for layer in spec["layer"] if layer.get("transform") == [{"filter": "datum.changed != ''"}]]
    assert foot["mark"]["shape"] == "triangle-up" and foot["encoding"]["y"] == {"value": "height"}
    none = charts_series.history(charts_series.history_frame([POINT, CHANGED], {})).to_dict()
    assert len(none["layer"]) == len(spec["layer"]) - 1


def test_a_change_of_level_is_a_rule_where_it_begins():
    spec = FRAMES["history"].to_dict()
    (change,) = [layer for layer in spec["layer"] if layer.get("transform") == [{"filter": "isValid(datum.level)"}]]
    assert change["mark"]["type"] == "rule" and change["encoding"]["x"]["field"] == "began"
    frame = charts_series.history_frame([POINT, CHANGED, replace(POINT, drop=None)], {})
    assert frame["level"].tolist()[1] == "level 1.00 to 10.00 points" and len(frame) == 2
    assert frame["level"].isna().tolist() == [True, False]
    assert (frame["drop"][0], frame["lower"][0], frame["upper"][0]) == (1.0, -1.0, 3.0)


def test_every_run_has_its_own_interval_so_that_a_single_one_has_one_too():
    """A band needs two runs."""
    spec = charts_series.history(charts_series.history_frame([POINT], {})).to_dict()
    intervals = [layer["mark"]["type"] for layer in spec["layer"] if layer["encoding"].get("y2") == {"field": "upper"}]
    assert intervals == ["area", "rule"]


def test_the_heat_map_is_centred_on_zero():
    """And passes from blue to orange over white alone: no green between."""
    spec = FRAMES["heat"].to_dict()
    (cells,) = [layer for layer in spec["layer"] if layer["mark"]["type"] == "rect"]
    scale = cells["encoding"]["color"]["scale"]
    assert scale["domain"] == [-12.0, 0, 12.0] and scale["interpolate"] == "lab"
    white = [layer for layer in spec["layer"] if layer["mark"].get("color") == "#ffffff"]
    assert [layer["transform"][0]["filter"] for layer in white] == ["isValid(datum.drop) && datum.drop < -7.2"]
    assert cells["transform"] == [{"filter": "isValid(datum.drop)"}]


def test_names_that_begin_alike_are_rows_of_their_own_in_the_heat_map():
    """The axis cuts what it draws, and never what tells two rows apart."""
    long = "a-checkpoint-that-somebody-made-with-a-script-and-named-after-every-option-that-it-has-and-more"
    seen = {"level": "family", "suite": long, "drop": 1.0, "n": 30, "lost": 1, "gained": 0, "blind": False}
    rows = [SimpleNamespace(**seen, label=family) for family in ("algebra", "biology")]
    frame = charts_grid.heat_frame([cast(Candidate, SimpleNamespace(arm=SimpleNamespace(name="a"), rows=rows))])
    assert frame["cell"].tolist() == [f"{long} · algebra", f"{long} · biology"]
    axis = charts_grid.heat_map(frame).to_dict()["layer"][0]["encoding"]["y"]["axis"]
    assert "slice(datum.label, -" in axis["labelExpr"] and axis["labelFlush"] is False


def test_an_end_that_nothing_bounds_is_empty_and_draws_no_interval():
    frame = charts_arms.effects_frame([EFFECT, Effect(changes=(("prefill.kv", "fp8"),), unknown="no arm")])
    assert len(frame) == 1 and frame["upper"].isna().all() and frame["drop"].tolist() == [5.0]


def test_the_front_holds_what_nothing_beats():
    frame = pd.DataFrame({"value": [10.0, 20.0, 15.0], "drop": [0.0, 1.0, 2.0]})
    assert charts_arms.pareto(frame, less_is_better=False)["value"].tolist() == [10.0, 20.0]
    assert charts_arms.pareto(frame, less_is_better=True)["value"].tolist() == [10.0]


def test_names_in_the_trade_off_stand_off_each_other_and_inside_the_chart():
    spec = FRAMES["tradeoff"].to_dict()
    texts = [layer["mark"] for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    assert [(text["align"], text["dy"]) for text in texts] == [("center", 16), ("left", -9), ("right", -9)]


def test_zero_of_effects_stands_beside_their_names_and_not_in_them():
    (zero, *_) = FRAMES["effects"].to_dict()["layer"]
    assert zero["encoding"]["x"]["field"] == "zero" and zero["transform"] == [{"calculate": "0", "as": "zero"}]
    assert (zero["encoding"]["y"]["bandPosition"], zero["encoding"]["y2"]["bandPosition"]) == (0.44, 1)


def test_the_power_curve_ends_where_its_values_do_with_ticks_at_powers_of_ten():
    frame = pd.DataFrame({"items": [50, 60_000], "points": [30.0, 0.02], "what": ["x", "x"]})
    (curve, *_) = charts_series.power(frame, 148, 1.0).to_dict()["layer"]
    x, y = (curve["encoding"][axis] for axis in "xy")
    assert x["scale"]["domain"] == [50, 60_000] and x["axis"]["values"] == [100, 1000, 10_000]
    assert y["scale"]["domain"] == [0.02, 30] and y["axis"]["values"] == [0.1, 1, 10]


@pytest.mark.parametrize("name", ["effects", "divergence"])
def test_a_long_name_leaves_the_plot_its_room(name):
    """Names stand in the plot; one that is wider than a phone would shrink it to nothing."""
    (text,) = [layer["mark"] for layer in FRAMES[name].to_dict()["layer"] if layer["mark"]["type"] == "text"]
    assert text["limit"] == {"expr": "width - 8"}


def test_an_arm_has_its_colour_where_the_other_has_no_error():
    line = {"suite": "s", "error": "wrong", "arm": "cand", "count": 1, "n": 2, "share": 50.0}
    encoding = charts_grid.taxonomy(pd.DataFrame([line]), ["base", "cand"]).to_dict()["encoding"]
    assert encoding["color"]["scale"] == {"domain": ["base", "cand"], "range": ["#717c8b", "#0072b2"]}
    assert encoding["yOffset"]["scale"]["domain"] == ["base", "cand"]


def test_only_proven_plans_are_filled():
    spec = FRAMES["tradeoff"].to_dict()
    points = [layer for layer in spec["layer"] if layer["mark"]["type"] == "point"]
    proven = "datum.word == 'PASS' || datum.word == 'baseline'"
    filters = {layer["mark"]["filled"]: layer["transform"][0]["filter"] for layer in points}
    assert filters == {True: proven, False: f"!({proven})"}


def test_an_unknown_quantile_has_no_mark_and_the_known_ones_stand_by_size():
    layers = FRAMES["divergence"].to_dict()["layer"]
    strokes = [layer for layer in layers if layer["mark"].get("shape") == "stroke"]
    sizes = {layer["encoding"]["x"]["field"]: layer["mark"]["size"] for layer in strokes}
    assert list(sizes) == ["p99", "p999", "largest"] and sorted(sizes.values()) == list(sizes.values())
    assert not [layer for layer in layers if layer["mark"].get("filled") is False]
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in layers if "scale" in layer["encoding"]["x"]} == {"log"}


def test_a_text_is_walked_along_in_order_and_a_zero_has_no_place_on_a_log_axis():
    spec = FRAMES["along"].to_dict()
    assert all(layer["encoding"]["x"]["sort"] == ["1-8", "9-16"] for layer in spec["layer"])
    (data,) = spec["datasets"].values()
    assert [line["place"] for line in data] == ["9-16"]


def test_a_layer_without_a_mark_is_left_out():
    """An empty group of marks has nothing that a screen reader could say."""
    assert marks(FRAMES["effects"].to_dict()) == ["rule", "point", "text"]
    whole = replace(EFFECT, upper=0.1)
    pair = replace(whole, changes=(("decode.kv", "fp8"), ("decode.weights", "int4")))
    assert marks(charts_arms.effects(charts_arms.effects_frame([whole, pair])).to_dict()) == [
        *("rule", "rule", "point", "point", "text")
    ]
    assert marks(charts_series.history(charts_series.history_frame([POINT], {})).to_dict()).count("rule") == 2


def test_items_flow_from_arm_to_arm_and_none_is_lost_on_the_way():
    columns, paths = charts_flows.states("base", {"a": {1: True, 2: True, 3: False}, "b": {1: True}})
    assert columns == ["base", "a", "b"]
    assert paths == {(True, False, False): 1, (True, False, True): 1, (False, True, False): 1}
    stacks = charts_flows.stacks(columns, paths)
    assert stacks.groupby("arm")["items"].sum().tolist() == [3, 3, 3]
    assert stacks.loc[stacks["state"] == "right", "items"].tolist() == [2, 1, 1]
    bands = charts_flows.bands(columns, paths)
    ends = bands.groupby("band").agg(first=("x", "min"), last=("x", "max"), items=("items", "first"))
    assert ends["items"].tolist() == [2, 1, 1, 1, 1] and ends["first"].min() > 0 and ends["last"].max() < 2
    for side in ("min", "max"):  # at either end bands lie side by side and fill the height
        for place in (0, 1):
            here = bands[bands["band"].str.startswith(str(place))]
            edge = here[here["x"] == getattr(here["x"], side)()].sort_values("low")
            assert edge["low"].tolist() == pytest.approx([0, *edge["high"].tolist()[:-1]])
            assert edge["high"].max() == pytest.approx(1)


def test_the_flow_chart_has_bands_blocks_counts_and_names():
    columns, paths = charts_flows.states("base", {"a": {1: True, 2: False}, "b": {1: True}})
    spec = charts_flows.flows(columns, paths).to_dict()
    assert marks(spec) == ["area", "rect", "text", "text"]
    area, blocks, counts, names = spec["layer"]
    assert (area["encoding"]["detail"]["field"], area["encoding"]["y2"]["field"]) == ("band", "high")
    assert area["encoding"]["color"]["scale"] == blocks["encoding"]["color"]["scale"]
    assert counts["encoding"]["text"]["field"] == "items" and names["encoding"]["text"]["field"] == "arm"


@pytest.mark.parametrize(
    ("largest", "ticks"), [(40.0, [0.001, 0.01, 0.1, 1, 10, 100]), (0.009, [0.001, 0.002, 0.005, 0.01, 0.02, 0.05])]
)
def test_a_log_axis_has_round_ticks_and_few_lines(largest, ticks):
    axis = charts_axes.log_axis([0.0, None, float("nan"), 0.0016, largest])
    assert axis.to_dict()["values"] == pytest.approx(ticks)


def test_effects_of_a_suite_say_so_in_their_row():
    frame = charts_arms.effects_frame([EFFECT], "tools")
    assert frame["text"].tolist() == ["n 90 · tools · decode.kv=fp8"] and frame["suite"].tolist() == ["tools"]
