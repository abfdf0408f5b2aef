"""Limits beside the margins: answers cut short, latency, throughput, capacity, cost."""

from dataclasses import replace

import pytest

from evalsvc.errors import ConfigError
from evalsvc.gate import decide_gate
from evalsvc.policy import Policy, load_policy
from evalsvc.reports import to_junit, to_markdown
from evalsvc.store.records import Beside, Measurement
from tests.evalsvc import by_hand


def proof(tokens=1000, seconds=10.0, kv_bytes=2**20):
    stage = {"tokens_computed": tokens, "seconds": seconds, "kv": {"bytes_per_token": kv_bytes}}
    return {"prefill": stage, "decode": stage}


def arm(name, kv="bf16", **fields):
    return by_hand.arm(name, kv, **{"details": {"device": "cpu:AVX512"}, "proof": proof(), **fields})


BASE, KV8 = arm("base"), arm("kv8", "fp8")
TIMED = (Beside(seconds=[1.0] * 200), Beside(seconds=[1.0] * 189 + [4.0] * 11))


def pairs(n=200, cut_baseline=0, cut_candidate=0, lost=0):
    """Items whose answers were cut in either arm; a quarter is wrong in both."""

    def side(right, cut):
        return by_hand.side(float(right), finish_reason="length" if cut else "stop")

    return [
        by_hand.pair(
            side(i >= n // 4, i < cut_baseline),
            side(i >= n // 4 + lost, i < cut_candidate),
            suite="tools",
            item_id=str(i),
        )
        for i in range(n)
    ]


def decide(items=None, *, baseline=BASE, candidate=KV8, beside=TIMED, **fields):
    policy = Policy(**{"name": "p", "margin_points": 5.0, "guard_points": 15.0, **fields})
    return decide_gate(baseline, candidate, items or pairs(), policy, beside=beside)


@pytest.mark.parametrize(
    ("cut", "limit", "verdict", "severity"),
    [
        ((0, 0), 5, "PASS", None),
        ((0, 10), 5, "PASS", None),
        ((0, 40), 5, "REGRESSED", "cut short"),
        ((8, 11), 5, "INCONCLUSIVE", None),
        ((20, 20), 5, "INVALID", None),
        ((20, 60), 5, "INVALID", None),
        ((20, 20), 10, "PASS", None),
    ],
)
def test_answers_cut_short(cut, limit, verdict, severity):
    decision = decide(pairs(200, *cut), max_truncation_points=float(limit))
    assert (decision.verdict, decision.severity) == (verdict, severity)
    (found,) = decision.limits
    assert (found.suite, found.baseline, found.candidate) == ("tools", cut[0] / 2, cut[1] / 2)
    if verdict != "PASS":
        assert "were cut by their limit" in decision.sentence
    assert decision.rows[0].verdict == "PASS", "its rows are as they were"


def test_choices_are_never_cut():
    unknown = by_hand.side(finish_reason=None)
    scored = [replace(p, baseline=unknown, candidate=unknown) for p in pairs()]
    decision = decide(scored, max_truncation_points=5.0)
    assert decision.limits == () and decision.verdict == "PASS"


FAST, SLOW = arm("kv8", "fp8", proof=proof(seconds=5.0)), arm("kv8", "fp8", proof=proof(seconds=20.0))
SMALL = arm("kv8", "fp8", proof=proof(kv_bytes=2**19))
PRICED = [
    arm(name, kv, details={"device": "cuda:H200", "cost_per_million_tokens": cost})
    for name, kv, cost in (("base", "bf16", 2.0), ("kv8", "fp8", 1.5))
]


@pytest.mark.parametrize(
    ("key", "limit", "candidate", "kept", "says"),
    [
        ("latency_p50_s", 1.0, KV8, True, "budget latency_p50_s: 1 s on cpu:AVX512 (baseline 1), at most 1"),
        ("latency_p95_s", 3.9, KV8, False, "budget latency_p95_s: 4 s on cpu:AVX512 (baseline 1), at most 3.9"),
        ("latency_p99_ratio", 4.0, KV8, True, "budget latency_p99_ratio: 4 of the baseline's on cpu:AVX512, at most 4"),
        ("latency_p99_ratio", 3.9, KV8, False, "at most 3.9"),
        ("throughput_tokens_s", 200.0, FAST, True, "200 tokens/s on cpu:AVX512 (baseline 100), at least 200"),
        ("throughput_ratio", 0.9, SLOW, False, "0.5 of the baseline's on cpu:AVX512, at least 0.9"),
        ("capacity_tokens_per_gib", 2048.0, SMALL, True, "2048 tokens/GiB (baseline 1024), at least 2048"),
        ("capacity_ratio", 1.8, KV8, False, "budget capacity_ratio: 1 of the baseline's, at least 1.8"),
    ],
)
def test_budgets_hold_what_was_measured_against_their_limits(key, limit, candidate, kept, says):
    decision = decide(candidate=candidate, budgets={key: limit})
    (found,) = decision.limits
    assert says in found.reason
    assert (decision.verdict, decision.exit_code) == (("PASS", 0) if kept else ("REGRESSED", 1))
    if not kept:
        assert decision.severity == "budget" and says in decision.sentence
    assert {r.verdict for r in decision.rows if r.scope != "family"} == {"PASS"}


def test_cost_comes_from_the_arms_details():
    kept = decide(baseline=PRICED[0], candidate=PRICED[1], budgets={"cost_ratio": 0.8})
    assert kept.verdict == "PASS" and kept.limits[0].candidate == 0.75
    broken = decide(baseline=PRICED[0], candidate=PRICED[1], budgets={"cost_per_million_tokens": 1.4})
    assert "1.5 per million tokens on cuda:H200 (baseline 2), at most 1.4" in broken.sentence


GPU = arm("kv8", "fp8", details={"device": "cuda:H200"})


@pytest.mark.parametrize(
    ("budgets", "candidate", "beside", "says"),
    [
        ({"cost_ratio": 1.0}, KV8, TIMED, "no measurement of cost is stored for 1:base"),
        ({"cost_per_million_tokens": 1.0}, KV8, TIMED, "no measurement of cost is stored for 1:kv8"),
        ({"latency_p95_s": 1.0}, KV8, (Beside(), Beside()), "no measurement of latency is stored for 1:kv8"),
        ({"latency_p95_ratio": 1.0}, KV8, (Beside(), TIMED[1]), "no measurement of latency is stored for 1:base"),
        ({"throughput_ratio": 1.0}, replace(KV8, proof={}), TIMED, "no measurement of throughput is stored for 1:kv8"),
        ({"capacity_ratio": 1.0}, replace(KV8, proof=None), TIMED, "no measurement of capacity is stored for 1:kv8"),
        ({"latency_p95_ratio": 9.0}, GPU, TIMED, "unequal device classes (cpu:AVX512 and cuda:H200)"),
        ({"latency_p95_s": 9.0}, replace(KV8, details={}), TIMED, "the device class of 1:kv8 is not known"),
        ({"latency_p95_s": 9.0, "device": "cuda"}, KV8, TIMED, "it is for cuda, and 1:kv8 ran on cpu:AVX512"),
        ({"latency_p95_s": 9.0}, KV8, (Beside(), Beside(seconds=[float("nan")])), "no measurement of latency"),
    ],
)
def test_what_nobody_measured_is_refused_by_name(budgets, candidate, beside, says):
    decision = decide(candidate=candidate, beside=beside, budgets=budgets)
    assert (decision.verdict, decision.exit_code) == ("INVALID", 4) and says in decision.sentence
    assert {r.verdict for r in decision.rows if r.scope != "family"} == {"PASS"}


def measured(name, ttft, wall, concurrency=4, **fields):
    """A cell of serving: 10 answers of 8 tokens after prompts of 32."""
    blank = {
        "fingerprint": name,
        "arm": name,
        "plan": "p",
        "device": "cpu:AVX512",
        "settings_hash": "s",
        "settings": {},
    }
    figures = {"ttft_s": [ttft] * 10, "itl_s": [ttft / 10] * 70, "e2e_s": [2 * ttft] * 10}
    figures |= {"prompt_tokens": 320, "generated_tokens": 80, "wall_s": wall}
    cell = {"kind": "serving", "prompt_tokens": 32, "concurrency": concurrency, "figures": figures}
    return Measurement(**{**blank, **cell, **fields})


def priced(name, per_hour):
    return measured(name, 0, 0, 0, kind="price", prompt_tokens=0, settings_hash="", figures={"per_hour": per_hour})


SERVED = (
    Beside(serving=[measured("base", 0.5, 2.0), priced("base", 3.6)]),
    Beside(serving=[measured("kv8", 0.25, 1.0), measured("kv8", 1.0, 1.0, 8), priced("kv8", 3.6)]),
)
CELL = {"prompt_tokens": 32, "concurrency": 4}


@pytest.mark.parametrize(
    ("budgets", "kept", "says"),
    [
        ({"ttft_p95_s": 0.3}, True, "0.25 s on cpu:AVX512 (baseline 0.5), at most 0.3"),
        ({"ttft_p50_ratio": 0.4}, False, "0.5 of the baseline's on cpu:AVX512, at most 0.4"),
        ({"itl_p99_s": 0.02}, False, "0.025 s on cpu:AVX512 (baseline 0.05), at most 0.02"),
        ({"generated_tokens_s": 80.0}, True, "80 tokens/s on cpu:AVX512 (baseline 40), at least 80"),
        ({"generated_ratio": 2.1}, False, "2 of the baseline's on cpu:AVX512, at least 2.1"),
        ({"cost_per_million_tokens": 2.6}, True, "2.5 per million tokens on cpu:AVX512 (baseline 5), at most 2.6"),
    ],
)
def test_budgets_of_serving_are_held_against_the_cell_that_they_name(budgets, kept, says):
    decision = decide(beside=SERVED, budgets={**CELL, **budgets})
    assert says in decision.limits[0].reason and decision.verdict == ("PASS" if kept else "REGRESSED")


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ({"ttft_p95_s": 9.0}, "of 1:kv8 was measured in 2 cells; name one with prompt_tokens and concurrency"),
        (
            {"ttft_p95_s": 9.0, "concurrency": 16},
            "no measurement of time to first token is stored for 1:kv8; `evalsvc ",
        ),
        ({"generated_ratio": 0.1, "concurrency": 8}, "no measurement of generated tokens is stored for 1:base"),
    ],
)
def test_a_cell_that_is_not_the_one_is_refused_by_name(budgets, says):
    decision = decide(beside=SERVED, budgets=budgets)
    assert decision.verdict == "INVALID" and says in decision.sentence


def test_capacity_without_a_proof_comes_from_what_was_measured():
    stage = {"weights_bytes": 1, "other_bytes": 1, "kv_bytes_per_token": 2**19, "pool_tokens": None}
    known = {"settings": {"memory_bytes": 2**30}, "kind": "capacity", "figures": {"prefill": stage, "decode": stage}}
    beside = Beside(serving=[measured("kv8", 0, 0, 0, **known)])
    decision = decide(
        candidate=replace(KV8, proof=None), beside=(Beside(), beside), budgets={"capacity_tokens_per_gib": 2000.0}
    )
    assert decision.limits[0].candidate == 2048


def test_an_absolute_budget_of_another_device_shows_no_figure_of_the_baseline():
    decision = decide(candidate=GPU, budgets={"latency_p95_s": 9.0, "device": "cuda"})
    assert decision.verdict == "PASS" and decision.limits[0].baseline is None
    assert "on cuda:H200, at most 9" in decision.limits[0].reason and "cpu" not in decision.limits[0].reason


def test_a_budget_beside_a_regression_and_beside_an_invalid_one():
    lost = pairs(200, lost=60)
    both = decide(lost, budgets={"latency_p95_s": 1.0})
    assert (both.verdict, both.severity) == ("REGRESSED", "beyond margin")
    assert any("budget latency_p95_s" in reason for reason in both.reasons)
    assert decide(lost, budgets={"cost_ratio": 1.0}).verdict == "INVALID"


def test_an_arm_against_itself_breaks_no_budget():
    assert decide(candidate=replace(BASE, run_id=2), budgets={"latency_p95_s": 0.1}).limits == ()


def test_reports_name_every_limit():
    decision = decide(budgets={"latency_p95_s": 3.9, "latency_p50_s": 2.0})
    text, markdown = to_junit([decision]), to_markdown([decision])
    assert (
        text.count("<failure") == 2 and 'name="budget latency_p95_s"' in text and 'name="budget latency_p50_s"' in text
    )
    assert markdown.count("latency\\_p95\\_s") == 2 and markdown.count("latency\\_p50\\_s") == 1


BUDGETS = "name: p\nbudgets:\n"
REFUSED = {
    "  latency_p95_s: 0\n": ":3: 'budgets.latency_p95_s'",
    "  latency_p95_s: -1\n": ":3: 'budgets.latency_p95_s'",
    "  latency_p95_s: .nan\n": ":3: 'budgets.latency_p95_s'",
    "  throughput_ratio: .inf\n": ":3: 'budgets.throughput_ratio'",
    "  throughput_ratio: '1'\n": ":3: 'budgets.throughput_ratio'",
    "  capacity_ratio: yes\n": ":3: 'budgets.capacity_ratio'",
    "  cost_ratio:\n": ":3: 'budgets.cost_ratio': has no value",
    "  device: cuda\n": ":2: 'budgets': names no limit",
    "  latency: 1\n": ":3: unknown key 'budgets.latency'",
    "  latency_p95_s: 1\n  latency_p50_s: 2\n": ":4: 'budgets.latency_p50_s': 2 is above latency_p95_s 1",
    "  ttft_p95_s: 1\n  ttft_p50_s: 2\n": ":4: 'budgets.ttft_p50_s': 2 is above ttft_p95_s 1",
    "  concurrency: 4\n  prompt_tokens: 32\n": ":2: 'budgets': names no limit",
    "  concurrency: 0\n": ":3: 'budgets.concurrency'",
    "": ":2: 'budgets': has no value",
}
OTHERS = {
    "more_sampling: {alpha: 0.01}\n": ":2: key 'more_sampling.signals' is missing",
    "more_sampling:\n  signals: []\n": ":3: 'more_sampling.signals'",
    "more_sampling:\n  signals: [kl]\n": ":3: 'more_sampling.signals.0'",
    "more_sampling:\n  signals: [brier, brier]\n": ":3: 'more_sampling.signals.1': names brier twice",
    "more_sampling:\n  signals: [brier]\n  alpha: 0.5\n": ":4: 'more_sampling.alpha'",
    "more_sampling:\n": ":2: 'more_sampling': has no value",
    "max_truncation_points: .nan\n": ":2: 'max_truncation_points'",
    "max_truncation_points: 100\n": ":2: 'max_truncation_points'",
    "max_truncation_points: true\n": ":2: 'max_truncation_points'",
    "max_truncation_points:\n": ":2: 'max_truncation_points': has no value",
}


@pytest.mark.parametrize(
    ("text", "says"),
    [*((BUDGETS + text, says) for text, says in REFUSED.items()), *(("name: p\n" + t, s) for t, s in OTHERS.items())],
)
def test_limits_that_could_turn_a_gate_round(tmp_path, text, says):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert str(caught.value).removeprefix(str(path)).startswith(says)
