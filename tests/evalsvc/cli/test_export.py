"""Exports hold what is stored, exactly, and nothing that a spreadsheet would run."""

import csv
import io
import json

from evalsvc.exporting import sample_rows, write_csv
from evalsvc.store import queries, writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import open_store


def test_samples_come_one_a_score_with_their_texts(evalsvc, db):
    code, out, _ = evalsvc("export", "1:base", "--db", db)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 120 and {row["metric"] for row in rows} == {"exact"}
    assert sum(row["value"] for row in rows) == 90 and rows[0]["answer"] == "x" and rows[0]["arm"] == "1:base"


def test_what_a_filter_left_is_told_with_its_score_where_texts_are(tmp_path):
    with open_store(tmp_path / "left.db", create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        facts = {"plan": "w=bf16", "stages": {}, "injected": {}, "details": {}, "expected": 2}
        arm = writer.open_arm(store, run, name="base", fingerprint="f", **facts)
        item = {"suite": "s", "item_hash": "h", "family": "f", "cluster": "", "metric": "m", "filter": "strict"}
        item |= {"chance": 0.0, "scored_by": "generation", "request_hash": "r", "settings_hash": "s"}
        score = NewScore(metric="m", filter="strict", value=0.0, filtered="(D).")
        samples = [
            NewSample(**item, item_id=name, rendered_hash=None, scores=scores)
            for name, scores in (("one", (score,)), ("none", ()))
        ]
        writer.add_samples(store, run, arm, samples)
        found = queries.resolve_arm(store, "1:base")
        told = [row["filtered"] for row in sample_rows(store, found, texts=True)]
        bare = list(sample_rows(store, found, texts=False))
    assert told == ["(D).", None] and not any("filtered" in row for row in bare)


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
