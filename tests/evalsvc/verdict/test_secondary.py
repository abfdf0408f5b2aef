"""Secondary signals against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from evalsvc.verdict.secondary import choice_signals, kl_divergence, kl_of_top, spread

P, Q = log_softmax([2.0, 1, 0.5, -1]), log_softmax([1.8, 1.2, 0.4, -0.5])


def test_kl_against_published_values():
    assert kl_divergence(np.log([0.5, 0.5]), np.log([0.9, 0.1])) == pytest.approx(0.5108256237659907, abs=1e-14)
    assert kl_divergence(P, Q) == pytest.approx(0.019866812710988474, abs=1e-12)
    assert kl_of_top(P, Q, 2) == pytest.approx(0.014829396736164159, abs=1e-12)
    assert kl_divergence(P, P) == kl_of_top(P, P, 2) == 0


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=8), st.integers(1, 8), st.integers(0, 1000))
def test_the_top_k_never_say_more_than_all(logits, k, seed):
    p = log_softmax(logits)
    q = log_softmax(np.random.default_rng(seed).normal(0, 2, len(logits)))
    assert kl_of_top(p, q, k) <= kl_divergence(p, q) + 1e-12
    assert kl_of_top(p, q, len(logits)) == pytest.approx(float(kl_divergence(p, q)), abs=1e-6)


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


def test_what_the_first_excludes_adds_nothing_and_what_the_second_excludes_everything():
    sure, even = np.array([0.0, -np.inf]), np.log([0.5, 0.5])
    assert kl_divergence(sure, even) == pytest.approx(np.log(2))
    assert kl_divergence(sure, sure) == 0
    assert kl_divergence(even, sure) == np.inf


def test_the_spread_names_its_number():
    found = spread([0.0] * 999 + [1.0])
    assert (found["n"], found["max"], found["median"]) == (1000, 1.0, 0.0)
    assert found["mean"] == pytest.approx(0.001) and found["p99"] == 0.0
    assert spread([]) == {}
