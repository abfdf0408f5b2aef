"""What others reported of pages like these: each report's own input, and its kind on every page."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from evalsvc.dashboards.frames import number_column, text_column

REPORTS = Path(__file__).parents[3] / "shared" / "reference" / "reports.jsonl"


@pytest.fixture(scope="module")
def reports():
    if not REPORTS.is_file():
        pytest.skip("shared/reference/reports.jsonl is not there")
    found = [json.loads(line) for line in REPORTS.read_text(encoding="utf-8").splitlines()]
    return {report["id"]: report["input"] for report in found if report["area"] == "dashboard"}


def test_every_report_of_the_area_is_tested(reports):
    assert set(reports) == {"UI01", "UI03"}


def test_ui01_text_is_shown_character_for_character_wherever_it_stands(run_app, words_of, hostile_database, reports):
    """In answers, prompts, task names, error classes and messages; what is code or a cell is copied as it is."""
    from_report = reports["UI01"]["answer"]
    flips = run_app(hostile_database, "flips", direction="lost")
    assert from_report in [code.value for code in flips.code]  # the baseline's answer
    sample = run_app(hostile_database, "sample")
    assert [code.value for code in sample.code].count(from_report) >= 2  # answer and prompt
    compare = run_app(hostile_database, "compare").dataframe[0].value
    assert from_report in compare["row"].tolist()  # a task's name
    health = run_app(hostile_database, "health")
    failed = next(frame.value for frame in health.dataframe if "one of the messages" in frame.value)
    assert failed["one of the messages"].tolist() == [from_report]
    for app in (flips, sample, health, run_app(hostile_database), run_app(hostile_database, "breakdown")):
        markdown = [e.value for kind in (app.caption, app.info, app.warning, app.markdown, app.error) for e in kind]
        assert not [said for said in markdown if "$15 now" in said and "\\$15 now" not in said]


def test_ui03_a_column_of_mixed_kinds_renders_sorts_and_keeps_every_digit(reports):
    rows = reports["UI03"]["rows"]
    frame = pd.DataFrame(
        {
            "score": number_column([row["score"] for row in rows]),
            "answer": text_column([row["answer"] for row in rows]),
        }
    )
    table = pa.Table.from_pandas(frame)
    assert table.num_rows == len(rows) == 4
    assert table["score"].to_pylist() == [10.0, None, None, 1e308]  # what is no number is empty, and never 0
    assert table["answer"].to_pylist() == ["4", "[1, 2]", "{'a': 1}", "100000000000000000000001"]
    assert frame.sort_values("score")["score"].tolist()[:2] == [10.0, 1e308]
