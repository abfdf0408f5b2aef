"""Secondary signals against closed forms."""

import numpy as np
import pytest
from scipy.special import softmax

from evalsvc.verdict.secondary import choice_signals, spread


def test_choice_signals_of_one_item_by_hand():
    margin, brier, share = choice_signals(
        [np.log([0.6, 0.3, 0.1])], [np.log([0.2, 0.7, 0.1])], [0], np.random.default_rng(0)
    )
    assert margin.mean == pytest.approx(np.log(0.6 / 0.3) - np.log(0.2 / 0.7))
    assert brier.mean == pytest.approx((0.64 + 0.49 + 0.01) - (0.16 + 0.09 + 0.01))
    assert share.mean == pytest.approx(0.4)
    assert margin.p == 1.0  # one item is no evidence


def test_a_small_shift_shows_in_the_margin_before_any_answer_flips():
    rng = np.random.default_rng(1)
    baseline = rng.normal(0, 1, (200, 4))
    gold = baseline.argmax(axis=1)
    candidate = baseline.copy()
    candidate[np.arange(200), gold] -= 0.02
    flips = int((candidate.argmax(axis=1) != gold).sum())
    margin, brier, share = choice_signals(baseline, candidate, list(gold), rng)
    assert flips <= 8 and max(margin.p, brier.p, share.p) < 0.01
    assert min(margin.mean, brier.mean, share.mean) > 0


def test_equal_arms_and_no_items():
    same = [[0.1, 0.2]] * 5
    assert all((s.mean, s.p) == (0, 1.0) for s in choice_signals(same, same, [0] * 5, np.random.default_rng(0)))
    assert choice_signals([], [], [], np.random.default_rng(0)) == []


def by_hand(logprobs, right):
    shares = softmax(logprobs)
    others = [value for index, value in enumerate(logprobs) if index != right]
    brier = sum((share - (index == right)) ** 2 for index, share in enumerate(shares))
    return logprobs[right] - max(others), -brier, shares[right]


def test_items_of_unequal_numbers_of_choices_are_what_each_is_alone():
    rng = np.random.default_rng(3)
    counts = [2, 5, 4, 3, 2, 4]
    baseline, candidate = ([list(rng.normal(-3, 2, count)) for count in counts] for _ in range(2))
    gold = [1, 4, 0, 2, 0, 3]
    expected = [np.subtract(by_hand(b, g), by_hand(c, g)) for b, c, g in zip(baseline, candidate, gold, strict=True)]
    found = choice_signals(baseline, candidate, gold, rng)
    assert [signal.mean for signal in found] == pytest.approx(np.mean(expected, axis=0))
    assert {signal.n for signal in found} == {6}


def test_an_item_without_finite_signals_is_left_out_and_counted_so():
    """A choice of probability 0 in one arm has no finite margin; NaN would otherwise be the mean of all."""
    rng = np.random.default_rng(3)
    first, second = [0.0, -1.0], [-np.inf, 0.0]
    found = choice_signals([first, first, [np.nan, 0.0]], [first, second, first], [0, 0, 0], rng)
    assert [(signal.n, signal.mean, signal.p) for signal in found] == [(1, 0.0, 1.0)] * 3
    assert choice_signals([second], [first], [0], rng) == []


def test_the_spread_names_its_number():
    found = spread([0.0] * 999 + [1.0])
    assert (found["n"], found["max"], found["median"]) == (1000, 1.0, 0.0)
    assert found["mean"] == pytest.approx(0.001) and found["p99"] == 0.0
    assert spread([]) == {}
