"""The forest plot as data: nothing here needs a page."""

import json
from dataclasses import replace

import pytest

from evalsvc.dashboards.charts import MARKS, forest, forest_frame, points_domain
from evalsvc.dashboards.frames import verdict_frame
from evalsvc.dashboards.rows import VerdictRow

ROW = VerdictRow(
    level="suite",
    suite="tasks",
    family="",
    through="",
    items=50,
    n=50,
    baseline_right=30,
    lost=4,
    gained=1,
    drop=6.0,
    lower=-1.0,
    upper=13.0,
    margin=15.0,
    p=0.19,
    p_adjusted=0.57,
    method="exact",
    word="PASS",
    remark="",
    factors_met=("decode.kv",),
    blind=False,
    counted=True,
)


def test_a_row_keeps_its_numbers_and_its_adjusted_p():
    (line,) = forest_frame([ROW]).to_dict("records")
    assert (line["row"], line["drop"], line["lower"], line["upper"], line["margin"]) == (
        "tasks",
        6.0,
        -1.0,
        13.0,
        15.0,
    )
    assert (line["verdict"], line["p"], line["text"]) == ("PASS", ".570", "+6.0  [-1.0, 13.0]")


def test_a_blind_row_shows_no_margin_and_a_family_no_verdict():
    blind = replace(ROW, blind=True, word="INVALID")
    family = replace(ROW, level="family", family="copying", word=None, margin=None)
    lines = forest_frame([blind, family]).to_dict("records")
    assert [line["verdict"] for line in lines] == ["blind", "described"]
    assert lines[0]["margin"] is None or lines[0]["margin"] != lines[0]["margin"]
    assert (lines[1]["row"], lines[1]["name"].strip()) == ("tasks · copying", "copying")


def test_a_row_without_a_drop_is_left_out_and_equal_labels_stay_apart():
    frame = forest_frame([ROW, ROW, replace(ROW, drop=None, suite="unscored")])
    assert frame["row"].tolist() == ["tasks", "tasks (2)"]


def test_families_of_one_name_in_two_suites_are_two_rows_that_are_called_alike():
    rows = [replace(ROW, level="family", suite=suite, family="algebra") for suite in ("math", "exam")]
    frame = forest_frame(rows)
    assert frame["row"].tolist() == ["math · algebra", "exam · algebra"]
    assert [name.strip() for name in frame["name"]] == ["algebra", "algebra"]
    assert verdict_frame(rows)["row"].tolist() == frame["row"].tolist()


def test_the_axis_shows_every_bound_margin_and_zero():
    low, high = points_domain([forest_frame([ROW]), forest_frame([replace(ROW, lower=40.0, upper=90.0, drop=60.0)])])
    assert low < -1.0 and high > 90.0
    low, high = points_domain([forest_frame([replace(ROW, lower=40.0, margin=None)])])
    assert low < 0.0
    assert points_domain([]) == (-1.0, 1.0)


@pytest.mark.parametrize("word", ["PASS", "REGRESSED", "INCONCLUSIVE", "INVALID"])
def test_each_word_has_a_colour_and_a_shape_of_its_own(word):
    frame = forest_frame([replace(ROW, word=word)])
    spec = forest(frame, (-5.0, 20.0)).to_dict()
    point = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "point")
    colour, shape = MARKS[word]
    assert point["encoding"]["color"]["scale"] == {"domain": [word], "range": [colour]}
    assert point["encoding"]["shape"]["scale"] == {"domain": [word], "range": [shape]}
    assert len({shape for _, shape in MARKS.values()}) == len(MARKS)


def layers(spec: dict, mark: str, field: str) -> list[dict]:
    found = [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]
    return [layer for layer in found if layer["encoding"].get("x", {}).get("field") == field]


def test_the_margin_is_drawn_where_a_row_has_one_and_shaded_beyond():
    spec = forest(forest_frame([ROW]), (-5.0, 20.0)).to_dict()
    (line,), (failing,) = layers(spec, "rule", "margin"), layers(spec, "rect", "margin")
    assert line["transform"] == failing["transform"] == [{"filter": "isValid(datum.margin)"}]
    assert failing["encoding"]["x2"]["field"] == "end"
    (data,) = spec["datasets"].values()
    assert (data[0]["margin"], data[0]["end"], data[0]["zero"]) == (15.0, 20.0, 0.0)


def test_the_noise_of_the_instrument_is_a_band_inside_the_axis():
    frame = forest_frame([ROW])
    domain = points_domain([frame], (-30.0, 2.0))
    spec = forest(frame, domain, (-30.0, 2.0)).to_dict()
    (band,) = layers(spec, "rect", "noise_from")
    assert band["encoding"]["x"]["scale"]["domain"] == list(domain) and domain[0] < -30.0
    (data,) = spec["datasets"].values()
    assert (data[0]["noise_from"], data[0]["noise_to"]) == (-30.0, 2.0)
    assert not layers(forest(frame, domain).to_dict(), "rect", "noise_from")


def test_names_and_counts_have_a_strip_of_their_own():
    """Band, margin, shade and zero begin under it, so that nothing runs through a name."""
    spec = forest(forest_frame([ROW]), (-5.0, 20.0), (-2.0, 2.0)).to_dict()
    wide = [
        *(layers(spec, "rect", "noise_from") + layers(spec, "rect", "margin")),
        *(layers(spec, "rule", "margin") + layers(spec, "rule", "zero")),
    ]
    assert len(wide) == 4
    for layer in wide:
        assert layer["encoding"]["y"]["bandPosition"] > 0.4 and layer["encoding"]["y2"]["bandPosition"] == 1
    names = {layer["encoding"]["text"]["field"]: layer for layer in spec["layer"] if layer["mark"]["type"] == "text"}
    assert set(names) == {"name", "counts"}
    assert names["counts"]["mark"]["align"] == "right" and names["counts"]["encoding"]["x"]["value"] == "width"
    assert forest_frame([ROW])["counts"][0] == "n 50 · b 4 · c 1"


def test_a_hostile_name_is_data():
    frame = forest_frame([replace(ROW, suite="</script>\u2028<b>")])
    spec = json.dumps(forest(frame, (-5.0, 20.0)).to_dict())
    assert "⟨U+2028⟩" in frame["row"][0]
    assert "\u2028" not in spec


def test_a_family_stands_further_in_than_its_suite():
    rows = [replace(ROW, level=level, suite="tools", family="choose") for level in ("suite", "family")]
    frame = forest_frame(rows)
    spec = forest(frame, points_domain([frame])).to_dict()
    names = [layer for layer in spec["layer"] if layer["encoding"].get("text", {}).get("field") == "name"]
    assert [layer["encoding"]["x"]["value"] for layer in names] == [4, 20]
    assert all("indexof(datum.name" in layer["transform"][0]["filter"] for layer in names)
