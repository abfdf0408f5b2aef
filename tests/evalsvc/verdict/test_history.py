"""Change points of published series, of noise, and against ruptures' own cost."""

import numpy as np
import pytest
import ruptures

from evalsvc.verdict.history import _gains, change_points

STEP = [1.02, 0.95, 0.99, 1.0, 1.12, 1.0, 1.01, 0.98, 1.01, 0.96, 0.5, 0.51, 0.48, 0.48, 0.55, 0.5, 0.49, 0.51, 0.5]
STAIRS = [0.3, 2.4, 1.5, -0.9, -0.5, 99.7, 98.3, 99.1, 149.0, 149.7, 149.5, 149.1, 148.8, 150.0]


@pytest.mark.parametrize(("series", "expected"), [([*STEP, 0.49], [10]), (STAIRS, [5, 8])])
def test_published_change_points(series, expected):
    found = change_points(series, np.random.default_rng(1))
    assert [point.index for point in found] == expected
    assert all(point.p <= 0.05 for point in found)


def test_levels_are_the_means_on_both_sides():
    (point,) = change_points([*STEP, 0.49], np.random.default_rng(1))
    assert (point.before, point.after) == pytest.approx((np.mean(STEP[:10]), np.mean([*STEP[10:], 0.49])))
    assert point.p == pytest.approx(0.001)


def test_a_series_without_a_change_alerts_in_one_of_twenty():
    rng = np.random.default_rng(2)
    alerts = sum(bool(change_points(rng.normal(0, 1, 25), rng, draws=199)) for _ in range(300))
    assert alerts / 300 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_the_gain_is_ruptures_own_drop_of_cost():
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0, 1, 17)
        algorithm = ruptures.Binseg(model="l2", min_size=2, jump=1).fit(values)
        whole, split = algorithm.cost.error(0, 17), algorithm.cost.sum_of_costs(algorithm.predict(n_bkps=1))
        assert _gains(values[None])[0] == pytest.approx(whole - split)


@pytest.mark.parametrize("series", [[], [1.0], [1, 2, 3], [0.5] * 30])
def test_what_cannot_change_does_not(series):
    assert change_points(series, np.random.default_rng(0)) == []
