"""Stored decisions become rows without a number changing."""

import pytest

from evalsvc.dashboards import reads
from evalsvc.dashboards.rows import rows_of
from evalsvc.store import queries
from evalsvc.store.session import open_store


def test_rows_are_the_gates_rows(database):
    with open_store(database, read_only=True) as store:
        stored = {d["candidate"]: d["decision"] for d in queries.decisions(store, 1)}
    for decision in stored.values():
        rows = rows_of(decision)
        for row, json_row in zip(rows, decision["rows"], strict=True):
            assert (row.level, row.lost, row.gained, row.n) == tuple(
                json_row[name] for name in ("level", "b", "c", "n")
            )
            assert (row.drop, row.upper) == (json_row["drop_points"], json_row["upper_points"])
            assert (row.word, row.blind) == (json_row["verdict"], json_row["blind"])
    blind = [row.label for row in rows_of(stored["kv-damaged"]) if row.blind]
    assert blind == ["addition · through prefill"]
    assert not [row for row in rows_of(stored["fp8-weights"]) if row.blind]


def test_a_decision_of_another_schema_is_refused_in_words():
    with pytest.raises(ValueError, match=r"has schema 'evalsvc\.decision/9', this page reads evalsvc\.decision/2"):
        rows_of({"schema": "evalsvc.decision/9", "rows": []})
    with pytest.raises(ValueError, match="lacks 'level'; decide it again"):
        rows_of({"schema": "evalsvc.decision/2", "rows": [{}]})


def test_a_view_holds_every_candidate_and_the_gates_own_aa(database):
    with open_store(database, read_only=True) as store:
        (run,) = reads.main_runs(store)
        arms, decided = queries.arms(store, run.id), queries.decisions(store, run.id)
        (baseline,) = reads.baselines(store, run, arms, decided)
        counts = reads.held(store, arms)
        view = reads.run_view(store, run, baseline, arms, decided, counts)
    assert [c.arm.name for c in view.candidates] == [arm.name for arm in arms[1:]]
    assert [c.held.samples for c in view.candidates] == [arm.expected for arm in arms[1:]]
    assert all(c.decision and c.word == c.decision["verdict"] for c in view.candidates)
    assert view.repeat is not None and view.repeat.checked is not None
    assert (view.repeat.address, view.repeat.checked["n"]) == ("2:base", 148)


def test_an_injected_arm_is_offered_as_no_baseline(database):
    with open_store(database, read_only=True) as store:
        (run,) = reads.main_runs(store)
        arms = queries.arms(store, run.id)
        decided = [{"baseline_arm_id": arm.id, "baseline_run_id": run.id} for arm in arms]
        found = reads.baselines(store, run, arms, decided)
    assert [arm.name for arm in found] == [arm.name for arm in arms if not arm.injected]
