"""Exports hold what is stored, exactly, and nothing that a spreadsheet would run."""

import csv
import errno
import io
import json
import os
import subprocess
import sys
from math import log
from pathlib import Path

import pytest

from evalsvc.alternatives import pack
from evalsvc.engine.requests import GenerateResult, TokenLogprobs
from evalsvc.exporting import sample_rows, write_csv
from evalsvc.store import queries, writer
from evalsvc.store.records import NewScore, Turn
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand


def test_samples_come_one_a_score_with_their_texts(evalsvc, db):
    code, out, _ = evalsvc("export", "1:base", "--db", db)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 120 and {row["metric"] for row in rows} == {"exact"}
    assert sum(row["value"] for row in rows) == 90 and rows[0]["answer"] == "x" and rows[0]["arm"] == "1:base"


def test_what_a_filter_left_is_told_with_its_score_where_texts_are(tmp_path):
    with open_store(tmp_path / "left.db", create=True) as store:
        run = by_hand.open_run(store)
        arm = by_hand.open_arm(store, run, "base", expected=2)
        score = NewScore(metric="exact", filter="none", value=0.0, filtered="(D).")
        samples = [by_hand.sample(name, scores=scores) for name, scores in (("one", (score,)), ("none", ()))]
        writer.add_samples(store, run, arm, samples)
        found = queries.resolve_arm(store, "1:base")
        told = [row["filtered"] for row in sample_rows(store, found, texts=True)]
        bare = list(sample_rows(store, found, texts=False))
    assert told == ["(D).", None] and not any("filtered" in row for row in bare)


def test_each_generated_token_comes_with_its_likeliest(evalsvc, tmp_path):
    """Two turns of one sample; one whose likeliest nobody said; one that generated nothing."""
    answers = [
        GenerateResult(
            id="i",
            text="x",
            token_ids=ids,
            logprobs=tuple(TokenLogprobs(token, log(0.5), ((token, log(0.5)), (9, log(0.25)))) for token in ids),
            texts={1: " é", 9: "\u2028"},
            prompt_tokens=1,
            prompt_sha256="p",
            finish_reason="stop",
            stage_tokens={},
        )
        for ids in ((1, 2), (1,))
    ]
    turns = (Turn("x", "stop", (1, 2)), Turn(None, None, (1,)))
    path = tmp_path / "tokens.db"
    with open_store(path, create=True) as store:
        run = by_hand.open_run(store)
        arm = by_hand.open_arm(store, run, "base", expected=3)
        own = {"one": {"turns": turns, "alternatives": pack(answers)}, "bare": {"turns": turns[1:]}, "none": {}}
        samples = [by_hand.sample(name, **fields) for name, fields in own.items()]
        writer.add_samples(store, run, arm, samples)
    code, out, _ = evalsvc("export", "1:base", "--tokens", "--db", path)
    rows = [json.loads(line) for line in out.splitlines()]
    said = [(row["item_id"], row["turn"], row["token"], row["id"]) for row in rows]
    assert code == 0 and said == [("one", 0, 0, 1), ("one", 0, 1, 2), ("one", 1, 0, 1), ("bare", 0, 0, 1)]
    second = {"token": 9, "probability": 0.25, "text": "\u2028"}
    assert rows[2]["likeliest"] == [{"token": 1, "probability": 0.5, "text": " é"}, second]
    assert rows[1]["likeliest"][0] == {"token": 2, "probability": 0.5, "text": None} and rows[3]["likeliest"] is None


def test_tokens_are_those_of_one_arm_in_json_lines(evalsvc, db):
    for more, why in (
        (("--format", "csv"), "--tokens: goes without --format csv"),
        (("--against", "base"), "--tokens: goes without --against"),
    ):
        code, _, said = evalsvc("export", "1:bad", "--tokens", *more, "--db", db)
        assert code == 2 and why in said


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
    assert (
        "--format xlsx: is no format of an export; give csv or jsonl"
        in evalsvc("export", "base", "--format", "xlsx", "--db", db)[2]
    )


def test_the_ending_of_the_file_says_the_format_and_how_many_rows_are_told(evalsvc, db, tmp_path):
    out = tmp_path / "pairs.CSV"
    code, said, err = evalsvc("export", "bad", "--against", "base", "--out", out, "--db", db)
    assert (code, said, err) == (0, "", f"120 rows in {out}\n")
    assert out.read_text().startswith("suite,family,")
    named = tmp_path / "pairs.txt"
    assert evalsvc("export", "bad", "--format", "jsonl", "--out", named, "--db", db)[0] == 0
    assert named.read_text().startswith("{")


@pytest.mark.parametrize(
    ("name", "says"), [("o.xlsx", "ends in .xlsx, which is no format"), ("o", "has no ending that is a format")]
)
def test_an_ending_that_is_no_format_is_refused_with_those_that_are(evalsvc, db, tmp_path, name, says):
    code, _, err = evalsvc("export", "bad", "--out", tmp_path / name, "--db", db)
    assert code == 2 and says in err and "end it in .csv or .jsonl, or give --format csv or jsonl" in err
    assert not (tmp_path / name).exists()


def test_a_file_that_is_there_is_left_unless_forced(evalsvc, db, tmp_path):
    out = tmp_path / "o.jsonl"
    out.write_text("mine")
    asked = ("export", "bad", "--out", out, "--db", db)
    code, _, err = evalsvc(*asked)
    assert code == 2 and f"{out}: is there already, and nothing was written; --force takes its place" in err
    assert out.read_text() == "mine"
    assert evalsvc(*asked, "-f")[0] == 0 and len(out.read_text().splitlines()) == 120


def test_an_export_that_ends_early_leaves_what_was_there(evalsvc, db, tmp_path, monkeypatch):
    out = tmp_path / "o" / "pairs.csv"
    out.parent.mkdir()
    out.write_text("from before")

    def full(rows, file):
        file.write("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("evalsvc.exporting.write_csv", full)
    code, _, err = evalsvc("export", "base", "--force", "--out", out, "--db", db)
    assert code == 2 and f"{out}: cannot be written (No space left on device)" in err
    assert out.read_text() == "from before" and list(out.parent.iterdir()) == [out]


def test_an_export_takes_the_place_and_the_mode_of_what_was_there_through_links(evalsvc, db, tmp_path):
    out, link = tmp_path / "o.jsonl", tmp_path / "link"
    out.write_text("from before")
    out.chmod(0o640)
    link.symlink_to(out)
    assert evalsvc("export", "base", "--format", "jsonl", "-f", "--out", link, "--db", db)[0] == 0
    assert link.is_symlink() and len(out.read_text().splitlines()) == 120 and out.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("command", ["export", "gate"])
def test_nothing_is_written_over_the_database(evalsvc, db, policy, command):
    asked = {
        "export": ("base", "--out"),
        "gate": ("--policy", policy, "--baseline", "base", "--candidate", "good", "--junit"),
    }
    before = Path(db).read_bytes()
    for address in (db, f"sqlite:///{db}"):
        code, _, err = evalsvc(command, *asked[command], db, "--db", address)
        assert code == 2 and "is what is read, and would be lost" in err
    assert Path(db).read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("export", "1:base"), ("ls",), ("ls", "--json"), ("ls", "--nonsense", "--json")])
def test_a_full_disk_behind_the_output_is_one_sentence_and_no_regression(db, arguments):
    command, env = [sys.executable, "-m", "evalsvc.cli.main", *arguments], os.environ | {"EVALSVC_DB": db}
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert found.returncode == 2 and "Traceback" not in found.stderr and "Exception" not in found.stderr
    assert "what is printed cannot be written (No space left" in found.stderr or "--nonsense" in arguments
