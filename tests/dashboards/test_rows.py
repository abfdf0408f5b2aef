"""Stored decisions become rows without a number changing."""

from dataclasses import replace

import pytest

from evalsvc.dashboards import reads
from evalsvc.dashboards.rows import METRIC, rows_of
from evalsvc.dashboards.tables import met_lines
from evalsvc.decision import SCHEMA
from evalsvc.row import Row
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


def test_a_row_of_a_metric_has_its_name_and_its_own_units():
    """Else it would stand there as its suite a second time, with no numbers."""
    row = Row(
        scope="metric", suite="text", metric="word_perplexity", unit="word_perplexity", better="lower", items=80, n=80,
        lost=50, gained=30, baseline_right=None, errors_baseline=0, errors_candidate=0, baseline_value=12.0,
        candidate_value=13.5, drop=1.5, lower=0.9, upper=2.25, margin=1.0, p=0.001, verdict="REGRESSED",
    )  # fmt: skip
    (shown,) = rows_of({"schema": SCHEMA, "rows": [row.to_json()]})
    assert (shown.label, shown.level, shown.drop) == ("text, word_perplexity", METRIC, None)
    assert shown.remark == "12 to 13.5; worse by 1.5; at most by 2.25; margin 1"
    share = replace(row, unit="", drop=0.02, lower=0.01, upper=0.04, margin=0.03)
    (shown,) = rows_of({"schema": SCHEMA, "rows": [share.to_json()]})
    assert (shown.label, shown.drop, shown.remark) == ("text, word_perplexity", 2.0, "")


def test_factors_met_are_one_line_a_stage():
    assert met_lines(("prefill.weights", "prefill.kv", "decode.kv")) == ["prefill: weights, kv", "decode: kv"]
    assert met_lines(()) == []
