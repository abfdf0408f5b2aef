"""E-processes: closed forms, error rates under optional stopping, and what a comparison decides block by block."""

from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.verdict.sequential import (
    BETS,
    Sequential,
    hybrid_p,
    log_beyond_e_counts,
    log_pass_e,
    log_pass_e_counts,
    log_regression_e,
    log_regression_e_counts,
)

MARGIN = 0.02
outcomes = st.lists(st.sampled_from([-1, 0, 0, 0, 1]), max_size=80)


@given(outcomes)
def test_counts_say_what_the_items_say(differences):
    every = np.array(differences, dtype=float)
    lost, gained, n = differences.count(1), differences.count(-1), len(differences)
    assert log_regression_e_counts(lost, gained) == pytest.approx(log_regression_e(every), abs=1e-9)
    assert log_pass_e_counts(lost, gained, n, MARGIN) == pytest.approx(log_pass_e(every, MARGIN), abs=1e-9)


def test_the_mixture_is_the_mean_of_the_bets():
    expected = np.mean([(1 + bet) ** 5 * (1 - bet) ** 2 for bet in BETS])
    assert exp(log_regression_e_counts(5, 2)) == pytest.approx(expected)
    assert log_regression_e_counts(0, 0) == pytest.approx(0)


@pytest.mark.parametrize("process", ["regression", "pass", "beyond"])
def test_under_its_hypothesis_no_process_is_expected_to_grow(process):
    """One item at the hypothesis' edge: the expected factor is exactly 1 for each direction of flips."""
    for rate in (0.0, 0.05, 0.3):
        drop = 0.0 if process == "regression" else MARGIN
        lost, gained = rate / 2 + drop, rate / 2
        expected = 0.0
        for probability, b, c in ((lost, 1, 0), (gained, 0, 1), (1 - lost - gained, 0, 0)):
            e = {
                "regression": log_regression_e_counts(b, c),
                "pass": log_pass_e_counts(b, c, 1, MARGIN),
                "beyond": log_beyond_e_counts(b, c, 1, MARGIN),
            }[process]
            expected += probability * exp(e)
        assert expected == pytest.approx(1.0, abs=1e-12)


def test_extreme_items_leave_every_factor_positive():
    for b, c, n in ((50, 0, 50), (0, 50, 50), (0, 0, 50)):
        assert all(np.isfinite([log_pass_e_counts(b, c, n, 0.2), log_beyond_e_counts(b, c, n, 0.2)]))


def test_looking_after_every_item_keeps_the_rate_of_false_alarms():
    """4,000 runs of 400 items without a drop: at level .05 of the process alone, looked at 400 times each."""
    rng = np.random.default_rng(7)
    steps = rng.choice([-1, 0, 1], p=[0.06, 0.88, 0.06], size=(4000, 400))
    lost, gained = (steps == 1).cumsum(axis=1), (steps == -1).cumsum(axis=1)
    logs = lost[..., None] * np.log1p(BETS) + gained[..., None] * np.log1p(-BETS)
    highest = np.exp(logs).mean(axis=-1).max(axis=1)
    assert np.mean(highest >= 20) <= 0.05
    assert np.mean(highest >= 20) > 0.005  # it is a test, not a wall


def test_the_hybrid_p_is_a_union_of_both():
    assert hybrid_p(0.04, -inf) == pytest.approx(0.05)
    assert hybrid_p(1.0, log(100)) == pytest.approx(0.05)
    assert hybrid_p(0.5, 0.0) == pytest.approx(0.625)
    assert hybrid_p(1.0, -3.0) == 1.0


def test_a_plain_regression_stops_early_and_a_family_of_ten_later():
    blocks = [[1] + [0] * 9] * 40
    stops = []
    for family in (1, 10):
        run = Sequential(MARGIN, family)
        while not run.looks or not run.looks[-1].decided:
            run.add(blocks[len(run.looks)])
        assert run.looks[-1].decided == "REGRESSED"
        stops.append(run.looks[-1].n)
    assert stops[0] < stops[1] < 300


def test_a_stop_says_whether_the_drop_is_beyond_the_margin():
    far = Sequential(MARGIN)
    while not far.looks or not far.looks[-1].decided:
        far.add([1] * 50 + [0] * 50)
    assert far.looks[-1].beyond
    near = Sequential(0.2)
    while not near.looks or not near.looks[-1].decided:
        near.add([1] * 4 + [0] * 16)
    assert near.looks[-1].decided == "REGRESSED" and not near.looks[-1].beyond


def test_no_difference_passes_and_what_is_decided_takes_no_more():
    run = Sequential(0.05)
    while not run.looks or not run.looks[-1].decided:
        run.add([0] * 50)
    assert run.looks[-1].decided == "PASS"
    with pytest.raises(ValueError, match="decided already"):
        run.add([0])


def test_clusters_of_one_size_are_bets_on_their_totals():
    run = Sequential(MARGIN)
    look = run.add([0.5, -0.25, 0.0], [(4, 2, 0), (4, 0, 1), (4, 1, 1)])
    assert (look.n, look.lost, look.gained) == (12, 3, 2)
    assert run.log_e == pytest.approx(log_regression_e(np.array([0.5, -0.25, 0.0])))
