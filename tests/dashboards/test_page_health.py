"""The page of jobs and of what each arm really was."""

import shutil

from evalsvc.store import writer
from evalsvc.store.job_tables import AlertRow, DeliveryRow, ExecutionRow, NoticeRow, ScheduleRow
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand


def test_seconds_that_a_stage_computed_for_several_arms_are_not_an_arms_own(run_app, database, markup_of):
    page = markup_of(run_app(database, "health"))
    assert " tokens answered · 15 s</div>" in page  # fp8-weights, alone with its prefill stage
    assert " · 3 s · prefill 12 s with base, int4-sym-decode, kv-damaged</div>" in page
    assert "256.5 MiB" in page and "0.45" in page


def test_what_is_planned_leased_and_told_stands_on_the_health_page(run_app, database, tmp_path, markup_of):
    path = tmp_path / "jobs.db"
    shutil.copy(database, path)
    at = "2026-11-30T01:00:00.000+00:00"
    with open_store(path) as store, store.session() as session, session.begin():
        session.add(ScheduleRow(job="nightly", cron="0 2 * * *", time_zone="Europe/Berlin", seen_until=at))
        session.add(NoticeRow(id="n1", job="nightly", subject="arm:c", event="regressed", payload={}, created_at=at))
        session.flush()
        done = {"job": "nightly", "planned_at": at, "not_before": at, "status": "failed", "attempt": 2}
        session.add(ExecutionRow(**done, exit_code=2, message="<b>disk</b>"))
        session.add(AlertRow(job="nightly", subject="arm:c", word="REGRESSED", alert="regressed", planned_at=at))
        session.add(DeliveryRow(notice_id="n1", channel="team", not_before=at, tries=3, message="refused"))
    app = run_app(path, "health")
    shown = {tuple(frame.value.columns)[0:2]: frame.value for frame in app.dataframe}
    queue, schedule = shown["id", "job"], shown["job", "cron"]
    assert (queue.status[0], queue.attempt[0], queue["exit code"][0]) == ("failed", 2, 2)
    assert queue.message[0] == "<b>disk</b>" and "<b>disk" not in markup_of(app)  # text in a table, never markup
    assert (schedule["time zone"][0], schedule.late[0]) == ("Europe/Berlin", "no")
    assert queue["planned at, UTC"][0] == "2026-11-30 01:00:00"
    assert shown["job", "subject"].word[0] == "REGRESSED"
    assert (shown["id", "channel"].tries[0], shown["id", "channel"].status[0]) == (3, "pending")


def test_integrity_and_what_ran_stand_on_the_health_page(run_app, words_of, markup_of, database, tmp_path):
    app = run_app(database, "health")
    assert markup_of(app).count("<td>linear.bf16.torch 210</td>") == 12 and "kernels, calls" in markup_of(app)
    assert "No incident" in words_of(app) and not app.warning
    titles = ("Integrity", "Samples without a score", "Jobs", "What each stage held", "What each arm ran")
    places = [markup_of(app).index(f"<h2>{title}</h2>") for title in titles]
    assert places == sorted(places)  # what asks for somebody comes first
    path = tmp_path / "incident.db"
    stage = {"weights": "bf16", "kv": "bf16"}
    with open_store(path, create=True) as store:
        run = by_hand.open_run(store)
        for name in ("base", "torn"):
            arm = by_hand.open_arm(store, run, name, stages={"decode": stage})
            failed = {"status": "error", "error_class": "integrity", "error_message": "page 3 is of another sequence"}
            sample = by_hand.sample(**(failed if name == "torn" else {}))
            writer.add_samples(store, run, arm, [sample])
            writer.finish_arm(store, arm, {"mismatches": ["decode.kv is bf16"]}, "mismatched")
        writer.finish_run(store, run)
    app = run_app(path, "health")
    assert app.warning[0].value == "3 integrity incidents in this run."
    found = next(frame.value for frame in app.dataframe if "incident" in frame.value)
    assert found["what was found"].tolist() == ["decode.kv is bf16"] * 2 + ["page 3 is of another sequence"]
    assert found["samples"].tolist()[-1] == 1
