"""Rules of a policy on hand-made pairs: guarded families, metrics in their own units, floors."""

import json
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from evalsvc.evidence import check_aa
from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from tests.evalsvc import by_hand
from tests.evalsvc.by_hand import arm

BASE, KV8 = arm("base"), arm("kv8", "fp8")


def side(value, scores, missing):
    return by_hand.side(None) if missing else replace(by_hand.side(), value=value, scores=scores)


def pair(suite, number, base, cand, *, family="f", scores=({}, {}), missing=False, **fields):
    sides = side(base, scores[0], False), side(cand, scores[1], missing)
    return by_hand.pair(*sides, suite=suite, family=family, item_id=f"{family}{number}", **fields)


def items(suite, n, lost=0, gained=0, **fields):
    """A quarter of the items wrong in both arms."""
    values = [(1.0, 0.0)] * lost + [(0.0, 1.0)] * gained + [(0.0, 0.0)] * (n // 4)
    values += [(1.0, 1.0)] * (n - len(values))
    return [pair(suite, i, base, cand, **fields) for i, (base, cand) in enumerate(values)]


def texts(n, factor, *, parts=True, missing=(), spread=0.02):
    """Documents of a perplexity suite; `factor` is the candidate's perplexity over the baseline's."""
    rng = np.random.default_rng(5)
    made = []
    for i in range(n):
        weight = float(rng.integers(20, 80))
        ours = -weight * rng.normal(2.0, 0.1)
        theirs = ours - weight * (np.log(factor) + rng.normal(0, spread))
        scores = [
            {"ppl": exp(-ll / weight), **({"ppl.0": ll, "ppl.1": weight} if parts else {})} for ll in (ours, theirs)
        ]
        made.append(
            pair(
                "wiki", i, scores[0]["ppl"], scores[1]["ppl"], metric="ppl", scores=tuple(scores), missing=i in missing
            )
        )
    return made


def decide(pairs, *rules, **fields):
    policy = Policy(**{"name": "test", "margin_points": 5.0, "guard_points": 15.0, "margins": list(rules), **fields})
    return decide_gate(BASE, KV8, pairs, policy)


def row(decision, scope, **names):
    (found,) = (r for r in decision.rows if r.scope == scope and all(getattr(r, k) == v for k, v in names.items()))
    return found


PERPLEXITY = {"suite": "wiki", "metric": "ppl", "margin": 0.2, "better": "lower", "statistic": "perplexity"}


# suites and families


def test_a_rule_for_a_suite_goes_before_the_guard_and_one_that_names_its_metric_before_that():
    pairs = items("tools", 200, 3)
    assert row(decide(pairs), "suite").margin == 0.15
    assert row(decide(pairs, {"suite": "tools", "margin_points": 3}), "suite").margin == 0.03
    both = [{"suite": "tools", "margin_points": 3}, {"suite": "tools", "metric": "exact", "margin_points": 4}]
    for rules in (both, both[::-1]):
        decision = decide(pairs, *rules)
        assert row(decision, "suite").margin == 0.04
        assert [r.scope for r in decision.rows] == ["pooled", "suite", "family"], "its own metric makes no second row"


def test_a_guarded_family_is_listed_and_blocks_only_when_strict():
    pairs = items("tools", 300, family="easy") + items("tools", 20, family="multi")
    rule = {"suite": "tools", "family": "multi", "margin_points": 5}
    listed = decide(pairs, rule)
    assert (listed.verdict, row(listed, "family", family="multi").verdict) == ("PASS", "INCONCLUSIVE")
    assert row(listed, "family", family="easy").verdict is None
    assert any("guard not proven: tools/multi" in note for note in listed.notes)
    assert decide(pairs, rule, guards="strict").verdict == "INCONCLUSIVE"
    assert row(decide(pairs, rule), "family", family="multi").margin == 0.05


def test_a_family_regresses_only_through_its_suite():
    """8 of 40 lost is p = .004 by itself; among 2,000 quiet items of its suite the suite stands, and so does it."""
    rule = {"suite": "tools", "family": "multi", "margin_points": 5}
    lost = items("tools", 40, 8, family="multi")
    quiet = items("tools", 400, 18, 18, family="easy")
    decision = decide(lost + quiet, rule)
    found = row(decision, "family", family="multi")
    assert found.p < 0.01 and found.p_adjusted is None and not found.flagged
    assert (decision.verdict, found.verdict) == ("PASS", "INCONCLUSIVE")
    alone = decide(lost + items("tools", 400, 2, 0, family="easy"), rule)
    found = row(alone, "family", family="multi")
    assert row(alone, "suite").p_adjusted < 0.05 and row(alone, "suite").verdict == "PASS"
    assert found.p_adjusted == pytest.approx(2 * found.p) and found.flagged
    assert (found.verdict, alone.verdict, alone.exit_code) == ("REGRESSED", "REGRESSED", 1)
    assert "tools/multi: lost 8" in alone.sentence and "after Benjamini-Hochberg" in alone.sentence


def test_flagged_families_of_a_lost_suite_are_named_without_a_rule_for_them():
    pairs = items("tools", 60, 30, family="bad") + items("tools", 60, 1, 1, family="good")
    decision = decide(pairs)
    assert decision.verdict == "REGRESSED"
    assert row(decision, "family", family="bad").flagged and not row(decision, "family", family="good").flagged
    (note,) = (note for note in decision.notes if note.startswith("lost inside suite tools"))
    assert "bad (p < .0001)" in note and "good" not in note
    assert row(decision, "family", family="bad").verdict is None, "a flag is no verdict"


def test_flags_are_false_in_at_most_alpha_of_undamaged_candidates():
    rng, false = np.random.default_rng(3), 0
    for _ in range(100):
        pairs = []
        for family in "abcde":
            flips = rng.random(60)
            values = [(1.0, 0.0) if f < 0.1 else (0.0, 1.0) if f < 0.2 else (1.0, 1.0) for f in flips]
            pairs += [pair("s", i, b, c, family=family) for i, (b, c) in enumerate(values)]
        false += any(r.flagged for r in decide(pairs).rows)
    assert false / 100 <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5


# metrics in units of their own


def test_a_metric_in_its_own_units_needs_a_margin_in_them():
    decision = decide(items("tools", 200) + texts(60, 1.0))
    assert decision.exit_code == 4 and "ppl between 0 and 1 (a metric in units of its own" in decision.sentence


@pytest.mark.parametrize(
    ("factor", "verdict", "severity"),
    [(1.0, "PASS", None), (1.05, "REGRESSED", "beyond margin"), (1.027, "REGRESSED", "drop proven")],
)
def test_perplexity_has_a_row_of_its_own_that_decides(factor, verdict, severity):
    decision = decide(items("tools", 200) + texts(80, factor), PERPLEXITY)
    found = row(decision, "metric")
    assert (decision.verdict, found.verdict, found.severity) == (verdict, verdict, severity)
    assert (found.unit, found.better, found.n) == ("ppl", "lower", 80)
    assert found.candidate_value - found.baseline_value == pytest.approx(found.drop)
    assert found.method.startswith("permutation") and "bootstrap over items" in found.method
    assert row(decision, "pooled").n == 200, "it is in no sum of 0/1 items"
    if verdict == "REGRESSED":
        assert "ppl 7." in decision.sentence and "(lower is better), worse by" in decision.sentence
        assert "one-sided permutation p" in decision.sentence


def test_holm_counts_it():
    pairs = items("a", 30, 5) + items("b", 100)
    alone, beside = decide(pairs), decide(pairs + texts(80, 1.0), PERPLEXITY)
    p = row(alone, "suite", suite="a").p
    assert row(alone, "suite", suite="a").p_adjusted == pytest.approx(3 * p)
    assert row(beside, "suite", suite="a").p_adjusted == pytest.approx(4 * p)


def test_a_mean_in_its_own_units_is_tested_by_sign_flips():
    rule = {"suite": "wiki", "metric": "ppl", "margin": 0.2, "better": "lower"}
    decision = decide(items("tools", 200) + texts(80, 1.05, parts=False), rule)
    assert (decision.verdict, row(decision, "metric").method) == ("REGRESSED", "sign-flip, t and score bound")
    wrong_way = decide(items("tools", 200) + texts(80, 1.05, parts=False), {**rule, "better": "higher"})
    assert wrong_way.verdict == "PASS" and row(wrong_way, "metric").drop < 0


def test_without_parts_a_corpus_metric_is_no_evidence():
    decision = decide(items("tools", 200) + texts(80, 1.0, parts=False), PERPLEXITY)
    assert decision.exit_code == 4 and "no parts of ppl (log-likelihood, weight): 80 items" in decision.sentence


@pytest.mark.parametrize(("lost", "verdict"), [(0, "PASS"), (40, "REGRESSED")])
def test_bleu_of_a_corpus_is_judged_by_its_counts(lost, verdict):
    """Ten counts a document; of some documents of the candidate half of the words are wrong."""
    whole, half = [12, 12, 12, 11, 10, 9, 12, 11, 10, 9], [12, 12, 6, 3, 1, 0, 12, 11, 10, 9]
    made = []
    for n in range(120):
        sides = (whole if n % 3 else half, half if n < lost or n % 3 == 0 else whole)
        scores = tuple({f"bleu.{part}": float(count) for part, count in enumerate(counts)} for counts in sides)
        made.append(pair("translate", n, None, None, metric="bleu", scores=scores))
    rule = {"suite": "translate", "metric": "bleu", "margin": 3.0, "statistic": "bleu"}
    decision = decide(made, rule)
    found = row(decision, "metric")
    assert (decision.verdict, found.verdict, found.unit, found.n) == (verdict, verdict, "bleu", 120)
    assert 60 < found.baseline_value < 90 and found.method.startswith("permutation")
    short = [replace(p, candidate=replace(p.candidate, scores={"bleu.0": 1.0})) for p in made[:60]]
    refused = decide(short + made[60:], rule)
    assert refused.exit_code == 4 and "no parts of bleu (lengths, matching and all n-grams)" in refused.sentence


def test_without_any_0_1_item_every_row_has_to_pass():
    assert decide(texts(80, 1.0), PERPLEXITY).verdict == "PASS"
    assert decide(texts(4, 1.0, spread=0.2), PERPLEXITY).verdict == "INCONCLUSIVE"
    assert decide(texts(80, 1.05), PERPLEXITY).verdict == "REGRESSED"


def test_an_aa_is_made_of_items_from_0_to_1_alone():
    """Bits per byte may lie between 0 and 1 too, and is no share of right answers all the same."""
    policy = Policy(name="p", margins=[PERPLEXITY])
    halves = [pair("wiki", i, 0.5, 0.4, metric="ppl") for i in range(50)]
    found = check_aa(items("tools", 200, 1) + halves, "2:base", policy)
    assert found is not None and (found.n, found.lost) == (200, 1)
    assert found.left_out == ("50 of 50 items of wiki in units of their own",)
    nothing = check_aa(halves, "2:base", policy)
    assert nothing is not None and (nothing.n, nothing.failed, nothing.discordance) == (0, False, None)


def test_an_unanswered_item_of_a_metric_without_a_worst_value_takes_the_pass_away():
    quiet = items("tools", 200) + texts(80, 1.0, missing=(3,))
    decision = decide(quiet, PERPLEXITY)
    assert row(decision, "metric").verdict == "INCONCLUSIVE" and row(decision, "metric").n == 79
    assert any("guard not proven: suite wiki, ppl" in note for note in decision.notes)
    assert decide(items("tools", 200) + texts(80, 1.05, missing=(3,)), PERPLEXITY).verdict == "REGRESSED"


def test_a_secondary_metric_named_by_a_rule_gets_a_row_in_points():
    scores = [({"acc_norm": 1.0}, {"acc_norm": float(i >= 60)}) for i in range(200)]
    pairs = [pair("tasks", i, 1.0, 1.0, scores=scores[i]) for i in range(200)]
    assert [r.scope for r in decide(pairs).rows] == ["pooled", "suite", "family"]
    decision = decide(pairs, {"suite": "tasks", "metric": "acc_norm", "margin_points": 3})
    found = row(decision, "metric", metric="acc_norm")
    assert (found.verdict, found.lost, found.margin, found.unit) == ("REGRESSED", 60, 0.03, "")
    assert row(decision, "suite").verdict == "PASS" and decision.verdict == "REGRESSED"
    assert "suite tasks, acc_norm: lost 60, gained 0 of 200; drop 30.00 points" in decision.sentence


def test_a_secondary_metric_that_one_arm_lacks_is_no_evidence():
    pairs = [pair("tasks", i, 1.0, 1.0, scores=({"acc_norm": 1.0}, {})) for i in range(200)]
    decision = decide(pairs, {"suite": "tasks", "metric": "acc_norm", "margin_points": 3})
    assert decision.exit_code == 4 and "no score of acc_norm between 0 and 1" in decision.sentence


def test_json_holds_no_points_where_there_are_none():
    decision = decide(items("tools", 200) + texts(80, 1.05), PERPLEXITY)
    document = json.loads(json.dumps(decision.to_json(), allow_nan=False))
    (found,) = (r for r in document["rows"] if r["level"] == "metric")
    assert found["drop_points"] is None and found["margin_points"] is None
    assert found["in_units"]["margin"] == 0.2 and found["unit"] == "ppl"
    assert found["in_units"]["drop"] == pytest.approx(row(decision, "metric").drop)
    pooled = document["rows"][0]
    assert (pooled["unit"], pooled["in_units"], pooled["margin_points"]) == ("points", None, 5.0)
    json.dumps(decide(texts(1, 1.0), PERPLEXITY).to_json(), allow_nan=False)  # no bound at all


# floors


@pytest.mark.parametrize(
    ("floor", "strict", "verdict", "severity"),
    [
        (60, False, "PASS", None),
        (74, False, "PASS", None),
        (74, True, "INCONCLUSIVE", None),
        (90, False, "REGRESSED", "below floor"),
    ],
)
def test_a_floor_is_about_the_candidate_alone(floor, strict, verdict, severity):
    """150 of 200 right in both arms: between 69.6 and 79.9 % at 5 % a side."""
    rule = {"suite": "tools", "floor_points": floor}
    decision = decide(items("tools", 200), rule, guards="strict" if strict else "listed")
    found = row(decision, "suite")
    assert (decision.verdict, decision.severity) == (verdict, severity)
    assert found.candidate_bounds == pytest.approx((0.6948, 0.7994), abs=0.001) and found.floor == floor / 100
    if floor > 69:
        assert "candidate 75.00 [69." in " ".join((decision.sentence, *decision.notes))


def test_floors_share_alpha():
    rules = [{"suite": name, "floor_points": 60} for name in "abcde"]
    pairs = [p for name in "abcde" for p in items(name, 200)]
    one = row(decide(items("a", 200), rules[0]), "suite").candidate_bounds
    five = row(decide(pairs, *rules), "suite", suite="a").candidate_bounds
    assert five[0] < one[0] and five[1] > one[1]


def test_a_floor_of_items_that_flip_together_is_wider():
    rule = {"suite": "tools", "floor_points": 60}
    alone = [pair("tools", i, float(i >= 50), float(i >= 50)) for i in range(200)]
    together = [pair("tools", i, float(i >= 50), float(i >= 50), cluster=f"c{i // 25}") for i in range(200)]
    narrow, wide = (row(decide(pairs, rule), "suite").candidate_bounds for pairs in (alone, together))
    assert wide[0] < narrow[0] and wide[1] >= narrow[1]


def test_a_logged_log_likelihood_is_the_part_of_a_perplexity_without_weights():
    """lm-eval logs LAMBADA's `perplexity` of a document as its log-likelihood; a positive number is none."""
    pairs = [
        replace(
            made,
            baseline=replace(made.baseline, scores={"ppl": -2.0 - i % 7 / 10}),
            candidate=replace(made.candidate, scores={"ppl": -2.0 - i % 7 / 10 - i % 5 / 100}),
        )
        for i, made in enumerate(texts(80, 1.0, parts=False))
    ]
    decision = decide(items("tools", 200) + pairs, PERPLEXITY)
    (row,) = [row for row in decision.rows if row.scope == "metric"]
    ours, theirs = (
        exp(-sum(side.scores["ppl"] for side in sides) / 80)
        for sides in ([p.baseline for p in pairs], [p.candidate for p in pairs])
    )
    assert row.n == 80 and row.verdict != "INVALID" and row.drop == pytest.approx(theirs - ours)
