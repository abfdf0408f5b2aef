"""`joint` and `history`: several candidates at once, one arm over its runs."""

import pytest

from evalsvc.store import queries, writer
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand

from .conftest import sample


def test_joint_flags_the_damaged_arm_in_both_suites_and_not_the_good_one(evalsvc, evalsvc_json, db):
    code, document = evalsvc_json("joint", "base", "good", "bad", "--draws", "999", "--db", db)
    assert code == 0 and document["baseline"] == "1:base"
    rows = {(row["candidate"], row["suite"]): row for row in document["rows"]}
    assert rows.keys() == {(arm, suite) for arm in ("1:good", "1:bad") for suite in ("tasks", "tools")}
    for suite in ("tasks", "tools"):
        assert rows["1:bad", suite]["p"] == pytest.approx(1 / 1000) and rows["1:bad", suite]["drop_points"] == 50
        assert rows["1:good", suite]["p"] == 1.0 and rows["1:good", suite]["n"] == 60
    out = evalsvc("joint", "base", "good", "bad", "--db", db)[1]
    assert "1:bad" in out and "adjusted for all 4 rows" in out


def test_joint_counts_a_candidate_once_and_refuses_the_baseline(evalsvc, evalsvc_json, db):
    _, document = evalsvc_json("joint", "base", "bad", "1:bad", "--draws", "99", "--db", db)
    assert len(document["rows"]) == 2
    code, out, err = evalsvc("joint", "base", "bad", "1:base", "--db", db)
    assert (code, out) == (2, "") and "is baseline and candidate" in err


def test_a_sign_of_an_item_is_shared_by_all_candidates(db, add_arm):
    """Ten copies of one arm are one test: their joint p is that of one."""
    from evalsvc.joint import joint_drops
    from evalsvc.store import queries

    with open_store(db) as store:
        for n in range(10):
            add_arm(store, 1, f"copy{n}", lost=3, decode={"kv": "fp8"})
        arms = {arm.name: arm for arm in queries.arms(store, 1)}
        copies = [arms[f"copy{n}"] for n in range(10)]
        alone = joint_drops(store, arms["base"], copies[:1])
        together = joint_drops(store, arms["base"], copies)
    assert max(row.p for row in together) == pytest.approx(max(row.p for row in alone), abs=0.02)
    assert 0.1 < alone[0].p < 0.4  # 2 of 8 signs in each of two suites


@pytest.fixture
def nightly(db, add_arm):
    """Twelve runs of one arm that loses nothing in the first six and 12 items a suite after an engine's change."""
    with open_store(db) as store:
        for n in range(12):
            run_id = by_hand.open_run(store, experiment="n", baseline="night", seed=n)
            late = n >= 6
            add_arm(
                store,
                run_id,
                "night",
                lost=12 + n % 2 if late else n % 2,
                decode={"kv": "fp8", "fault": "new" if late else ""},
                fingerprint=f"fp-night-{late}",
            )
            writer.finish_run(store, run_id)
    return db


def test_history_finds_the_change_and_what_changed_with_it(evalsvc, evalsvc_json, nightly):
    code, document = evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)
    assert code == 0
    changes = [i for i, point in enumerate(document["points"]) if point["change"]]
    assert changes == [6]
    point = document["points"][6]
    assert point["changed"] == ["decode.fault:  -> new"]
    assert point["change"]["after_points"] > 15 > 5 > point["change"]["before_points"]
    assert point["drop_points"] == pytest.approx(20.0) and point["n"] == 120
    assert all(point["changed"] == [] for i, point in enumerate(document["points"]) if i != 6)
    out = evalsvc("history", "night", "--baseline", "1:base", "--db", nightly)[1]
    assert "LEVEL" in out and "CHANGED" in out and "no verdict" in out


def test_history_shows_a_run_that_cannot_be_compared_and_goes_on(evalsvc_json, nightly, add_arm):
    with open_store(nightly) as store:
        run_id = by_hand.open_run(store, experiment="n", baseline="night")
        arm_id = by_hand.open_arm(store, run_id, "night")
        writer.finish_arm(store, arm_id, None, "declared")
        add_arm(store, 1, "night")
    _, document = evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)
    empty = next(point for point in document["points"] if point["drop_points"] is None)
    assert "no samples" in empty["fault"]
    assert [i for i, point in enumerate(document["points"]) if point["change"]]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["history", "nobody", "--baseline", "base"], 4, "no finished run has an arm 'nobody'"),
        (["history", "1:bad", "--baseline", "base"], 4, "takes an arm's bare name, over every run: bad"),
        (["history", "night", "--baseline", "@none"], 2, "none"),
        (["joint", "base", "nobody"], 2, "nobody"),
        (["joint", "base"], 2, "CANDIDATE"),
    ],
)
def test_mistakes_are_one_sentence(evalsvc, db, arguments, code, says):
    found, out, err = evalsvc(*arguments, "--db", db)
    assert (found, out) == (code, "") and says in err


def test_a_series_of_one_run_is_said_in_the_singular(evalsvc, db):
    assert "no change of level in 1 run\n" in evalsvc("history", "bad", "--baseline", "1:base", "--db", db)[1]


def test_each_suite_has_a_series_of_its_own(evalsvc, evalsvc_json, nightly):
    _, document = evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)
    assert document["suites"].keys() == {"tasks", "tools"}
    for points in document["suites"].values():
        assert [i for i, point in enumerate(points) if point["change"]] == [6]
        assert points[7]["n"] == 60 and points[7]["drop_points"] == pytest.approx(100 * 13 / 60)
    code, one = evalsvc_json("history", "night", "--baseline", "1:base", "--suite", "tools", "--db", nightly)
    assert code == 0 and one["points"] == document["suites"]["tools"] and one["suites"].keys() == {"tools"}
    out = " ".join(evalsvc("history", "night", "--baseline", "1:base", "--db", nightly)[1].split())
    assert "tools: LEVEL CHANGED from" in out and "since the run before: decode.fault: -> new" in out
    code, _, err = evalsvc("history", "night", "--baseline", "1:base", "--suite", "tool", "--db", nightly)
    assert code == 2 and "suites are tasks, tools" in err


def test_figures_are_kept_and_hang_on_how_both_arms_are_scored(evalsvc_json, nightly, monkeypatch):
    from evalsvc import series

    _, first = evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)
    read = []
    computed = series._computed

    def counted(*arguments):
        read.append(arguments[2].address)
        return computed(*arguments)

    monkeypatch.setattr(series, "_computed", counted)
    assert evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)[1] == first
    assert read == []
    with open_store(nightly) as store:
        late = next(arm for arm in queries.arms(store) if arm.name == "night")
        writer.add_scores(store, [], {late.id: {"tasks": "another"}})
    assert evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)[1] != first
    assert read == [late.address] * 2, "once to look, once to keep"
    assert evalsvc_json("history", "night", "--baseline", "1:good", "--db", nightly)[0] == 0
    assert len(read) == 2 + 24, "figures against another baseline are their own"


def test_a_metric_beside_the_items_own_in_its_own_units(evalsvc, evalsvc_json, nightly):
    with open_store(nightly) as store, store.transaction() as session:
        connection = session.connection()
        for metric, value in (("seconds", "20.0 + (arm_id > 10) * 5 + id % 3"), ("brief", "id % 2")):
            connection.exec_driver_sql(
                "INSERT INTO scores (sample_id, scoring_version, metric, filter, value)"
                f" SELECT id, '1', '{metric}', 'none', {value} FROM samples"
            )
    asked = ["history", "night", "--baseline", "1:base", "--suite", "tools", "--db", nightly, "--metric"]
    _, seconds = evalsvc_json(*asked, "seconds", "--lower")
    (change,) = [point for point in seconds["points"] if point["change"]]
    assert change["change"]["after"] - change["change"]["before"] == pytest.approx(5, abs=0.1)
    assert change["drop"] == pytest.approx(5, abs=0.1) and "drop_points" not in change
    said = " ".join(evalsvc(*asked, "seconds", "--lower")[1].split())
    assert "rise of seconds against 1:base, in units of seconds itself: less is better, so positive is worse;" in said
    assert (seconds["better"], seconds["metric"]) == ("lower", "seconds")
    _, brief = evalsvc_json(*asked, "brief")
    assert {point["drop_points"] for point in brief["points"]} == {0.0}
    assert "drop of brief against 1:base, in points: positive" in " ".join(evalsvc(*asked, "brief")[1].split())
    assert evalsvc(*asked[:-1], "--lower")[0] == 2


@pytest.mark.parametrize("suite", [(), ("--suite", "tools"), ("--suite", "nowhere")])
def test_a_metric_that_no_run_has_is_refused_with_those_there_are(evalsvc, nightly, suite):
    code, out, err = evalsvc("history", "night", "--baseline", "1:base", "--metric", "nope", *suite, "--db", nightly)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "no item has a score of nope in any run of night and in 1:base; metrics are exact" in err


def test_of_failure_modes_the_opposites_are_metrics_too(evalsvc, nightly):
    with open_store(nightly) as store, store.transaction() as session:
        session.connection().exec_driver_sql(
            "INSERT INTO scores (sample_id, scoring_version, metric, filter, value)"
            " SELECT id, '1', 'failure.any', 'none', 0.0 FROM samples"
        )
    asked = ["history", "night", "--baseline", "1:base", "--db", nightly, "--metric"]
    assert evalsvc(*asked, "free_of.empty")[0] == 0
    code, _, err = evalsvc(*asked, "free_of.emty")
    assert code == 2 and "metrics are exact, failure.any, free_of.any, free_of.broken_text, free_of.empty" in err


def test_a_metric_that_never_differs_has_no_bounds_in_its_own_units(evalsvc, evalsvc_json, nightly):
    with open_store(nightly) as store, store.transaction() as session:
        session.connection().exec_driver_sql(
            "INSERT INTO scores (sample_id, scoring_version, metric, filter, value)"
            " SELECT id, '1', 'seconds', 'none', 2.0 FROM samples"
        )
    asked = ["history", "night", "--baseline", "1:base", "--metric", "seconds", "--lower", "--db", nightly]
    code, document = evalsvc_json(*asked)
    assert code == 0 and {point["drop"] for point in document["points"]} == {0.0}
    assert all(point["interval"] == [None, None] for point in document["points"])
    assert "[none, none]" in evalsvc(*asked)[1]


def test_torch_driver_template_and_suites_are_named_where_they_changed(evalsvc_json, nightly):
    import json

    noted = [
        {
            "torch": f"2.{n}",
            "driver": f"5{n}0",
            "template": f"t{n}",
            "suites": {"s": {"items": f"i{n}", "scoring": "1"}},
        }
        for n in (1, 2)
    ]
    notes = [{"engine": "e1"}, {"engine": "e1", **noted[0]}, {"engine": "e2", **noted[1]}]
    with open_store(nightly) as store, store.transaction() as session:
        for n, details in enumerate(notes):
            session.connection().exec_driver_sql(
                "UPDATE arms SET details = ? WHERE run_id = ?", (json.dumps(details), 3 + n)
            )
    _, document = evalsvc_json("history", "night", "--baseline", "1:base", "--db", nightly)
    assert document["points"][1]["changed"] == [], "an earlier evalsvc did not note them"
    assert document["points"][2]["changed"] == [
        *("driver: 510 -> 520", "engine: e1 -> e2", "suite s items: i1 -> i2", "template: t1 -> t2"),
        "torch: 2.1 -> 2.2",
    ]


@pytest.fixture
def mixed(nightly, add_arm):
    """`nightly`, with two runs among them that have an arm of its name and ask a suite of their own."""
    with open_store(nightly) as store:
        for n in range(2):
            run_id = by_hand.open_run(store, experiment="o", experiment_hash="o", baseline="b", seed=n)
            for name in ("b", "night"):
                arm_id = by_hand.open_arm(store, run_id, name, fingerprint=f"o-{name}", expected=3)
                writer.add_samples(store, run_id, arm_id, [sample("own", i, right=True) for i in range(3)])
                writer.finish_arm(store, arm_id, None, "declared")
            writer.finish_run(store, run_id)
        later = by_hand.open_run(store, experiment="n", baseline="night")
        add_arm(store, later, "night", lost=12, decode={"kv": "fp8", "fault": "new"}, fingerprint="fp-night-True")
        writer.finish_run(store, later)
    return nightly


def test_runs_that_were_asked_other_suites_are_left_out_and_named(evalsvc, evalsvc_json, mixed):
    asked = ["history", "night", "--baseline", "1:base", "--db", mixed]
    _, document = evalsvc_json(*asked)
    assert document["elsewhere"] == {"15:night": ["own"], "16:night": ["own"]}
    assert len(document["points"]) == 13 and not any(point["fault"] for point in document["points"])
    assert document["points"][-1]["changed"] == [], "what is named is the change since the run shown before"
    said = " ".join(evalsvc(*asked)[1].split())
    assert "left out, asked nothing that 1:base was: 15:night, 16:night (own)" in said
    code, out, err = evalsvc(*asked, "--suite", "own")
    assert (code, out) == (2, "") and "suite 'own' was asked in 15:night, 16:night, and not of 1:base; name a" in err
    assert "or a suite of tasks, tools" in err
    code, out, err = evalsvc("history", "b", "--baseline", "1:base", "--db", mixed)
    assert (code, out) == (4, "") and "no run of b was asked anything that 1:base was: 15:b, 16:b (own)" in err


def test_a_metric_without_a_suite_is_shown_of_each_suite_in_every_run(evalsvc, evalsvc_json, mixed):
    """A run that cannot be compared takes none of the others away, whichever comes first."""
    with open_store(mixed) as store, store.transaction() as session:
        connection = session.connection()
        connection.exec_driver_sql(
            "INSERT INTO scores (sample_id, scoring_version, metric, filter, value)"
            " SELECT id, '1', 'brief', 'none', id % 2 FROM samples"
        )
        connection.exec_driver_sql("UPDATE arms SET proof_status = 'mismatched' WHERE run_id = 3")
    asked = ["history", "night", "--baseline", "1:base", "--metric", "brief", "--db", mixed]
    _, document = evalsvc_json(*asked)
    assert document["suites"].keys() == {"tasks", "tools"} and document["elsewhere"].keys() == {"15:night", "16:night"}
    for points in document["suites"].values():
        assert [point["n"] for point in points] == [0, *[60] * 12]
        assert "does not match its plan" in points[0]["fault"]
    assert document["points"] == document["suites"]["tasks"]
    assert evalsvc(*asked)[1].count("3:night: not compared, candidate 3:night: what was measured") == 2


def test_of_a_failure_mode_prompts_without_a_verdict_are_read_too(evalsvc_json, mixed):
    with open_store(mixed) as store, store.transaction() as session:
        connection = session.connection()
        connection.exec_driver_sql("UPDATE items SET metric = '' WHERE suite = 'own' AND item_id > 'i0'")
        connection.exec_driver_sql(
            "INSERT INTO scores (sample_id, scoring_version, metric, filter, value)"
            " SELECT id, '1', 'failure.any', 'none', 0.0 FROM samples"
        )
    asked = ["history", "night", "--baseline", "15:b", "--db", mixed]
    assert [point["n"] for point in evalsvc_json(*asked)[1]["points"]] == [1, 1]
    _, modes = evalsvc_json(*asked, "--metric", "free_of.any")
    assert [point["n"] for point in modes["suites"]["own"]] == [3, 3]


def test_a_history_fits_80_columns_and_cuts_nothing(evalsvc, mixed):
    out = evalsvc("history", "night", "--baseline", "1:base", "--db", mixed)[1]
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in out
    (new,) = [line for line in lines if line.rstrip().endswith("new") and line.startswith("9:night")]
    assert "9:night: LEVEL CHANGED from 0.83 to 20.71" in out and "since the run before" in " ".join(out.split())
    assert new.count("[") == 1
