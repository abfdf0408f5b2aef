"""The gate on hand-made pairs: every reason to refuse, the release rule, the precedence."""

import json
import sys
from dataclasses import replace
from zlib import crc32

import pytest

from evalsvc.errors import ConfigError
from evalsvc.evidence import check_aa, differing_factors
from evalsvc.gate import combine_exit_codes, decide_gate, provable_sentence, smallest_provable
from evalsvc.policy import Policy
from tests.evalsvc import by_hand
from tests.evalsvc.by_hand import BF16

POLICY = Policy(name="test", margin_points=5.0, guard_points=15.0)
PREFILL, DECODE = {"prefill": 1}, {"prefill": 1, "decode": 9}


def arm(name, *, run_id=1, decode=None, prefill=None, **fields):
    stages = {"prefill": {**BF16, **(prefill or {})}, "decode": {**BF16, **(decode or {})}}
    number = crc32(f"{run_id}:{name}".encode())
    return by_hand.arm(name, **{"id": number, "run_id": run_id, "stages": stages, **fields})


def side(value, tokens=DECODE, **fields):
    met = {"stage_tokens": tokens if value is not None else {}, "handed_over": "decode" in tokens}
    return by_hand.side(value, **met, **fields)


def pair(suite, number, base=1.0, cand=1.0, *, family="f", through="", tokens=DECODE, **fields):
    kind = "loglikelihood" if through else "generation"
    about = {"suite": suite, "family": family, "item_id": f"{family}{number}", "through": through, "scored_by": kind}
    return by_hand.pair(side(base, tokens), side(cand, tokens), **about, **fields)


def suite(name, n, lost=0, gained=0, **fields):
    """A quarter of the items wrong in both arms, so that neither floor nor ceiling is near."""
    wrong = n // 4
    values = [(1.0, 0.0)] * lost + [(0.0, 1.0)] * gained + [(0.0, 0.0)] * wrong
    values += [(1.0, 1.0)] * (n - len(values))
    return [pair(name, i, base, cand, **fields) for i, (base, cand) in enumerate(values)]


BASE = arm("base")
KV8 = arm("kv8", decode={"kv": "fp8:token-head"})
GOOD = suite("tasks", 80, 1, 1) + suite("tools", 60) + suite("formats", 60, 0, 1)


def decide(pairs, candidate=KV8, baseline=BASE, policy=POLICY, aa=None):
    return decide_gate(baseline, candidate, pairs, policy, aa)


def with_rules(*rules, **fields):
    return Policy(**{"name": "test", "margin_points": 5.0, "guard_points": 15.0, "margins": list(rules), **fields})


def row(decision, scope, name="", through=None):
    found = [r for r in decision.rows if r.scope == scope and name in (r.suite, r.family)]
    return next(r for r in found if through is None or r.through == through)


def edited(pairs, index, role, **fields):
    changed = list(pairs)
    changed[index] = replace(changed[index], **{role: replace(getattr(changed[index], role), **fields)})
    return changed


def test_an_undamaged_candidate_passes_with_the_numbers_in_the_sentence():
    decision = decide(GOOD)
    assert (decision.verdict, decision.exit_code) == ("PASS", 0)
    assert "lost 1, gained 2 of 200; drop -0.50 points, 95 % [" in decision.sentence
    assert "margin 5.0; one-sided exact p = " in decision.sentence
    assert decision.sentence.endswith("; factors met: decode.kv"), "a PASS names what it covers"
    assert decision.differing_factors == ("decode.kv",) and decision.pairing_verified


def test_one_damaged_suite_is_enough():
    decision = decide(suite("tasks", 80) + suite("tools", 60) + suite("formats", 60, 40))
    assert (decision.verdict, decision.exit_code, decision.severity) == ("REGRESSED", 1, "beyond margin")
    assert row(decision, "suite", "formats").verdict == "REGRESSED"
    assert row(decision, "suite", "tools").verdict == "PASS"


def test_a_small_drop_everywhere_is_seen_in_the_pooled_row_only():
    decision = decide(suite("a", 300, 18, 3) + suite("b", 300, 18, 3) + suite("c", 300, 18, 3))
    assert decision.verdict == "REGRESSED"
    assert row(decision, "pooled").verdict == "REGRESSED"
    assert {row(decision, "suite", name).verdict for name in "abc"} == {"PASS"}
    assert all(row(decision, "suite", name).drop_detected for name in "abc")


def test_holm_takes_back_a_flag_that_one_of_many_suites_raises_by_luck():
    lucky = suite("a", 30, 5)
    alone = decide(lucky)
    assert alone.verdict == "REGRESSED"
    among = decide(lucky + [p for name in "bcdefghij" for p in suite(name, 100)])
    assert row(among, "suite", "a").p < 0.05 < row(among, "suite", "a").p_adjusted
    assert (among.verdict, row(among, "suite", "a").verdict) == ("PASS", "INCONCLUSIVE")


def test_inconclusive_guards_are_listed_and_block_only_when_strict():
    pairs = suite("tasks", 200) + suite("tiny", 8)
    decision = decide(pairs)
    assert decision.verdict == "PASS" and any("guard not proven: suite tiny (bound" in note for note in decision.notes)
    strict = decide(pairs, policy=POLICY.model_copy(update={"guards": "strict"}))
    assert (strict.verdict, strict.exit_code) == ("INCONCLUSIVE", 3)


def test_too_few_items_are_inconclusive_and_say_how_many_would_decide():
    decision = decide(suite("tasks", 30))
    assert (decision.verdict, decision.exit_code) == ("INCONCLUSIVE", 3)
    assert "more items would decide" in decision.sentence


# factors


def test_factors_come_from_stages():
    assert differing_factors(BASE, arm("x", prefill={"checkpoint": "c1"})) == ("prefill.weights",)
    assert differing_factors(BASE, arm("x", decode={"fault": "k_scale*0.25"})) == ("decode.kv",)
    assert differing_factors(BASE, arm("x", prefill={"weights": "fp8"}, decode={"weights": "fp8"})) == (
        "prefill.weights",
        "decode.weights",
    )


def scored_twice(n, lost_in_decode):
    """One log-likelihood family: unchanged through prefill, damaged through decode."""
    prefill = suite("tasks", n, through="prefill", tokens=PREFILL)
    decode = suite("tasks", n, lost_in_decode, through="decode", tokens={"decode": 3})
    return prefill + [
        replace(p, baseline=replace(p.baseline, handed_over=True), candidate=replace(p.candidate, handed_over=True))
        for p in decode
    ]


def test_a_prefill_row_is_blind_to_a_decode_format_and_its_decode_row_counts():
    decision = decide(scored_twice(100, 60))
    blind, counting = row(decision, "family", "f", "prefill"), row(decision, "family", "f", "decode")
    assert blind.blind and blind.verdict is None and not counting.blind
    assert row(decision, "pooled").n == 100 and row(decision, "pooled").lost == 60
    assert decision.verdict == "REGRESSED"


def test_a_prefill_difference_counts_the_prefill_row_once():
    decision = decide(scored_twice(100, 60), candidate=arm("w8", prefill={"weights": "fp8"}))
    assert row(decision, "pooled").n == 100 and row(decision, "pooled").lost == 0
    shown = row(decision, "family", "f", "decode")
    assert not shown.counted and not shown.blind and shown.factors_met == ("prefill.weights",)


def test_a_blind_suite_is_left_out_of_sums_and_decision():
    seen = suite("tools", 200)
    blind = suite("tasks", 200, 90, through="prefill", tokens=PREFILL)  # lost, but not to a decode format
    decision = decide(seen + blind)
    assert decision.verdict == "PASS" and row(decision, "pooled").n == 200
    assert row(decision, "suite", "tasks").blind and row(decision, "suite", "tasks").verdict == "INVALID"
    assert any("blind" in note and "tasks" in note for note in decision.notes)


def test_a_differing_factor_that_no_suite_meets_is_invalid():
    decision = decide(suite("tasks", 200, through="prefill", tokens=PREFILL))
    assert decision.exit_code == 4 and decision.uncovered_factors == ("decode.kv",)
    both = arm("both", decode={"kv": "fp8"}, prefill={"kv": "fp8"})
    alone = [replace(p, baseline=replace(p.baseline, handed_over=False, stage_tokens={"decode": 1})) for p in GOOD]
    assert decide(alone, candidate=both).uncovered_factors == ("prefill.kv",)


# what cannot carry a verdict


INVALID = {
    "no samples": ([], KV8),
    "no item is scored": ([pair("tasks", 0, None, None)], KV8),
    "unequal item": (edited(GOOD, 3, "candidate", item_hash="other"), KV8),
    "unequal request": (edited(GOOD, 3, "candidate", request_hash="other"), KV8),
    "unequal settings": (edited(GOOD, 3, "candidate", settings_hash="other"), KV8),
    "unequal rendered": (edited(GOOD, 3, "candidate", rendered_hash="other"), KV8),
    "scored by unequal versions": (
        edited(edited(GOOD, 3, "baseline", scoring_version="1"), 3, "candidate", scoring_version="2"),
        KV8,
    ),
    "present in the baseline only": ([*GOOD[1:], replace(GOOD[0], candidate=None)], KV8),
    "present in the candidate only": ([*GOOD[1:], replace(GOOD[0], baseline=None)], KV8),
    "more than one answer of one repeat": ([*GOOD, GOOD[0]], KV8),
    "no score of exact between 0 and 1": (edited(GOOD, 3, "candidate", value=1.5), KV8),
    "no score of exact": (edited(GOOD, 3, "candidate", value=float("nan")), KV8),
    "in units of its own needs a margin": (edited(GOOD, 3, "candidate", value=None), KV8),
    "unfinished": (GOOD, replace(KV8, status="running")),
    "holds 200 of 201 samples": (GOOD, replace(KV8, expected=201)),
    "does not match its plan": (GOOD, replace(KV8, proof_status="mismatched")),
    "(proof odd)": (GOOD, replace(KV8, proof_status="odd")),
    "has no proof": (GOOD, replace(KV8, proof_status=None)),
    "declared, not measured": (GOOD, replace(KV8, proof_status="declared")),
    "of suite tasks have no score": (
        [replace(p, candidate=side(None)) if i < 2 else p for i, p in enumerate(GOOD)],
        KV8,
    ),
    "no suite met": (suite("tasks", 200, through="prefill", tokens=PREFILL), KV8),
}


@pytest.mark.parametrize("says", INVALID)
def test_what_cannot_carry_a_verdict_exits_4(says):
    pairs, candidate = INVALID[says]
    decision = decide(pairs, candidate=candidate)
    assert (decision.verdict, decision.exit_code) == ("INVALID", 4)
    assert any(says in reason for reason in decision.reasons), decision.reasons
    assert all(r.verdict in (None, "INVALID") for r in decision.rows), "a word beside a broken pairing misleads"
    json.dumps(decision.to_json(), allow_nan=False)


def test_the_baseline_is_held_to_the_same():
    for fields in ({"status": "running"}, {"proof_status": "mismatched"}, {"expected": 999}):
        assert decide(GOOD, baseline=replace(BASE, **fields)).exit_code == 4


def test_errors_of_the_baseline_count_against_the_limit_too():
    broken = [replace(p, baseline=side(None)) if i < 2 else p for i, p in enumerate(GOOD)]
    assert any("baseline: 2 of 80 samples of suite tasks" in reason for reason in decide(broken).reasons)


def test_what_the_policy_may_allow():
    declared = POLICY.model_copy(update={"proof": "declared"})
    assert decide(GOOD, candidate=replace(KV8, proof_status="declared"), policy=declared).verdict == "PASS"
    assert decide(GOOD, candidate=replace(KV8, proof_status="mismatched"), policy=declared).exit_code == 4
    differ = POLICY.model_copy(update={"rendering": "may_differ"})
    decision = decide(edited(GOOD, 3, "candidate", rendered_hash="other"), policy=differ)
    assert decision.verdict == "PASS" and not decision.pairing_verified


def test_unknown_rendering_is_allowed_and_said():
    decision = decide(edited(GOOD, 3, "candidate", rendered_hash=None))
    assert decision.verdict == "PASS" and not decision.pairing_verified
    assert any("pairing not verified" in note for note in decision.notes)


def test_a_baseline_on_the_floor_is_no_evidence():
    floor = [pair("tools", i, 0.0, 0.0) for i in range(60)]
    decision = decide(suite("tasks", 200) + floor)
    assert decision.exit_code == 4 and "floor" in decision.sentence
    assert row(decision, "suite", "tools").verdict == "INVALID"


def test_a_regression_elsewhere_outweighs_a_floor():
    floor = [pair("tools", i, 0.0, 0.0) for i in range(60)]
    assert decide(suite("tasks", 200, 90) + floor).exit_code == 1


def test_errors_under_the_limit_that_could_change_the_verdict_are_inconclusive():
    policy = POLICY.model_copy(update={"max_error_points": 10.0})
    broken = [replace(p, candidate=side(None)) if i > 192 else p for i, p in enumerate(suite("tasks", 200))]
    decision = decide(broken, policy=policy)
    assert (decision.verdict, decision.exit_code) == ("INCONCLUSIVE", 3)
    assert "without an answer" in decision.sentence
    one = [replace(p, candidate=side(None)) if i > 198 else p for i, p in enumerate(suite("tasks", 200))]
    assert decide(one, policy=policy).verdict == "PASS"
    assert row(decide(one, policy=policy), "pooled").errors_candidate == 1


def test_an_aa_that_drifts_makes_the_experiment_invalid():
    drifting = check_aa(suite("tasks", 200, 12, 1), "2:base")
    assert drifting and drifting.failed
    assert decide(GOOD, aa=drifting).exit_code == 4
    upwards = check_aa(suite("tasks", 200, 1, 12))
    assert upwards and upwards.failed, "an instrument that drifts upwards hides drops"
    quiet = check_aa(suite("tasks", 200, 2, 1))
    assert quiet and quiet.discordance == pytest.approx(3 / 200)
    assert decide(GOOD, aa=quiet).verdict == "PASS"
    assert check_aa([]) is None
    twice = check_aa(scored_twice(100, 0))
    assert twice and twice.n == 100, "an item that both stages score is one item"


# arms


def test_one_address_twice_is_a_mistake_and_one_arm_in_two_runs_an_aa():
    with pytest.raises(ConfigError, match="baseline and candidate"):
        decide(GOOD, candidate=BASE)
    decision = decide(GOOD, candidate=replace(BASE, run_id=2))
    assert decision.same_arm and decision.verdict == "PASS" and "A/A" in decision.sentence
    assert not any(r.blind for r in decision.rows)


def test_an_aa_finds_noise_and_never_a_regression():
    noisy = [*suite("tasks", 60, 8, 1)]
    again = replace(BASE, run_id=2)
    assert decide(noisy, candidate=again).verdict == "INCONCLUSIVE"
    assert decide(suite("tasks", 60, 20, 1), candidate=again).verdict == "INVALID"


def test_an_injected_arm_is_marked_as_candidate_and_refused_as_baseline():
    damaged = arm("damaged", decode={"fault": "k*0.25"}, injected={"decode_k_scale": 0.25})
    decision = decide(GOOD, candidate=damaged)
    assert "[injected]" in decision.sentence and decision.to_json()["candidate"]["injected"]
    with pytest.raises(ConfigError, match="planted faults"):
        decide(GOOD, baseline=damaged)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"suite": "tols"}, r"rule for suite 'tols', which no arm answered; suites: formats, tasks, tools"),
        ({"suite": "tools", "family": "g"}, r"'tools', family 'g', which no arm answered; families of that suite: f"),
        ({"suite": "tools", "metric": "acc"}, r"suite 'tools', metric 'acc', .*; metrics there: exact"),
    ],
)
def test_a_rule_about_nothing_that_is_stored_is_a_mistake(rule, says):
    with pytest.raises(ConfigError, match=says):
        decide(GOOD, policy=with_rules({**rule, "margin_points": 3}))


# clusters


def test_pooled_clusters_are_prefixes_of_one_family():
    """`p0` of two families is two prefixes; all of one prefix lost is one event."""
    together = [
        pair(name, i, 1.0, 0.0 if i < 12 and name == "a" else 1.0, family=f"{name}f", cluster=f"p{i // 12}")
        for name in "ab"
        for i in range(96)
    ]
    decision = decide(together)
    assert row(decision, "pooled").clusters == 16 and row(decision, "suite", "a").clusters == 8
    assert row(decision, "suite", "a").p > 0.05
    assert decision.verdict == "INCONCLUSIVE"


def test_few_clusters_say_so():
    pairs = [pair("a", i, cluster=f"p{i % 3}") for i in range(200)]
    assert "conditional on these 3 prefixes" in decide(pairs).sentence


# codes, JSON, planning


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 3, 1, 4, 2], 2), ([0, 3, 1, 4], 4), ([0, 3, 1], 1), ([0, 3], 3), ([0, 0], 0), ([], 2), ([0, 9], 2)],
)
def test_precedence(codes, expected):
    assert combine_exit_codes(codes) == expected


def test_the_json_carries_what_the_sentence_and_the_exit_code_say():
    decision = decide(suite("tasks", 80) + suite("formats", 60, 40))
    document = json.loads(json.dumps(decision.to_json(), allow_nan=False))
    assert document["schema"] == "evalsvc.decision/2"
    assert (document["verdict"], document["exit_code"]) == (decision.verdict, decision.exit_code)
    assert document["sentence"] == decision.sentence and document["policy"]["margin_points"] == 5.0
    assert [r["level"] for r in document["rows"]] == ["pooled", "suite", "family", "suite", "family"]
    assert (document["rows"][0]["b"], document["rows"][0]["margin_points"]) == (40, 5.0)


def test_smallest_provable_margin_of_the_demo():
    best = smallest_provable({"tasks": 75, "tools": 53, "formats": 48})
    assert round(100 * best["pooled"], 1) == 1.5 and round(100 * best["formats"], 1) == 5.3
    assert "tiny 27.88 (margin 15.0, out of reach)" in provable_sentence({"tiny": 7}, POLICY)
    assert "out of reach" not in provable_sentence({"tasks": 200}, POLICY)


def test_the_gate_needs_neither_torch_nor_a_database():
    import subprocess

    code = "import sys, evalsvc.gate; print([m for m in ('torch', 'sqlalchemy', 'lm_eval') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def repeated(pairs, repeats):
    """Each item answered several times; `repeats` gives the candidate's value of each repeat of item i."""
    return [
        replace(one, repeat=r, candidate=replace(one.candidate, value=value))
        for i, one in enumerate(pairs)
        for r, value in enumerate(repeats(i))
    ]


def test_repeats_are_averaged_inside_the_item_and_are_no_further_items():
    once, thrice = suite("tasks", 80), repeated(suite("tasks", 80), lambda i: [1.0, 1.0, 1.0] if i >= 20 else [0.0] * 3)
    assert row(decide(thrice), "pooled").n == row(decide(once), "pooled").n == 80
    assert row(decide(thrice), "pooled").upper == row(decide(once), "pooled").upper


def test_fractions_are_tested_by_sign_flips():
    half = repeated(suite("tasks", 80), lambda i: [0.0, 0.0] if i < 20 else [1.0, 0.0] if i < 60 else [1.0, 1.0])
    decision = decide(half)
    pooled = row(decision, "pooled")
    assert (decision.verdict, decision.severity) == ("REGRESSED", "beyond margin")
    assert pooled.method == "sign-flip, t and score bound" and pooled.drop == pytest.approx(0.25) and pooled.lost == 40
    assert "sign-flip p" in decision.sentence
    quiet = repeated(suite("tasks", 400), lambda i: [0.0, 0.0] if i < 100 else [1.0, float(i % 50 > 0)])
    assert decide(quiet).verdict == "PASS"


def test_an_item_whose_repeat_is_missing_counts_as_unanswered():
    pairs = repeated(suite("tasks", 80), lambda i: [1.0, 1.0] if i >= 20 else [0.0, 0.0])
    broken = [replace(p, candidate=None) if (p.item_id, p.repeat) == ("f5", 1) else p for p in pairs]
    assert any("present in the baseline only" in reason for reason in decide(broken).reasons)
    errors = [replace(p, candidate=side(None)) if (p.item_id, p.repeat) == ("f50", 1) else p for p in pairs]
    assert row(decide(errors), "pooled").n == 79


def test_a_baseline_of_fractions_at_chance_is_invalid():
    pairs = [
        replace(p, chance=0.55, baseline=replace(p.baseline, value=0.5), candidate=replace(p.candidate, value=0.25))
        for p in suite("tasks", 80)
    ]
    assert decide(pairs).verdict == "INVALID"


def test_a_pass_over_few_clusters_says_what_it_cannot_rule_out():
    def clustered(clusters):
        items = suite("tasks", 400)
        return [replace(p, cluster=f"c{i % clusters}") for i, p in enumerate(items)]

    few, many = decide(clustered(20)), decide(clustered(100))
    assert few.verdict == many.verdict == "PASS"
    assert any("in none of 20 clusters in 36 % of runs" in note for note in few.notes)  # .95 ** 20 = .358
    assert not any("whole clusters" in note for note in (*many.notes, *decide(GOOD).notes))


def test_arms_of_which_nobody_said_the_formats_are_told_so():
    bare = {"prefill": {}, "decode": {}}
    decision = decide(GOOD, candidate=arm("other", stages=bare), baseline=arm("base", stages=bare))
    assert any("nobody said which formats" in note for note in decision.notes)


def test_a_factor_that_failure_modes_alone_met_is_met_and_the_notes_say_by_what():
    """Answers to prompts without a gold answer are all that decode wrote; a rule gates one of their failure modes."""
    other = arm("other", prefill={"weights": "fp8"}, decode={"kv": "fp8"})
    free = {"free_of.refusal": 1.0, "failure.refusal": 0.0, "failure.any": 0.0}
    bare = [
        replace(p, metric="", baseline=replace(p.baseline, scores=free), candidate=replace(p.candidate, scores=free))
        for p in suite("own", 60)
    ]
    scored = suite("tasks", 80, 1, 1, tokens=PREFILL)
    rule = {"suite": "own", "metric": "free_of.refusal", "margin_points": 8.0}
    decision = decide([*scored, *bare], other, policy=with_rules(rule))
    assert (decision.verdict, decision.uncovered_factors) == ("PASS", ())
    assert "own without `check` or `constraints`" in decision.notes[-1]
    assert decision.notes[-1].endswith("not whether answers are right; decode.kv met by these alone")
    without = decide([*scored, *bare], other)
    assert without.verdict == "INVALID" and "no suite met the differing factor decode.kv" in without.reasons[0]


def test_a_sentence_names_the_test_whose_p_it_gives():
    looked = POLICY.model_copy(update={"design": "sequential", "block_items": 100})
    whole, stopped = (decide(suite("tasks", *numbers), policy=looked) for numbers in ((400, 10, 4), (2000, 3, 3)))
    assert whole.stop is None and "one-sided sequential p = .112" in whole.sentence
    assert stopped.stop is not None and "one-sided sequential p = 1.0" in stopped.sentence
    shared = [replace(p, cluster=f"c{i % 20}") for i, p in enumerate(suite("tasks", 400, 10, 4))]
    assert "one-sided p over 20 clusters" in decide(shared).sentence
    assert "one-sided sequential p over 20 clusters" in decide(shared, policy=looked).sentence
    alone = decide([replace(p, cluster="c") for p in shared])
    assert "one-sided exact p" in alone.sentence and "conditional on this prefix" in alone.sentence


def test_an_aa_that_drifts_is_named_after_the_arm_that_ran_twice():
    drifting = check_aa(suite("tasks", 200, 12, 1), "2:base", of="1:base")
    decision = decide(GOOD, aa=drifting, baseline=arm("other"))
    assert decision.reasons[0].startswith("the A/A check failed: 1:base against itself lost 12")
