"""Counts of independent pairs against published values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.verdict.paired import (
    accuracy_upper,
    mcnemar_exact,
    mcnemar_midp,
    newcombe_interval,
    smallest_provable_margin,
    tango_lower,
    tango_statistic,
    tango_upper,
)

counts = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 200)).map(lambda t: (t[0], t[1], sum(t)))


def two_sided(lost, gained):
    return min(1.0, 2 * min(mcnemar_exact(lost, gained), mcnemar_exact(gained, lost)))


@pytest.mark.parametrize(
    ("lost", "gained", "expected", "tolerance"),
    [(1, 7, 0.0703125, 1e-12), (6, 16, 0.052479, 5e-7), (15, 19, 0.60759136127308, 1e-12), (0, 0, 1.0, 0)],
)
def test_two_exact_sides_make_the_published_two_sided_p(lost, gained, expected, tolerance):
    assert two_sided(lost, gained) == pytest.approx(expected, abs=tolerance)


def test_exact_and_mid_p_against_closed_forms():
    assert mcnemar_exact(45, 25) == pytest.approx(0.011231447746254637, abs=1e-12)
    assert mcnemar_exact(41, 17) == pytest.approx(0.00111628, abs=1e-8)
    assert 2 * mcnemar_midp(7, 1) == pytest.approx(0.0390625, abs=1e-12)  # two-sided mid-p of the Bentur data
    assert mcnemar_midp(0, 0) == 0.5


@pytest.mark.parametrize(
    ("lost", "gained", "n", "level", "expected", "tolerance"),
    [
        (6, 16, 161, 0.95, (-0.124, -0.0054), 5e-5),
        (1, 7, 21, 0.95, (-0.517, -0.026), 5e-4),
        (9, 3, 32, 0.95, (-0.027, 0.390), 5e-4),
        (0, 1, 44, 0.90, (-0.096, 0.037), 5e-4),
        (3, 0, 3, 0.95, (-0.123, 1.0), 5e-5),
        (41, 17, 1319, 0.95, (0.0071187, 0.0302616), 1e-6),
    ],
)
def test_tango_bounds_against_published_intervals(lost, gained, n, level, expected, tolerance):
    alpha = (1 - level) / 2
    found = (tango_lower(lost, gained, n, alpha), tango_upper(lost, gained, n, alpha))
    assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("lost", "gained", "n", "margin", "expected", "tolerance"),
    [
        (0, 1, 44, -0.1, 1.708564253692732, 1e-4),
        (361, 241, 12032, 0.01, -0.013054618136422932, 1e-5),
        (40, 26, 1319, 0.01, 0.09992111710200154, 1e-5),
    ],
)
def test_tango_statistic_against_reference(lost, gained, n, margin, expected, tolerance):
    assert tango_statistic(lost, gained, n, margin) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("cells", "expected"), [((59, 6, 16, 80), (-0.1186, -0.0046)), ((1, 0, 0, 1), (-0.5734, 0.5734))]
)
def test_newcombe_against_published_intervals(cells, expected):
    assert newcombe_interval(*cells, level=0.95) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("n", "points"), [(24, 10.1), (48, 5.3), (176, 1.5)])
def test_no_flip_proves_what_the_design_says(n, points):
    assert round(100 * smallest_provable_margin(n), 1) == points
    assert tango_upper(0, 0, n, 0.05) == pytest.approx(smallest_provable_margin(n), abs=1e-9)


def test_an_alpha_too_small_for_a_normal_deviate_bounds_nothing():
    """t on one degree of freedom asks for deviates of which the normal tail is 0."""
    assert (tango_lower(10, 0, 40, 0.0), tango_upper(10, 0, 40, 0.0)) == (-1.0, 1.0)


def test_nothing_is_proven_by_no_items():
    assert smallest_provable_margin(0) == 1.0


def test_accuracy_bound_at_its_ends():
    assert accuracy_upper(0, 48, 0.05) == pytest.approx(1 - 0.05 ** (1 / 48))
    assert accuracy_upper(48, 48, 0.05) == 1.0


@given(counts, st.sampled_from([0.01, 0.025, 0.05, 0.2]))
def test_bounds_hold_the_drop_lie_in_range_and_mirror(cells, alpha):
    lost, gained, n = cells
    lower, upper = tango_lower(lost, gained, n, alpha), tango_upper(lost, gained, n, alpha)
    assert -1 <= lower <= (lost - gained) / n <= upper <= 1
    assert (-upper, -lower) == (tango_lower(gained, lost, n, alpha), tango_upper(gained, lost, n, alpha))


@given(counts)
def test_one_more_loss_is_never_better_news(cells):
    lost, gained, n = cells
    if lost + gained < n:
        assert mcnemar_exact(lost + 1, gained) <= mcnemar_exact(lost, gained)
        assert tango_upper(lost + 1, gained, n, 0.05) > tango_upper(lost, gained, n, 0.05)
        assert tango_lower(lost + 1, gained, n, 0.05) > tango_lower(lost, gained, n, 0.05)


@given(counts)
def test_bounds_invert_the_statistic(cells):
    lost, gained, n = cells
    upper = tango_upper(lost, gained, n, 0.05)
    if upper < 1:
        assert tango_statistic(lost, gained, n, upper) == pytest.approx(-1.6448536, abs=1e-4)
