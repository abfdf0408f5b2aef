"""E-processes: closed forms, error rates under optional stopping, and what a comparison decides block by block."""

from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.verdict.sequential import BETS, Sequential, first_decision, hybrid_p, threshold

MARGIN = 0.02
units = st.lists(
    st.integers(1, 4).flatmap(lambda size: st.tuples(st.integers(-size, size), st.just(size))), min_size=1, max_size=30
)


def fed(*blocks, largest=1):
    process = Sequential(largest)
    for block in blocks:
        process.add(block)
    return process


def naive(factor, blocks):
    """The largest mean over the bets of the products, up to each look, one unit after another."""
    products, best, found = np.ones(len(BETS)), -inf, []
    for block in blocks:
        for total, size in block:
            products = products * np.array([factor(bet, total, size) for bet in BETS])
        best = max(best, log(products.mean()))
        found.append(best)
    return found


@given(units, st.integers(1, 5), st.floats(-0.5, 0.5))
def test_processes_are_the_products_of_their_factors(given_units, block, drop):
    blocks = [given_units[i : i + block] for i in range(0, len(given_units), block)]
    process = Sequential(largest=4)
    for some in blocks:
        process.add([total for total, _ in some], [size for _, size in some])
    above = naive(lambda bet, t, n: 1 + bet / (1 + drop) * (t - drop * n) / 4, blocks)
    below = naive(lambda bet, t, n: 1 - bet / (1 - drop) * (t - drop * n) / 4, blocks)
    assert process.above(drop) == pytest.approx(above, abs=1e-9)
    assert process.below(drop) == pytest.approx(below, abs=1e-9)


@pytest.mark.parametrize("edge", [0.0, MARGIN, 0.2])
def test_under_its_hypothesis_no_process_is_expected_to_grow(edge):
    """One item at the hypothesis' edge: the expected factor is exactly 1 for each direction and rate of flips."""
    for rate in (0.0, 0.05, 0.3):
        chances = {1: rate / 2 + edge, -1: rate / 2, 0: 1 - rate - edge}
        for name in ("above", "below"):
            values = {d: exp(getattr(fed([d]), name)(edge)[0]) for d in chances}
            assert sum(chances[d] * values[d] for d in chances) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("share", [1.0, -1.0, 0.0])
def test_extreme_items_leave_every_factor_positive(share):
    process = Sequential(largest=5)
    process.add([5 * share] * 50, [5] * 50)
    for drop in (-0.9, 0.0, 0.9):
        assert np.isfinite([process.above(drop), process.below(drop)]).all()


def test_looking_after_every_item_keeps_the_rate_of_false_alarms():
    """4,000 runs of 400 items without a drop: at level .05 of the process alone, looked at 400 times each."""
    rng = np.random.default_rng(7)
    steps = rng.choice([-1, 0, 1], p=[0.06, 0.88, 0.06], size=(4000, 400))
    lost, gained = (steps == 1).cumsum(axis=1), (steps == -1).cumsum(axis=1)
    logs = lost[..., None] * np.log1p(BETS) + gained[..., None] * np.log1p(-BETS)
    highest = np.exp(logs).mean(axis=-1).max(axis=1)
    assert np.mean(highest >= 20) <= 0.05
    assert np.mean(highest >= 20) > 0.005  # it is a test, not a wall
    one = Sequential()
    for step in steps[0].tolist():
        one.add([step])
    assert one.above(0.0)[-1] == pytest.approx(log(highest[0])), "what was simulated is what runs"


def test_a_bound_is_where_the_process_rejects_and_covers_whenever_one_looks():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        process = Sequential()
        for block in rng.choice([-1, 0, 1], p=[0.03, 0.92, 0.05], size=(8, 50)).tolist():
            process.add(block)
        lower, upper = process.bounds(0.05)
        assert process.below(upper)[-1] >= log(20) > process.below(upper - 1e-6)[-1]
        assert process.above(lower)[-1] >= log(20) > process.above(lower + 1e-6)[-1]
        wrong += not lower <= 0.02 <= upper
    assert wrong <= 200 * (0.10 + 3 * (0.1 * 0.9 / 200) ** 0.5)


def test_bounds_before_any_evidence_say_nothing():
    assert Sequential().bounds(0.01) == (-1.0, 1.0)
    assert fed([]).bounds(0.01) == (-1.0, 1.0)
    lower, upper = fed([0, 0]).bounds(0.01)
    assert lower == -upper < -0.9


def test_the_hybrid_p_is_a_union_of_both():
    assert hybrid_p(0.04, -inf) == pytest.approx(0.05)
    assert hybrid_p(1.0, log(100)) == pytest.approx(0.05)
    assert hybrid_p(0.5, 0.0) == pytest.approx(0.625)
    assert hybrid_p(1.0, -3.0) == 1.0


def test_a_regression_of_a_family_of_ten_needs_ten_times_the_evidence():
    assert threshold(0.05) == pytest.approx(log(100)) and threshold(0.05, 10) == pytest.approx(log(1000))
    process = fed(*[[1] + [0] * 9] * 40)
    alone, of_ten = first_decision(process, MARGIN, 0.05), first_decision(process, MARGIN, 0.05, family=10)
    assert alone is not None and of_ten is not None
    assert alone[1] == of_ten[1] == "REGRESSED" and alone[0] < of_ten[0] < 30
    assert hybrid_p(1.0, process.above(0.0)[of_ten[0]]) <= 0.05 / 10, "Holm over the hybrid p agrees with the stop"


def test_no_difference_passes_and_the_first_look_that_decides_stays():
    blocks = [[0] * 50] * 12
    first = first_decision(fed(*blocks), 0.05, 0.05)
    assert first is not None and first[1] == "PASS" and first[0] > 0
    assert first_decision(fed(*blocks[: first[0]]), 0.05, 0.05) is None
    assert first_decision(fed(*blocks, [1] * 500), 0.05, 0.05) == first


def test_nothing_is_decided_without_blocks_or_evidence():
    assert first_decision(Sequential(), MARGIN, 0.05) is None
    assert first_decision(fed([1, 0, -1]), MARGIN, 0.05) is None
