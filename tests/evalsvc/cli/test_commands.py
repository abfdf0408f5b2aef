"""Commands over a small database: exit codes, JSON, tables, mistakes."""

import json
import os
import socket
import subprocess
import sys
import time
from io import StringIO

import pytest
from rich.console import Console
from sqlalchemy import update

from evalsvc.cli import dashboard as dashboard_module
from evalsvc.cli.run_report import render_arms
from evalsvc.store import queries, writer
from evalsvc.store.schema import Arm, Sample
from evalsvc.store.session import open_store
from evalsvc.wording import _further


def gate(policy, db, *candidates, baseline="base"):
    named = [part for candidate in candidates for part in ("--candidate", candidate)]
    return ["gate", "--policy", policy, "--baseline", baseline, *named, "--db", db]


@pytest.mark.parametrize(
    ("candidates", "code"),
    [(["good"], 0), (["bad"], 1), (["good", "bad"], 1), (["good", "1:good"], 0), (["2:base"], 0)],
)
def test_gate_exits_by_precedence(evalsvc_json, policy, db, candidates, code):
    found, document = evalsvc_json(*gate(policy, db, *candidates))
    assert found == code == document["exit_code"]
    assert document["schema"] == "evalsvc.gate/1"
    assert [d["candidate"]["name"] for d in document["decisions"]] == list(
        dict.fromkeys(c.split(":")[-1] for c in candidates)
    )


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (update(Arm).where(Arm.run_id == 2).values(expected=240), "holds 120 of 240 samples"),
        (update(Sample).where(Sample.run_id == 2).values(status="error"), "no samples"),
        (update(Sample).where(Sample.run_id == 2).values(request_hash="other"), "unequal request"),
        (update(Arm).where(Arm.run_id == 2).values(proof_status="mismatched"), "does not match its plan"),
        (update(Arm).where(Arm.run_id == 2).values(fingerprint="other"), "unequal fingerprints"),
    ],
)
def test_an_aa_that_is_no_check_of_the_instrument_is_invalid(evalsvc_json, policy, db, damage, says):
    """Else half an A/A, or one of another arm, would be printed as the instrument's noise."""
    with open_store(db) as store, store.transaction() as session:
        session.execute(damage)
    code, document = evalsvc_json(*gate(policy, db, "good"))
    reasons = document["decisions"][0]["reasons"]
    assert code == 4 and any("the A/A 2:base cannot be used" in r and says in r for r in reasons), reasons


def test_gate_table_says_word_factors_and_what_was_injected(evalsvc, policy, db):
    code, out, _ = evalsvc(*gate(policy, db, "good", "bad"))
    assert code == 1
    assert "bad [injected]" in out and "REGRESSED" in out and "beyond margin" in out
    assert "decode.kv" in out and "met by" in out
    assert "A/A 2:base: the baseline against itself lost 0, gained 0 of 120" in out
    assert all(len(line) <= 80 for line in out.splitlines()) and "…" not in out


def test_gate_stores_what_it_printed(evalsvc_json, policy, db):
    _, document = evalsvc_json(*gate(policy, db, "bad"))
    with open_store(db, read_only=True) as store:
        (stored,) = queries.decisions(store, 1)
    assert stored["decision"] == document["decisions"][0]
    assert (stored["verdict"], stored["exit_code"]) == ("REGRESSED", 1)


def test_an_injected_baseline_and_one_arm_twice_exit_2(evalsvc, policy, db):
    for arguments in (gate(policy, db, "good", baseline="bad"), gate(policy, db, "1:base", baseline="base")):
        code, out, err = evalsvc(*arguments)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--db", "none.sqlite"],
        ["ls", "--db", "."],
        ["show", "9:base"],
        ["show", "1:none"],
        ["show", "99"],
        ["compare", "base", "goood"],
        ["compare", "base", "good", "--policy", "none.yaml"],
        ["dashboard", "--db", "none.sqlite"],
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(evalsvc, db, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSVC_DB", db)
    code, out, err = evalsvc(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


def test_compare_is_a_look_and_exits_0(evalsvc, evalsvc_json, db):
    code, out, _ = evalsvc("compare", "base", "bad", "--db", db)
    assert code == 0 and "REGRESSED" in out and "tools-family" in out
    code, document = evalsvc_json("compare", "base", "bad", "--db", db)
    assert (code, document["verdict"], document["exit_code"]) == (0, "REGRESSED", 1)
    with open_store(db, read_only=True) as store:
        assert queries.decisions(store, 1) == []


def test_a_run_without_a_divergence_says_what_measures_one(db):
    with open_store(db) as store:
        shared = {"experiment": "e", "experiment_hash": "y", "resolved": {}, "baseline": "base", "seed": 0}
        plain = writer.open_run(store, **shared)
        stages = {stage: {"weights": "bf16", "kv": "bf16"} for stage in ("prefill", "decode")}
        for name in ("base", "other"):
            about = {"fingerprint": name, "plan": "w=bf16", "stages": stages, "injected": {}, "details": {}}
            writer.finish_arm(store, writer.open_arm(store, plain, name=name, expected=0, **about), None, "declared")
        writer.finish_run(store, plain)
        said = []
        for run_id in (1, plain):
            console = Console(width=400, file=StringIO())
            console.print(render_arms(store, run_id))
            said.append(console.file.getvalue())
    assert "KL: mean divergence" in said[0] and "`probe:`" not in said[0]
    assert "KL: none over a fixed text, which takes a candidate and a `probe:`" in said[1]


def test_an_arm_without_samples_has_nothing_to_compare_and_exits_4(evalsvc, policy, db):
    with open_store(db) as store:
        writer.open_arm(
            store, 2, name="empty", fingerprint="fp", plan="", stages={}, injected={}, details={}, expected=120
        )
    for arguments in (["compare", "1:base", "2:empty", "--db", db], gate(policy, db, "2:empty", baseline="1:base")):
        code, out, _ = evalsvc(*arguments)
        assert code == 4 and "no samples" in out


@pytest.mark.parametrize(
    ("lost", "gained", "items", "margin", "code", "says"),
    [
        (0, 0, 176, 5, 0, "PASS: lost 0, gained 0 of 176; drop 0.00 points, 95 % ["),
        (
            41,
            17,
            1319,
            1,
            1,
            "REGRESSED (drop proven): lost 41, gained 17 of 1,319; drop 1.82 points, 95 % [0.71, 3.03]",
        ),
        (40, 26, 1319, 1, 3, "more items would decide"),
        (0, 0, 0, 1, 4, "no samples"),
        (3, 3, 5, 1, 2, "3 lost and 3 gained do not fit into 5 items"),
        (0, 0, 5, "nan", 2, "--margin: wants a finite number, not nan"),
        (0, 0, 5, -1, 2, "--margin: wants at least 0, not -1"),
        (0, 0, 5, "inf", 2, "--margin: wants a finite number, not inf"),
    ],
)
def test_verdict_of_counts(evalsvc, lost, gained, items, margin, code, says):
    found, out, err = evalsvc("verdict", "--lost", lost, "--gained", gained, "--items", items, f"--margin={margin}")
    assert found == code and says in " ".join((out + err).split())


def test_verdict_json(evalsvc_json):
    arguments = ("--lost", 41, "--gained", 17, "--items", 1319, "--margin", 1)
    code, document = evalsvc_json("verdict", *arguments)
    assert code == document["exit_code"] == 1
    assert document["interval_points"] == pytest.approx([0.7119, 3.0262], abs=1e-4)
    assert document["p"] == pytest.approx(0.00111628, abs=1e-8)


def test_ls_and_show_never_obey_stored_text(evalsvc, evalsvc_json, db):
    for arguments in (["ls"], ["show", "1"], ["show", "base"]):
        code, out, _ = evalsvc(*arguments, "--db", db)
        assert code == 0 and "\x1b[31m" not in out
        assert "e[red]\\x1b" in out, "the name is shown as text"
    code, document = evalsvc_json("ls", "--db", db)
    assert code == 0 and [run["kind"] for run in document["runs"]] == ["main", "aa"]


def test_show_says_what_an_arm_is(evalsvc, evalsvc_json, db):
    _, out, _ = evalsvc("show", "1:bad", "--db", db)
    for text in ("decode_k_scale 0.25", "120 of 120", "matched", "float8_e4m3fn", "0.0123", "600 of prompts"):
        assert text in out
    assert "prefill 12.0 s (with one, two), decode 3.5 s" in " ".join(out.split())
    assert any(line.split() == ["shared_with", "one,", "two"] for line in out.splitlines())
    _, document = evalsvc_json("show", "1:bad", "--db", db)
    assert document["arm"]["address"] == "1:bad" and document["totals"]["samples"] == 120
    _, document = evalsvc_json("show", "1", "--db", db)
    assert [arm["name"] for arm in document["arms"]] == ["base", "good", "bad"]


def test_a_decision_names_the_further_rows_that_say_the_same(evalsvc_json, policy, db):
    _, document = evalsvc_json(*gate(policy, db, "bad"))
    (decision,) = document["decisions"]
    assert decision["sentence"].endswith("; likewise suite tasks, suite tools")
    assert [reason.partition(":")[0] for reason in decision["reasons"][1:]] == ["suite tasks", "suite tools"]


def test_what_is_no_row_is_counted_and_many_rows_are_cut():
    labels = [f"suite {n}" for n in range(9)]
    assert _further(["limit: a", "limit: b"], ["suite 0"]) == " (the first of 2 reasons)"
    assert _further(["suite 0: x"], ["suite 0"]) == ""
    reasons = [*(f"{label}: x" for label in labels), "a limit"]
    assert _further(reasons, labels) == "; likewise suite 1, suite 2, suite 3, suite 4, suite 5 and 4 more"


def test_dashboard_serves_the_named_database(evalsvc, db, monkeypatch):
    started = []

    class Ended:
        returncode = 0

    monkeypatch.setattr("subprocess.run", lambda command, **_: started.append(command) or Ended)
    monkeypatch.setattr(dashboard_module, "_refuse_taken", lambda port: None)
    code, out, err = evalsvc("dashboard", "--db", db, "--port", "8599")
    assert (code, out) == (0, "") and "http://127.0.0.1:8599" in err
    (command,) = started
    assert command[-1] == db and any(os.path.basename(part) == "app.py" for part in command)  # noqa: PTH119


def test_a_port_that_is_taken_is_said_before_any_address(evalsvc, db):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = evalsvc("dashboard", "--db", db, "--port", port, "--json")
    assert code == 2 and json.loads(out)["error"]["kind"] == "ConfigError"
    assert err == f"error: --port {port}: cannot be listened on (Address already in use); name another port\n"


def test_the_server_ends_with_the_command(db, tmp_path):
    """SIGTERM reaches the command alone, as from a supervisor."""
    server, pid = tmp_path / "server.py", tmp_path / "pid"
    server.write_text(
        "import os, sys, time\nprint(os.getpid(), file=open(sys.argv[1], 'w'), flush=True)\ntime.sleep(60)\n"
    )
    code = (
        "import evalsvc.dashboards.launch as launch, evalsvc.cli.main as main\n"
        "import evalsvc.cli.dashboard as command\n"
        "command._refuse_taken = lambda port: None\n"
        f"launch.streamlit_args = lambda *_, **__: [{str(server)!r}, {str(pid)!r}]\n"
        f"main.main(['dashboard', '--db', {str(db)!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as command:
        deadline = time.monotonic() + 30
        while not pid.exists() or not pid.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        command.terminate()
        command.communicate(timeout=30)  # ends when nobody holds stderr any more, the server included
        assert command.returncode == 0


def test_a_table_in_a_wide_terminal_has_its_factors_beside_the_numbers(evalsvc, policy, db, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = evalsvc(*gate(policy, db, "good", "bad"))
    assert "factors met" in out and "met by" not in out and all(len(line) <= 120 for line in out.splitlines())


def test_show_says_where_an_arm_was_stopped(evalsvc, evalsvc_json, db):
    from evalsvc.store import queries, writer
    from evalsvc.store.session import open_store

    stopped = {"word": "REGRESSED", "items": 60, "planned": 1200, "looks": 2}
    with open_store(db) as store:
        bad = queries.resolve_arm(store, "bad")
        writer.stop_arm(store, bad.id, stopped)
    assert "REGRESSED after 60 of 1,200 items" in evalsvc("show", "1:bad", "--db", db)[1]
    assert "after" not in evalsvc("show", "1:good", "--db", db)[1]
    assert evalsvc_json("show", "1:bad", "--db", db)[1]["arm"]["details"]["stopped"] == stopped
