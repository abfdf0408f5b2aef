"""Failure modes in the store: rates of the newest scoring version, and zeros where a policy reads them."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from evalsvc.errors import ConfigError
from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries, writer
from evalsvc.store.rates import FailureRates, failure_rates
from evalsvc.store.records import NewScore
from evalsvc.store.schema import ScoreRow


def scores(*shown):
    given = {"acc": 1.0, "failure.any": float(bool(shown)), **{f"failure.{mode}": 1.0 for mode in shown}}
    return tuple(NewScore(metric=metric, filter="none", value=value) for metric, value in given.items())


def stored(build, store):
    run_id = build.run()
    arm_ids = [build.arm(run_id, name) for name in ("base", "cand")]
    for arm_id, first in zip(arm_ids, ((), ("repetition", "truncated")), strict=True):
        samples = [
            build.sample(0, scores=scores(*first)),
            build.sample(1, scores=scores("truncated")),
            build.sample(2, scores=scores()),
            build.sample(3),
            build.error(4),
            build.sample(5, suite="other", scores=scores()),
        ]
        writer.add_samples(store, run_id, arm_id, samples)
        writer.finish_arm(store, arm_id, None, "declared")
    writer.finish_run(store, run_id)
    return run_id, arm_ids


def test_rates_are_over_the_answers_that_were_looked_at(build, store):
    run_id, _ = stored(build, store)
    base, cand = queries.arms(store, run_id)
    assert failure_rates(store, base) == {
        "other": FailureRates(1, 0, {}),
        "tasks": FailureRates(3, 1, {"truncated": 1}),
    }
    found = failure_rates(store, cand)["tasks"]
    assert found == FailureRates(3, 2, {"truncated": 2, "repetition": 1})
    assert (found.rate("truncated"), found.rate("empty")) == (2 / 3, 0)


def test_a_policy_reads_zeros_where_nothing_is_stored(build, store):
    run_id, _ = stored(build, store)
    base, cand = queries.arms(store, run_id)
    pairs = {p.item_id: p for p in queries.pairs(store, base, cand, scores_of=["tasks"])}
    assert pairs["0"].baseline.scores["failure.repetition"] == 0
    assert pairs["0"].candidate.scores["failure.repetition"] == 1
    assert pairs["2"].candidate.scores["failure.empty"] == 0
    assert pairs["0"].candidate.scores["free_of.repetition"] == 0
    assert pairs["2"].candidate.scores["free_of.any"] == 1
    assert "failure.empty" not in pairs["3"].candidate.scores
    assert pairs["5"].candidate.scores == {}


def test_the_newest_scoring_version_says_all_modes_anew(build, store):
    run_id, _ = stored(build, store)
    base = queries.arms(store, run_id)[0]
    with store.session() as session:
        sample_id = session.scalars(select(ScoreRow.sample_id).where(ScoreRow.metric == "failure.truncated")).first()
        for metric in ("failure.any", "failure.refusal"):
            row = {"scoring_version": "2", "metric": metric, "filter": "none", "value": 1.0}
            session.add(ScoreRow(sample_id=sample_id, **row))
        session.commit()
    assert failure_rates(store, base)["tasks"] == FailureRates(3, 1, {"refusal": 1})
    pairs = queries.pairs(store, *queries.arms(store, run_id), scores_of=["tasks"])
    (shown,) = [p.baseline.scores for p in pairs if p.item_id == "1"]
    assert (shown["failure.refusal"], shown["failure.truncated"]) == (1, 0)
    back = replace(base, details={"rescored": {"tasks": pairs[0].baseline.scoring_version}})
    assert failure_rates(store, back)["tasks"] == FailureRates(3, 1, {"truncated": 1}), "old rules, read again"


@pytest.mark.parametrize(("looping", "verdict"), [(60, "REGRESSED"), (0, "PASS")])
def test_a_rate_is_gated_like_any_metric(build, store, looping, verdict):
    """Every answer is right in both arms, and of the candidate's some never stop."""
    run_id = build.run()
    for name, loops in (("base", 0), ("cand", looping)):
        arm_id = build.arm(run_id, name, stages={"prefill": {"weights": "bf16"}, "decode": {"weights": name}})
        samples = [
            build.sample(i, cluster="", scored_by="generation", scores=scores(*["repetition"] * (i < loops)))
            for i in range(400)
        ]
        writer.add_samples(store, run_id, arm_id, samples)
        writer.finish_arm(store, arm_id, None, "declared")
    writer.finish_run(store, run_id)
    rule = {"suite": "tasks", "metric": "free_of.repetition", "margin_points": 5}
    policy = Policy.model_validate({"name": "p", "margins": [rule], "proof": "declared"})
    base, cand = queries.arms(store, run_id)
    pairs = queries.pairs(store, base, cand, scores_of=policy.metric_suites)
    decision = decide_gate(base, cand, pairs, policy)
    (row,) = [row for row in decision.rows if row.metric == "free_of.repetition"]
    assert (row.verdict, decision.verdict) == (verdict, verdict)


@pytest.mark.parametrize(("looping", "errors", "verdict"), [(60, 0, "REGRESSED"), (0, 0, "PASS"), (0, 60, "INVALID")])
def test_a_rate_of_prompts_without_a_right_answer_is_gated(build, store, looping, errors, verdict):
    run_id = build.run()
    for name, loops, failed in (("base", 0, 0), ("cand", looping, errors)):
        arm_id = build.arm(run_id, name, stages={"prefill": {"weights": "bf16"}, "decode": {"weights": name}})
        shown = [scores(*["repetition"] * (i < loops))[1:] for i in range(400)]
        samples = [
            build.error(i, cluster="", metric="", scored_by="generation")
            if i < failed
            else build.sample(i, cluster="", metric="", scored_by="generation", scores=shown[i])
            for i in range(400)
        ]
        writer.add_samples(store, run_id, arm_id, samples)
        writer.finish_arm(store, arm_id, None, "declared")
    writer.finish_run(store, run_id)
    base, cand = queries.arms(store, run_id)
    rule = {"suite": "tasks", "metric": "free_of.repetition", "margin_points": 5}
    policy = Policy.model_validate({"name": "p", "margins": [rule], "proof": "declared"})
    pairs = queries.pairs(store, base, cand, scores_of=policy.metric_suites)
    decision = decide_gate(base, cand, pairs, policy)
    assert decision.verdict == verdict
    assert [row.scope for row in decision.rows] == ["metric"] and decision.rows[0].lost == looping
    assert any("not whether answers are right" in note for note in decision.notes)
    with pytest.raises(ConfigError, match=r"free_of\.nothing"):
        wrong = Policy.model_validate({"name": "p", "margins": [rule | {"metric": "free_of.nothing"}]})
        decide_gate(base, cand, pairs, wrong)


def test_gibberish_is_read_beside_the_baseline_in_both_arms(build, store):
    """No answer is gibberish by itself; the candidate's tokens come as the baseline's never do."""
    run_id = build.run()
    bits = "failure.bits_per_token"
    for name, odd in (("base", 0), ("cand", 7)):
        arm_id = build.arm(run_id, name)
        samples = [
            build.sample(
                i,
                metric="",
                scores=(
                    NewScore(metric="failure.any", filter="none", value=0.0),
                    NewScore(metric=bits, filter="none", value=1.5 if i < odd else 5.0 + i % 10 / 20),
                ),
            )
            for i in range(40)
        ]
        writer.add_samples(store, run_id, arm_id, samples)
    base, cand = queries.arms(store, run_id)
    pairs = queries.pairs(store, base, cand, scores_of=["tasks"])
    assert sum(pair.candidate.scores["failure.gibberish"] for pair in pairs) == 7
    assert sum(1 - pair.candidate.scores["free_of.any"] for pair in pairs) == 7
    assert sum(pair.baseline.scores["failure.gibberish"] for pair in pairs) == 0
    assert failure_rates(store, cand, base)["tasks"] == FailureRates(40, 7, {"gibberish": 7})
    assert failure_rates(store, base, base)["tasks"] == failure_rates(store, cand)["tasks"] == FailureRates(40, 0, {})
