"""Failure modes in the store: rates of the newest scoring version, and zeros where a policy reads them."""

from dataclasses import replace

import pytest
from sqlalchemy import select

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
