"""The hybrid measurement: the process at a fifth of alpha, the fixed rule at the rest, and only over all items."""

import numpy as np
import pytest

from evalsvc.verdict.hybrid import feed, measure_hybrid
from evalsvc.verdict.measure import measure
from evalsvc.verdict.rule import decide


def outcomes(lost, gained, n):
    base = [1.0] * (n - gained) + [0.0] * gained
    cand = [0.0] * lost + [1.0] * (n - lost)
    order = np.random.default_rng(1).permutation(n)
    return [base[i] for i in order], [cand[i] for i in order]


def test_over_all_items_each_bound_is_the_better_one_of_both_shares():
    base, cand = outcomes(20, 8, 400)
    found = measure_hybrid(base, cand, [""] * 400, [100, 200, 300, 400])
    fixed = measure(base, cand, alpha=0.04)
    process = feed([b - c for b, c in zip(base, cand, strict=True)], [""] * 400, [100, 200, 300, 400])
    lower, upper = process.bounds(0.01)
    assert (found.lower, found.upper) == (max(lower, fixed.lower), min(upper, fixed.upper))
    assert found.p == pytest.approx(min(1.0, fixed.p / 0.8, 5 * np.exp(-process.above(0.0)[-1])))
    assert (found.alpha, found.complete, found.n, found.lost, found.gained) == (0.05, True, 400, 20, 8)


def test_of_a_part_the_fixed_rule_says_nothing():
    base, cand = outcomes(12, 0, 100)
    found = measure_hybrid(base, cand, [""] * 100, [100], complete=False)
    assert measure(base, cand).p < 0.001 < 0.01 < found.p, "one look at a part is no fixed test"
    assert found.upper > measure(base, cand).upper and found.method.startswith("e-processes of a part")
    assert decide(found, 0.01).severity != "drop proven"


def test_an_early_regression_is_beyond_the_margin_or_not_established():
    far, near = outcomes(60, 0, 200), outcomes(17, 0, 200)
    beyond = decide(measure_hybrid(*far, [""] * 200, [200], complete=False), 0.01)
    unsure = decide(measure_hybrid(*near, [""] * 200, [200], complete=False), 0.05)
    assert (beyond.word, beyond.severity) == ("REGRESSED", "beyond margin")
    assert (unsure.word, unsure.severity) == ("REGRESSED", "not established")


def test_clusters_are_units_of_the_process():
    labels = ["a"] * 3 + ["b"] * 2 + ["", ""]
    process = feed([1, 1, 0, -1, 0, 1, 0], labels, [3, 7], largest=3)
    bets = np.geomspace(0.02, 0.98, 24)
    expected = np.mean((1 + bets * 2 / 3) * (1 - bets / 3) * (1 + bets / 3))
    assert process.above(0.0)[-1] == pytest.approx(np.log(max(expected, np.mean(1 + bets * 2 / 3))))


def test_false_decisions_stay_under_alpha_with_looks_at_every_block():
    """300 runs of 600 items in 6 blocks, stopping as the runner stops: false alarms and false PASS."""
    rng = np.random.default_rng(5)
    for drop, word in ((0.0, "REGRESSED"), (0.03, "PASS")):
        wrong = 0
        for _ in range(300):
            differences = rng.choice([1, -1, 0], p=[0.04 + drop / 2, 0.04 - drop / 2, 0.92], size=600)
            base, cand = (differences >= 0).astype(float).tolist(), (differences <= 0).astype(float).tolist()
            wrong += decide(measure_hybrid(base, cand, [""] * 600, [100, 200, 300, 400, 500, 600]), 0.03).word == word
        assert wrong <= 300 * (0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5)
        assert wrong > 1
