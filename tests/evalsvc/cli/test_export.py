"""Exports hold what is stored, exactly, and nothing that a spreadsheet would run."""

import csv
import io
import json

from evalsvc.exporting import write_csv


def test_samples_come_one_a_score_with_their_texts(evalsvc, db):
    code, out, _ = evalsvc("export", "1:base", "--db", db)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 120 and {row["metric"] for row in rows} == {"exact"}
    assert sum(row["value"] for row in rows) == 90 and rows[0]["answer"] == "x" and rows[0]["arm"] == "1:base"


def test_pairs_say_what_was_lost(evalsvc, db, tmp_path):
    out = tmp_path / "pairs.csv"
    assert evalsvc("export", "bad", "--against", "base", "--format", "csv", "--out", out, "--db", db)[0] == 0
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 120 and sum(row["flip"] == "lost" for row in rows) == 60
    assert not any(row["flip"] == "gained" for row in rows)


def test_no_cell_of_a_csv_is_a_formula():
    file = io.StringIO()
    write_csv([{"item": "=cmd()", "value": -1.5, "other": 'a,\n"b'}], file)
    (row,) = csv.DictReader(io.StringIO(file.getvalue()))
    assert row == {"item": "'=cmd()", "value": "-1.5", "other": 'a,\n"b'}


def test_another_format_is_refused(evalsvc, db):
    assert "neither csv nor jsonl" in evalsvc("export", "base", "--format", "xlsx", "--db", db)[2]
