"""Planning figures against published ones and against simulation."""

from math import inf

import numpy as np
import pytest
from scipy.stats import norm

from evalsvc.verdict.paired import mcnemar_exact, smallest_provable_margin, tango_upper
from evalsvc.verdict.power import detectable_drop, exact_power, items_needed, items_to_prove, provable_margin


@pytest.mark.parametrize(
    ("lost", "gained", "expected", "tolerance"), [(0.45, 0.05, 22, 0.5), (0.2, 0.1, 233.09453820467394, 1e-3)]
)
def test_items_needed_against_published_sample_sizes(lost, gained, expected, tolerance):
    assert items_needed(lost, gained, sides=2) == pytest.approx(expected, abs=tolerance)


def test_no_number_of_items_finds_no_drop():
    with pytest.raises(ValueError, match="without a drop"):
        items_needed(0.1, 0.1)


def test_exact_power_against_published_values():
    assert exact_power(0.2, 0.1, 100, sides=2) == pytest.approx(0.373077084, abs=1e-8)
    assert exact_power(0.2, 0.1, 100) == pytest.approx(0.514606143, abs=1e-8)
    assert exact_power(0.0, 0.0, 100) == 0.0


def test_exact_power_of_very_many_items_looks_at_the_flips_that_can_be():
    """A billion counts, each with its own test, would fill the memory."""
    assert exact_power(0.03, 0.02, 10**9) == pytest.approx(1.0, abs=1e-9)
    shift = 0.00001 * np.sqrt(10**9 / 0.05)  # by the normal approximation, which is close there
    assert exact_power(0.025005, 0.024995, 10**9) == pytest.approx(norm.sf(norm.isf(0.05) - shift), abs=1e-4)


def test_exact_power_is_the_rate_of_rejections():
    rng = np.random.default_rng(1)
    flips = rng.multinomial(300, [0.05, 0.02, 0.93], size=20_000)
    rejected = np.mean([mcnemar_exact(lost, gained) <= 0.05 for lost, gained, _ in flips])
    assert exact_power(0.05, 0.02, 300) == pytest.approx(rejected, abs=4 * 0.5 / np.sqrt(20_000))


def test_the_detectable_drop_is_where_the_items_suffice():
    drop = detectable_drop(1319, 0.05)
    assert items_needed((0.05 + drop) / 2, (0.05 - drop) / 2) == pytest.approx(1319, rel=1e-6)
    assert exact_power((0.05 + drop) / 2, (0.05 - drop) / 2, 1319) == pytest.approx(0.8, abs=0.03)
    assert detectable_drop(1319, 0.02) < drop < detectable_drop(500, 0.05)


def test_what_no_number_of_flips_can_show_is_infinite():
    assert detectable_drop(20, 0.05) == detectable_drop(0, 0.05) == detectable_drop(100, 0.0) == inf


def test_the_provable_margin_without_flips_is_the_smallest():
    assert provable_margin(24, 0.0) == pytest.approx(smallest_provable_margin(24), abs=1e-9)
    assert provable_margin(176, 0.0) < provable_margin(176, 0.02) < provable_margin(176, 0.1)
    assert provable_margin(0, 0.1) == 1.0


def test_items_that_prove_a_margin_do_so_in_four_of_five_runs():
    items = round(items_to_prove(0.06, 0.02))
    flips = np.random.default_rng(3).multinomial(items, [0.03, 0.03, 0.94], size=2000)
    passed = np.mean([tango_upper(lost, gained, items, 0.05) <= 0.02 for lost, gained, _ in flips])
    assert passed == pytest.approx(0.8, abs=0.04)
    assert items_to_prove(0.06, 0.0) == inf
