"""`evalsvc rescore`: what it prints, and that runs which are read under unequal rules cannot be compared."""

import pytest

from evalsvc.suites.formats import FormatSuite

SUITES = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 3}]
ARMS = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}}


@pytest.fixture
def twice(write_experiment, execute_file, tmp_path):
    """An experiment of two arms and a database with two runs of it."""
    path = write_experiment(tmp_path / "e", arms=ARMS, suites=SUITES, probe=None, aa=None)
    for _ in range(2):
        execute_file(path, tmp_path / "r.sqlite", new=True)
    return path, str(tmp_path / "r.sqlite")


def compared(evalsvc_json, db):
    _, document = evalsvc_json("compare", "1:bf16", "2:kv", "--db", db)
    return document["verdict"], document["sentence"]


def test_runs_under_unequal_rules_are_invalid_until_both_are_scored_again(evalsvc, evalsvc_json, twice, monkeypatch):
    path, db = twice
    assert compared(evalsvc_json, db)[0] != "INVALID"
    monkeypatch.setattr(FormatSuite, "scoring_version", "formats-next")
    code, out, _ = evalsvc("rescore", path, "--run", "1", "--db", db)
    said = " ".join(out.split())
    assert code == 0 and "1:kv formats formats-2 > formats-next 6 0 0" in said and max(map(len, out.splitlines())) <= 80
    verdict, sentence = compared(evalsvc_json, db)
    assert verdict == "INVALID" and "scored by unequal versions of the suite's rules in the two arms" in sentence
    code, document = evalsvc_json("rescore", path, "--db", db)
    assert (code, document["schema"], document["run"]) == (0, "evalsvc.rescore/1", 2)
    assert [row["added"] for row in document["suites"]] == [6, 6]
    assert compared(evalsvc_json, db)[0] != "INVALID"


def test_nothing_to_do_is_said_and_exits_well(evalsvc, twice):
    code, out, _ = evalsvc("rescore", twice[0], "--db", twice[1])
    assert code == 0 and "run 2: nothing to do, every score is of its suite's scoring version" in " ".join(out.split())


def test_what_is_left_is_named_and_plain(evalsvc, twice, monkeypatch):
    path, db = twice
    monkeypatch.setattr(FormatSuite, "scoring_version", "formats-next")
    cases = path.parent / "formats.jsonl"
    cases.write_text(cases.read_text().replace("Write 0", "Write [red]0"))
    code, out, _ = evalsvc("rescore", path, "--db", db)
    said = " ".join(out.split())
    assert code == 0 and "2:kv formats: not scored again: f0 (changed since it was answered)" in said


def test_a_database_that_is_not_there_is_a_sentence(evalsvc, twice, tmp_path):
    code, out, err = evalsvc("rescore", twice[0], "--db", tmp_path / "none.sqlite")
    assert (code, out) == (2, "") and "no such database" in err and not list(tmp_path.glob("none*"))


def test_a_run_that_is_not_there_is_a_sentence(evalsvc, twice):
    code, out, err = evalsvc("rescore", twice[0], "--run", "9", "--db", twice[1])
    assert (code, out) == (2, "") and "there is no run 9" in err


def test_a_run_that_was_scored_again_is_gone_on_with_and_not_repeated(evalsvc, twice, monkeypatch):
    path, db = twice
    monkeypatch.setattr(FormatSuite, "scoring_version", "formats-next")
    evalsvc("rescore", path, "--db", db)
    code, _, err = evalsvc("run", path, "--db", db)
    assert code == 0 and "run 2 is finished, nothing is computed" in err
    cases = path.parent / "formats.jsonl"
    cases.write_text(cases.read_text().replace("Write 0", "Write nought"))
    monkeypatch.setattr(FormatSuite, "scoring_version", "formats-after-next")
    evalsvc("rescore", path, "--db", db)
    _, _, err = evalsvc("run", path, "--db", db)
    assert "run 3 begins" in err, "of an edited file the stored run is not this run"
