"""Faults of other services' stores that were reported, each with its own input: here the right thing happens."""

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evalsvc.cli.main import main
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.session import open_store

REPORTS = Path(__file__).parents[4] / "shared" / "reference" / "reports.jsonl"


def reports(area: str) -> dict[str, dict[str, Any]]:
    if not REPORTS.is_file():
        pytest.skip(f"{REPORTS} is not here")
    read = map(json.loads, REPORTS.read_text(encoding="utf-8").splitlines())
    return {report["id"]: report for report in read if report["area"] == area}


def test_every_report_about_a_store_or_a_scheduler_has_its_test():
    """Those of schedulers stand in tests/evalsvc/jobs/test_calendar.py."""
    assert set(reports("store")) == {"DB01", "DB03", "DB05"}
    calendar = (Path(__file__).parents[1] / "jobs" / "test_calendar.py").read_text(encoding="utf-8")
    assert all(f'report("{name}")' in calendar for name in reports("scheduler"))


def test_db01_a_writer_waits_for_another_and_keeps_the_rest_of_its_batch(path, store, build):
    assert "1 s" in reports("store")["DB01"]["input"]["two_writers"]
    arm_id = build.arm(run_id := build.run())
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        letting_go = threading.Timer(1.0, other.execute, ["COMMIT"])
        with open_store(path) as first, open_store(path) as second:
            letting_go.start()
            assert writer.add_samples(first, run_id, arm_id, [build.sample(1)]) == 1
            assert writer.add_samples(second, run_id, arm_id, [build.sample(i) for i in (0, 1, 2)]) == 2
        letting_go.join()
    assert writer.done_keys(store, arm_id) == {build.sample(i).key for i in range(3)}


def test_db03_an_answer_never_moves_to_another_item_or_setting(store, build):
    given = reports("store")["DB03"]["input"]
    arm_id = build.arm(run_id := build.run())
    done = {given["run"]["dataset"][int(place)]: answer for place, answer in given["run"]["done"].items()}
    writer.add_samples(store, run_id, arm_id, [build.sample(name, answer=answer) for name, answer in done.items()])
    asked = [build.sample(name, answer=f"new of {name}") for name in given["resume_with"]["dataset"]]
    missing = [sample for sample in asked if sample.key not in writer.done_keys(store, arm_id)]
    assert [sample.item_id for sample in missing] == ["q3", "q2"]
    warmer = build.sample("q1", answer="warmer", settings_hash="temperature 1")
    assert warmer.key not in writer.done_keys(store, arm_id)
    writer.add_samples(store, run_id, arm_id, asked)
    arm = queries.arms(store, run_id)[0]
    assert {held.item_id: held.answer for held in answers(store, arm)} == {
        "q1": "a1",
        "q2": "new of q2",
        "q3": "new of q3",
    }


def test_db05_a_lone_surrogate_is_stored_escaped_flagged_and_shown(path, store, build, capsys):
    reply = reports("store")["DB05"]["input"]["reply"]
    run_id = build.run()
    arm_id = build.arm(run_id)
    batch = [build.sample(1, answer=reply), build.sample(2, answer="after it")]
    assert writer.add_samples(store, run_id, arm_id, batch) == 2
    writer.finish_arm(store, arm_id, {}, "matched")
    arm = queries.arms(store, run_id)[0]
    held = {one.item_id: one.answer for one in answers(store, arm)}
    assert held == {"1": reply.encode("utf-8", "backslashreplace").decode(), "2": "after it"}
    assert queries.arm_totals(store, arm_id).escaped == 1
    for command in (["show", f"{run_id}:base"], ["export", f"{run_id}:base"], ["show", f"{run_id}:base", "--json"]):
        with pytest.raises(SystemExit) as left:
            main([*command, "--db", str(path)])
        assert left.value.code in (None, 0), command
    assert "1 samples hold characters that no database text can" in " ".join(capsys.readouterr().out.split())
