"""Resampling against exact enumeration, scipy's own, closed forms and simulation."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, permutation_test
from scipy.stats import t as student

from evalsvc.verdict.paired import mcnemar_exact, tango_lower, tango_upper
from evalsvc.verdict.resample import (
    EXACT_UP_TO,
    flipped_sums,
    mean_bounds,
    sign_flip_p,
    sign_flips,
    two_sided_p,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 30))
def test_on_0_1_outcomes_it_is_the_exact_mcnemar_test(lost, gained, same):
    differences = np.array([1.0] * lost + [-1.0] * gained + [0.0] * same)
    assert sign_flip_p(differences, rng()) == pytest.approx(mcnemar_exact(lost, gained), abs=1e-12)


def test_it_is_scipys_sign_permutation():
    values = np.array([0.3, 0.25, -0.1, 0.6, 0.05, -0.2, 0.4, 0.15])
    theirs = permutation_test(
        (values,), lambda x, axis: x.sum(axis=axis), permutation_type="samples", alternative="greater", n_resamples=1e6
    )
    assert sign_flip_p(values, rng()) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_drawn_and_counted_arrangements_agree():
    values = np.round(rng(3).normal(0.2, 0.5, EXACT_UP_TO), 2)
    exact = sign_flip_p(values, rng())
    padded = np.concatenate([values, [1e-9]])  # one more unit: drawn
    assert sign_flip_p(padded, rng(1), draws=40_000) == pytest.approx(exact, abs=0.012)


def test_p_is_uniform_or_larger_without_a_drop():
    generator = rng(5)
    found = [sign_flip_p(generator.normal(0, 1, 40) ** 3, generator, draws=199) for _ in range(1500)]
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 1500))


@pytest.mark.parametrize("units", [1, 8, 13])
def test_sums_under_random_signs_are_sums_that_signs_can_make_each_about_as_often(units):
    values = np.stack([2.0 ** np.arange(units), np.arange(units) + 1.0], axis=1)  # the first names the arrangement
    drawn = flipped_sums(values, rng(1), 40_000)
    minus = ((values[:, 0].sum() - drawn[:, 0]) / 2).astype(int)
    signs = 1 - 2 * ((minus[:, None] >> np.arange(units)) & 1)
    assert np.array_equal(signs @ values, drawn)
    assert signs.mean(axis=0) == pytest.approx(0, abs=4 / np.sqrt(40_000))
    if units > 1:
        assert (signs[:, 0] * signs[:, -1]).mean() == pytest.approx(0, abs=4 / np.sqrt(40_000))


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_swapping_the_arms_swaps_the_directions(values):
    measures = np.array([values, np.roll(values, 1) * np.arange(1, len(values) + 1)]).T
    forward, backward = sign_flips(measures, rng(2), draws=99), sign_flips(-measures, rng(2), draws=99)
    assert np.array_equal(forward, backward[::-1])
    assert np.array_equal(two_sided_p(forward), two_sided_p(backward))
    assert np.all((forward > 0) & (forward <= 1))


def test_no_difference_at_all_is_no_evidence():
    assert sign_flip_p(np.zeros(50), rng()) == 1.0


@pytest.mark.parametrize("units", [12, 60])
def test_bounds_cover_the_mean_at_their_level(units):
    generator = rng(11)
    low, high, rounds = 0, 0, 400 if units < 30 else 2000
    for _ in range(rounds):
        totals = generator.normal(0.1, 0.3, units)
        lower, upper, method = mean_bounds(totals, np.ones(units), 0.05, generator)
        low, high = low + (lower > 0.1), high + (upper < 0.1)
    assert method == ("t and score bound" if units >= 30 else "BCa bootstrap, t and score bound")
    assert max(low, high) / rounds <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / rounds)


@pytest.mark.parametrize(("units", "share"), [(12, 0.15), (40, 0.05), (60, 0.05), (500, 0.01)])
def test_few_large_losses_among_many_small_differences_pass_as_rarely_as_promised(units, share):
    """Partial credit moves a little both ways and some items lose all: t alone passes 12 to 17 % at the true drop."""
    generator, rounds = rng(12), 150 if units < 30 else 1500
    small = np.where(generator.random((rounds, units)) < 0.2, generator.choice([-0.05, 0.05], (rounds, units)), 0.0)
    drawn = np.where(generator.random((rounds, units)) < share, 1.0, small)
    bounds = [mean_bounds(row, np.ones(units), 0.05, generator, reach=1.0)[1] for row in drawn]
    by_t = drawn.mean(axis=1) + student.isf(0.05, units - 1) * drawn.std(axis=1, ddof=1) / np.sqrt(units)
    assert np.mean(np.array(bounds) <= share) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / rounds)
    assert np.mean(by_t <= share) > 0.08


def test_of_0_1_outcomes_the_score_bound_is_tangos():
    differences = np.repeat([1.0, -1.0, 0.0], [12, 5, 483])
    found = mean_bounds(differences, np.ones(500), 0.05, rng(), reach=1.0)
    mirrored = mean_bounds(-differences, np.ones(500), 0.05, rng(), reach=1.0)
    alpha = norm.sf(student.isf(0.05, 499))  # t is narrower above, and wider below
    assert found[1] == -mirrored[0] == pytest.approx(tango_upper(12, 5, 500, alpha), abs=1e-9)
    assert found[0] < tango_lower(12, 5, 500, alpha)


def test_a_large_difference_that_was_not_seen_is_allowed_for():
    """One item of 40 that gained a little: t would bound the drop at almost nothing."""
    lower, upper, _ = mean_bounds(np.array([-0.05] + [0.0] * 39), np.ones(40), 0.05, rng(), reach=1.0)
    assert upper > 1 - 0.05 ** (1 / 40) - 0.01
    assert mean_bounds(np.array([-0.05] + [0.0] * 39), np.ones(40), 0.05, rng())[1] < 0.01
    assert lower < -0.05 / 40


def test_clusters_of_one_item_are_items():
    totals = rng(2).normal(0, 1, 50)
    lower, upper, _ = mean_bounds(totals, np.ones(50), 0.05, rng())
    twice = mean_bounds(np.repeat(totals, 1) * 2, np.full(50, 2.0), 0.05, rng())
    assert (lower, upper) == pytest.approx(twice[:2])


@pytest.mark.parametrize("value", [0.0, 0.25])
def test_units_that_are_all_alike_are_not_certain(value):
    lower, upper, method = mean_bounds(np.full(20, value), np.ones(20), 0.05, rng(), reach=1.0)
    assert method == "all alike"
    assert upper - value == pytest.approx((1 + value) * (1 - 0.05 ** (1 / 20)))
    assert lower < value < upper
    many = mean_bounds(np.full(200, value), np.ones(200), 0.05, rng(), reach=1.0)
    assert value < many[1] < upper
    assert mean_bounds(np.full(20, value), np.ones(20), 0.05, rng())[:2] == (-inf, inf)


def test_nothing_gives_no_bound():
    assert mean_bounds(np.array([]), np.array([]), 0.05, rng(), reach=1.0)[:2] == (-inf, inf)
