"""`audit`, `power`, `noise`, `attribute`: figures, exit codes, mistakes."""

from dataclasses import replace

import pytest

from evalsvc.cli.run_report import run_document
from evalsvc.store import writer
from evalsvc.store.session import open_store
from evalsvc.suites.own import PromptSuite
from tests.evalsvc import by_hand

from .conftest import BF16, sample


def test_audit_says_up_to_which_discordance_a_published_drop_is_significant(evalsvc, evalsvc_json):
    asked = ["audit", "--items", "12032", "--baseline", "80.29", "--candidate", "79.29"]
    code, document = evalsvc_json(*asked)
    assert code == 0
    assert document["unpaired_two_sided_p"] == pytest.approx(0.054, abs=5e-4)
    assert document["significant_two_sided_below_points"] == pytest.approx(30.6, abs=0.2)
    code, out, _ = evalsvc(*asked)
    assert code == 0 and "p .054" in out and "at most 30.6 %" in out


def test_audit_takes_a_low_score_beside_a_higher_one_and_two_zeros(evalsvc_json):
    for baseline, candidate in (("1.5", "0.8"), ("0.8", "1.5"), ("0", "0")):
        code, _ = evalsvc_json("audit", "--items", "1000", "--baseline", baseline, "--candidate", candidate)
        assert code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "--items", "10", "--baseline", "120", "--candidate", "50"], "--baseline 120: scores are in percent"),
        (["audit", "--items", "10", "--baseline", "nan", "--candidate", "50"], "--baseline nan: scores are in percent"),
        (["audit", "--items", "10", "--baseline", "60", "--candidate", "-1"], "--candidate -1: scores are in percent"),
        (
            ["audit", "--items", "9", "--baseline", "0.8029", "--candidate", "0.79"],
            "--baseline 0.8029: scores are in percent; did you mean 80.29?",
        ),
        (
            ["audit", "--items", "9", "--baseline", "0", "--candidate", "1"],
            "--candidate 1: scores are in percent; did you mean 100?",
        ),
        (["audit", "--items", "10", "--baseline", "60", "--candidate", "50", "--margin", "nan"], "--margin"),
        (["power", "--items", "10"], "--discordance, or --arm"),
        (["power", "--items", "10", "--discordance", "5", "--arm", "x"], "--discordance, or --arm"),
        (["power", "--items", "10", "--discordance", "nan"], "must be above 0"),
        (["power", "--items", "10", "--discordance", "0"], "must be above 0"),
        (["attribute", "nowhere"], "no finished run of an experiment 'nowhere'"),
        (["attribute", "77"], "77"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(evalsvc, db, arguments, says):
    extra = ["--db", db] if arguments[0] == "attribute" else []
    code, out, err = evalsvc(*arguments, *extra)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_power_says_what_items_find_prove_and_need(evalsvc, evalsvc_json):
    code, document = evalsvc_json("power", "--items", "1319", "--discordance", "5")
    assert code == 0
    assert document["detectable_drop_points"] == pytest.approx(1.53, abs=0.01)
    assert document["power_at_margin"] == pytest.approx(0.45, abs=0.01)
    assert document["items_that_find_the_margin"] == pytest.approx(3090, abs=1)
    assert document["provable_margin_at_best_points"] == pytest.approx(0.2047, abs=1e-3)
    code, out, _ = evalsvc("power", "--items", "1319", "--discordance", "5")
    assert "1.53 points is found in 4 of 5 runs" in out and "3,090 items" in out


def test_power_beyond_what_can_flip_says_so(evalsvc, evalsvc_json):
    _, document = evalsvc_json("power", "--items", "20", "--discordance", "0.5", "--margin", "2")
    assert document["detectable_drop_points"] is None and document["power_at_margin"] is None
    assert "no drop is found reliably" in evalsvc("power", "--items", "20", "--discordance", "0.5")[1]


def test_power_takes_a_stored_pilot(evalsvc_json, evalsvc, db):
    code, document = evalsvc_json("power", "--items", "1000", "--arm", "bad", "--db", db)
    assert code == 0
    assert document["discordance_points"] == pytest.approx(50.0)  # 60 of 120 lost
    assert document["seconds_per_item"] == pytest.approx(0.1)
    code, _, err = evalsvc("power", "--items", "1000", "--arm", "good", "--db", db)
    assert code == 4 and "no item differs" in err


def test_noise_of_a_quiet_baseline_and_of_an_arm_without_a_check(evalsvc, evalsvc_json, db):
    code, document = evalsvc_json("noise", "base", "--db", db)
    assert (code, document["lost"], document["gained"], document["failed"]) == (0, 0, 0, False)
    code, _, err = evalsvc("noise", "good", "--db", db)
    assert code == 4 and "1:good: no A/A of this arm; that of its run is 2:base, of 1:base" in err
    with open_store(db) as store, store.transaction() as session:
        session.connection().exec_driver_sql("UPDATE runs SET status = 'running' WHERE id = 2")
    code, _, err = evalsvc("noise", "base", "--db", db)
    assert code == 4 and "no finished A/A" in err


def without_metric(db, where, version=PromptSuite.scoring_version):
    """Makes prompts that nothing is verified of out of some of the stored items; or items scored under a version."""
    with open_store(db) as store, store.transaction() as session:
        connection = session.connection()
        connection.exec_driver_sql(f"UPDATE items SET metric = '', filter = '' WHERE {where}")
        connection.exec_driver_sql(
            "UPDATE scores SET metric = 'failure.any', filter = '', value = 0, scoring_version = ? WHERE sample_id IN "
            "(SELECT s.id FROM samples s JOIN items i ON i.id = s.item_pk WHERE i.metric = '')",
            (version,),
        )


def test_an_aa_names_the_items_that_it_does_not_count(evalsvc, evalsvc_json, db):
    without_metric(db, "suite = 'tools' AND item_id < 'i3'")
    code, document = evalsvc_json("noise", "base", "--db", db)
    uncounted = "23 of 60 items of tools without `check` or `constraints`"
    assert (code, document["n"], document["left_out"], document["of"]) == (0, 97, [uncounted], "1:base")
    assert f"not counted: {uncounted}" in evalsvc("noise", "base", "--db", db)[1]
    said = " ".join(evalsvc("compare", "base", "good", "--db", db)[1].split())
    assert f"gained 0 of 97 (discordance 0.00 points); not counted: {uncounted}" in said


def test_an_aa_asks_for_a_check_of_own_prompts_alone(evalsvc_json, db):
    without_metric(db, "suite = 'tools' AND item_id < 'i3'", version="lmeval-4")
    _, document = evalsvc_json("noise", "base", "--db", db)
    assert document["left_out"] == ["23 of 60 items of tools without a metric"]


def test_an_aa_of_which_no_item_can_be_counted_was_run_all_the_same(evalsvc, evalsvc_json, db, policy):
    without_metric(db, "true")
    said = (
        "2:base{} was run, and none of its items can be counted (60 of 60 items of tasks without `check` or "
        "`constraints`; 60 of 60 items of tools without `check` or `constraints`); `evalsvc agree 1:base 2:base`"
    )
    code, out, err = evalsvc("noise", "base", "--db", db)
    assert (code, out) == (4, "") and f"1:base: its A/A {said.format('')}" in err
    assert f"A/A {said.format(':')}" in " ".join(evalsvc("compare", "base", "good", "--db", db)[1].split())
    code, document = evalsvc_json("gate", "--policy", policy, "--baseline", "base", "--candidate", "good", "--db", db)
    (decision,) = document["decisions"]
    assert code == 4 and (decision["aa"]["n"], decision["aa"]["discordance_points"]) == (0, None)
    assert (decision["aa"]["p"], decision["aa"]["p_gain"], len(decision["aa"]["left_out"])) == (None, None, 2)
    with open_store(db, read_only=True) as store:
        assert run_document(store, 1, [], 0)["aa"] == decision["aa"]
    assert len(decision["reasons"]) == 1, "that the A/A counts nothing is no reason of its own"


def test_an_aa_of_another_arm_than_the_baseline_says_whose_it_is(evalsvc, db):
    said = " ".join(evalsvc("compare", "good", "bad", "--db", db)[1].split())
    assert "A/A 2:base: 1:base against itself lost 0, gained 0 of 120" in said
    assert "the baseline against itself" in " ".join(evalsvc("compare", "base", "good", "--db", db)[1].split())


def test_noise_that_drifts_exits_4(evalsvc, db, add_arm):
    with open_store(db) as store:
        shared = {"experiment": "drift", "experiment_hash": "y", "resolved": {}, "baseline": "b", "seed": 0}
        run_id = writer.open_run(store, **shared)
        add_arm(store, run_id, "b")
        writer.finish_run(store, run_id)
        again = writer.open_run(store, **shared, kind="aa", linked_run_id=run_id)
        add_arm(store, again, "b", lost=10, fingerprint="fp-b")
        writer.finish_run(store, again)
    code, out, _ = evalsvc("noise", f"{run_id}:b", "--db", db)
    assert code == 4 and "drifts" in out


@pytest.fixture
def factorial(db, add_arm):
    """Arms of one experiment: KV, weights, and both; both together lose more than either."""
    with open_store(db) as store:
        shared = {"experiment": "fact", "experiment_hash": "z", "resolved": {}, "baseline": "b", "seed": 0}
        run_id = writer.open_run(store, **shared)
        add_arm(store, run_id, "b")
        add_arm(store, run_id, "kv", decode={"kv": "fp8"})
        add_arm(store, run_id, "w", decode={"weights": "int4"}, lost=6)
        add_arm(store, run_id, "both", decode={"kv": "fp8", "weights": "int4"}, lost=20)
        add_arm(store, run_id, "planted", decode={"kv": "fp8", "fault": "x"}, lost=30, injected={"decode_k_scale": 2})
        writer.finish_run(store, run_id)
    return db


def test_attribution_averages_where_all_arms_are_there(evalsvc_json, factorial):
    code, document = evalsvc_json("attribute", "fact", "--db", factorial)
    assert code == 0
    found = {tuple(c[0] for c in effect["changes"]): effect for effect in document["effects"]}
    # two suites of 60: w loses 12 of 120, both 40, kv none
    assert found[("decode.weights",)]["drop_points"] == pytest.approx((12 + 40) / 2 / 1.2)
    assert found[("decode.kv",)]["drop_points"] == pytest.approx((0 + 28) / 2 / 1.2)
    assert found[("decode.kv", "decode.weights")]["drop_points"] == pytest.approx(28 / 1.2)
    assert all(effect["averaged_over_all_contexts"] for effect in document["effects"])
    assert document["left_out"] == ["planted: it has planted faults"]


def test_attribution_names_what_the_arms_cannot_separate(evalsvc, db, add_arm):
    with open_store(db) as store:
        shared = {"experiment": "one", "experiment_hash": "w", "resolved": {}, "baseline": "b", "seed": 0}
        run_id = writer.open_run(store, **shared)
        add_arm(store, run_id, "b")
        add_arm(store, run_id, "both", decode={"kv": "fp8", "weights": "int4"}, lost=20)
        writer.finish_run(store, run_id)
    code, out, _ = evalsvc("attribute", str(run_id), "--db", db)
    joined = " ".join(out.split())
    assert code == 0 and "unknown: decode.kv=fp8 (no arm has decode.kv=fp8 and nothing else)" in joined
    assert "unknown: 1 interaction of two changes" in joined


def test_attribution_without_honest_arms_exits_4(evalsvc, db, add_arm):
    with open_store(db) as store:
        shared = {"experiment": "lone", "experiment_hash": "v", "resolved": {}, "baseline": "b", "seed": 0}
        run_id = writer.open_run(store, **shared)
        add_arm(store, run_id, "b")
        writer.finish_run(store, run_id)
    code, _, err = evalsvc("attribute", str(run_id), "--db", db)
    assert code == 4 and "nothing to attribute" in err


@pytest.fixture
def repeated(db):
    """Two answers an item, of which the candidate loses the second alone; and a suite that no decode token answered."""
    with open_store(db) as store:
        run_id = by_hand.open_run(store, experiment="twice", baseline="b")
        for name, kv in (("b", "bf16"), ("kv", "fp8")):
            stages = {"prefill": BF16, "decode": {**BF16, "kv": kv}}
            arm_id = by_hand.open_arm(store, run_id, name, fingerprint=f"t-{name}", stages=stages, expected=180)
            asked = [sample("tools", i, right=True) for i in range(60)]
            asked += [replace(sample("tools", i, right=name == "b"), repeat=1) for i in range(60)]
            asked += [
                replace(sample("tasks", i, right=True), stage_tokens={"prefill": 1}, handed_over=False)
                for i in range(60)
            ]
            writer.add_samples(store, run_id, arm_id, asked)
            writer.finish_arm(store, arm_id, None, "matched")
        writer.finish_run(store, run_id)
    return db


def test_attribution_of_what_nothing_is_verified_of_says_why(evalsvc, factorial):
    without_metric(factorial, "true")
    code, out, err = evalsvc("attribute", "fact", "--db", factorial)
    assert (code, out) == (4, "")
    assert "prompts without `check` or `constraints` carry no verdict" in err
    assert "`evalsvc agree 3:b 3:kv` compares their answers" in err


def test_attribution_without_an_item_scored_in_two_arms_says_so(evalsvc, factorial):
    with open_store(factorial) as store, store.transaction() as session:
        session.connection().exec_driver_sql(
            "UPDATE samples SET status = 'error' WHERE arm_id IN (SELECT id FROM arms WHERE run_id = 3 AND name != 'b')"
        )
    code, out, err = evalsvc("attribute", "fact", "--db", factorial)
    assert (code, out) == (4, "") and "no item is scored in both 3:b and 3:kv" in err


def test_attribution_averages_an_items_repeats(evalsvc_json, repeated):
    _, document = evalsvc_json("attribute", "twice", "--db", repeated)
    (effect,) = document["effects"]
    assert (effect["n"], effect["drop_points"]) == (120, 25.0)  # half of each tool item; tasks lose nothing


def test_a_pilot_counts_what_a_verdict_would(evalsvc_json, repeated):
    """Repeats averaged inside the item, and no suite that is blind to what differs."""
    code, document = evalsvc_json("power", "--items", "100", "--arm", "kv", "--db", repeated)
    assert (code, document["discordance_points"]) == (0, 100.0)
    assert document["source"] == "3:kv against 3:b, 60 items"


def test_looks_at_what_nothing_can_be_counted_of_say_why(evalsvc, repeated):
    """Blind items and prompts that nothing is verified of are no missing answers."""
    commands = (["power", "--items", "9", "--arm", "kv"], ["joint", "b", "kv"])
    with open_store(repeated) as store, store.transaction() as session:
        session.connection().exec_driver_sql(
            "UPDATE samples SET stage_tokens = '{\"prefill\": 1}', handed_over = false"
        )
    for command in commands:
        code, out, err = evalsvc(*command, "--db", repeated)
        assert (code, out) == (4, "") and "no item that is scored in both met a factor in which 3:b and 3:kv" in err
    without_metric(repeated, "true")
    for command in commands:
        code, out, err = evalsvc(*command, "--db", repeated)
        assert (code, out) == (4, "") and "`evalsvc agree 3:b 3:kv` compares their answers" in err
