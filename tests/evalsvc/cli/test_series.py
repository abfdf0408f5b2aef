"""`joint` and `history`: several candidates at once, one arm over its runs."""

import pytest

from evalsvc.store import writer
from evalsvc.store.session import open_store


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
            run_id = writer.open_run(store, experiment="n", experiment_hash="n", resolved={}, baseline="night", seed=n)
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
        run_id = writer.open_run(store, experiment="n", experiment_hash="n", resolved={}, baseline="night", seed=0)
        arm_id = writer.open_arm(
            store, run_id, name="night", fingerprint="f", plan="p", stages={}, injected={}, details={}, expected=1
        )
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
        (["history", "night", "--baseline", "@none"], 2, "none"),
        (["joint", "base", "nobody"], 2, "nobody"),
        (["joint", "base"], 2, "CANDIDATE"),
    ],
)
def test_mistakes_are_one_sentence(evalsvc, db, arguments, code, says):
    found, out, err = evalsvc(*arguments, "--db", db)
    assert (found, out) == (code, "") and says in err
