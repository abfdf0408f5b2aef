"""A whole database is said to be whole, and damage is found."""

import sqlite3

from sqlalchemy import text

from evalsvc.store import writer
from evalsvc.store.care import problems, stats, vacuum


def filled(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0), build.error(1)])
    return run_id


def test_a_whole_database_has_no_problems_and_its_rows_are_counted(store, build):
    filled(store, build)
    assert problems(store) == []
    found = stats(store)
    assert {name: found.rows[name] for name in ("runs", "samples", "scores")} == {"runs": 1, "samples": 2, "scores": 1}
    assert found.size > 10_000
    vacuum(store)
    assert problems(store) == [] and stats(store).rows == found.rows


def test_counts_that_samples_contradict_are_named(store, build):
    filled(store, build)
    with store.transaction() as session:
        session.execute(text("UPDATE arms SET errors = 0"))
    assert problems(store) == ["arm 1:base counts 2 samples with 0 errors, and has 2 with 1"]


def test_a_reference_to_nothing_is_named(path, store, build):
    filled(store, build)
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM items WHERE item_id = '0'")
    assert problems(store) == ["row 1 of samples refers to a row of items that is not there"]
