"""Commands that take several arms find their names in one way."""

import pytest

from evalsvc.store import writer
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand


@pytest.fixture
def later(db, add_arm):
    """A later run of another experiment, which has the baseline's name and an arm of its own."""
    with open_store(db) as store:
        run_id = by_hand.open_run(store, experiment="later", experiment_hash="l")
        add_arm(store, run_id, "base", fingerprint="fp-later")
        add_arm(store, run_id, "other", decode={"kv": "int8"})
        writer.finish_run(store, run_id)
    return db


def asked(command, policy, *names):
    """A command line that takes these arms, the baseline first."""
    if command == "gate":
        return ["gate", "--policy", policy, "--baseline", names[0], *(f"--candidate={name}" for name in names[1:])]
    if command == "export":
        return ["export", names[1], "--against", names[0], "--format", "csv"]
    return [command, *names]


COMMANDS = ("compare", "agree", "gate", "joint", "export")


@pytest.mark.parametrize("command", COMMANDS)
def test_names_alone_are_of_one_run_and_which_is_said(evalsvc, later, policy, command):
    code, out, err = evalsvc(*asked(command, policy, "base", "good"), "--db", later)
    assert code == 0
    assert "of run 1 (" in err and "is later and has no good" in err and err.count("\n") == 1
    assert command == "export" or "1:good" in out
    code, out, err = evalsvc(*asked(command, policy, "base", "other"), "--db", later)
    assert "of run 3 (later), the latest finished one that has them all\n" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_names_that_no_run_has_together_are_refused(evalsvc, later, policy, command):
    code, out, err = evalsvc(*asked(command, policy, "good", "other"), "--db", later)
    assert (code, out) == (2, "") and err.count("\n") == 1
    names = "other and good" if command == "export" else "good and other"
    assert f"no finished run has {names}; write RUN:ARM, such as " in err


def test_all_candidates_come_from_the_baselines_run(evalsvc_json, evalsvc, later, policy):
    _, document = evalsvc_json(*asked("gate", policy, "base", "good", "bad"), "--db", later)
    assert [one["candidate"]["address"] for one in document["decisions"]] == ["1:good", "1:bad"]
    assert {one["baseline"]["address"] for one in document["decisions"]} == {"1:base"}
    code, _, err = evalsvc(*asked("joint", policy, "base", "good", "other"), "--db", later)
    assert code == 2 and "no finished run has base, good and other" in err


def test_nothing_is_said_where_one_run_alone_could_be_meant(evalsvc, db, policy):
    assert evalsvc(*asked("compare", policy, "base", "good"), "--db", db)[2] == ""
