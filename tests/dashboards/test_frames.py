"""Tables whose cells are of any kind still render, sort, and keep every digit."""

import io

import pandas as pd
import pyarrow as pa
import pytest
import streamlit as st

from evalsvc.dashboards.frames import number_column, text_column
from evalsvc.dashboards.parting import fields_of, first_difference
from evalsvc.dashboards.show import show_table
from evalsvc.dashboards.text import csv_bytes, markdown_free

MIXED = [10.0, "N/A", None, 1e308]
ANSWERS = ["4", [1, 2], {"a": 1}, "100000000000000000000001"]


def test_mixed_columns_become_an_arrow_table_of_four_rows():
    frame = pd.DataFrame({"score": number_column(MIXED), "answer": text_column(ANSWERS)})
    table = pa.Table.from_pandas(frame)
    assert table.num_rows == 4
    assert table["score"].to_pylist() == [10.0, None, None, 1e308]
    assert table["answer"].to_pylist() == ["4", "[1, 2]", "{'a': 1}", "100000000000000000000001"]
    assert list(frame.sort_values("score", ascending=False)["answer"])[:2] == ["100000000000000000000001", "4"]


@pytest.mark.parametrize("odd", [(1, 2), {1}, b"x", object, float("nan"), True, 10**30])
def test_no_value_breaks_a_column(odd):
    frame = pd.DataFrame({"n": number_column([1, odd]), "t": text_column(["a", odd])})
    assert pa.Table.from_pandas(frame).num_rows == 2


def test_a_big_integer_keeps_its_digits_as_text():
    assert text_column([100000000000000000000001])[0] == "100000000000000000000001"


def test_text_in_labels_is_not_markdown():
    shown = markdown_free("$12 and $15; *a* _b_ # c ~d~ :red[x] <b>y</b>")
    for character in "$*_#~:[]<>":
        assert all(shown[i - 1] == "\\" for i, found in enumerate(shown) if found == character)


def test_a_csv_begins_no_formula():
    frame = pd.DataFrame({"a": text_column(["=1+1", "@x", "plain"]), "n": number_column([-1.5, None, 2])})
    read = pd.read_csv(io.BytesIO(csv_bytes(frame)))
    assert list(read["a"]) == ["'=1+1", "'@x", "plain"]
    assert read["n"].tolist()[0] == -1.5 and read["n"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("ours", "theirs", "index"), [("abc", "abd", 2), ("ab", "abc", 2), ("", "x", 0), ("same", "same", None)]
)
def test_the_first_difference(ours, theirs, index):
    assert first_difference(ours, theirs) == index


def test_a_megabyte_parts_where_it_does():
    assert first_difference("x" * 1_000_000 + "a", "x" * 1_000_000 + "b") == 1_000_000


def test_fields_of_two_calls_stand_side_by_side_and_bad_json_has_none():
    ours = '{"name": "book", "arguments": {"city": "Oslo", "n": 2}}'
    theirs = '{"name": "book", "arguments": {"city": "Rome"}}'
    assert fields_of(ours, theirs) == [("name", "book", "book"), ("city", "Oslo", "Rome"), ("n", 2, None)]
    assert fields_of(ours, "no json") == fields_of("[1]", ours) == fields_of("[" * 5000, ours) == []


@pytest.mark.parametrize(("rows", "height"), [(0, "content"), (12, "content"), (31, "auto")])
def test_a_short_table_is_shown_whole_and_a_long_one_scrolls(monkeypatch, rows, height):
    said = {}
    monkeypatch.setattr(st, "dataframe", lambda frame, **options: said.update(options))
    show_table(pd.DataFrame({"n": range(rows)}))
    assert said["height"] == height
