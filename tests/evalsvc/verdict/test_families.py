"""Corrections against published values, and the joint permutation against what it replaces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from evalsvc.verdict.families import benjamini_hochberg, gatekeep, holm, max_drop_p

PUBLISHED = [0.838541367553, 0.642193923795, 0.680845947633, 0.967833824309, 0.71626938238]
PUBLISHED += [0.177096952723, 5.23656777208e-05, 0.0202732688798, 0.00028140506198, 0.0149877310796]
BH_1995 = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528]


def test_published_adjustments():
    assert sorted(holm(PUBLISHED))[:4] == pytest.approx(
        [0.000523656777208, 0.00253264555782, 0.1199018486368, 0.1419128821586], abs=1e-12
    )
    assert sorted(benjamini_hochberg(PUBLISHED))[:6] == pytest.approx(
        [0.000523656777208, 0.0014070253099999999, 0.04995910359866667, 0.0506831721995, 0.354193905446, 0.89533672],
        abs=1e-8,
    )
    assert sum(p <= 0.05 for p in benjamini_hochberg([*BH_1995, 0.759, 1.0])) == 4
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


@settings(max_examples=15)  # statsmodels collects garbage in each call
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_both_are_statsmodels(p):
    for ours, method in ((holm, "holm"), (benjamini_hochberg, "fdr_bh")):
        assert ours(p) == pytest.approx(list(multipletests(p, method=method)[1]), abs=1e-12)


def test_slices_mean_nothing_until_their_suite_is_rejected():
    slices = {"algebra": 0.01, "law": 0.5}
    assert gatekeep(False, slices) == {"algebra": None, "law": None}
    assert gatekeep(True, slices) == {"algebra": pytest.approx(0.02), "law": 0.5}
    assert gatekeep(True, {}) == {}


def test_a_planted_drop_is_found_and_named():
    rng = np.random.default_rng(2)
    tasks = {f"t{i}": rng.choice([-1, 0, 1], p=[0.05, 0.9, 0.05], size=(400, 4)).astype(float) for i in range(10)}
    tasks["t3"][:40, 2] = 1
    found = max_drop_p(tasks, rng, draws=1999)
    assert found.pop("t3/2") <= 0.001
    assert min(found.values()) > 0.05


def test_the_family_raises_a_false_alarm_in_one_of_twenty():
    """300 families of 4 tasks x 3 arms that share a baseline."""
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(300):
        tasks = {}
        for task in range(4):
            base = rng.random((120, 1)) < 0.8
            flips = rng.random((120, 3)) < 0.08
            tasks[f"t{task}"] = base.astype(float) - np.where(flips, rng.random((120, 3)) < 0.8, base)
        # the null: D symmetric given the item; signs of whole items are exchangeable
        signs = rng.choice([-1, 1], size=(120, 1))
        tasks = {name: values * signs for name, values in tasks.items()}
        alarms += min(max_drop_p(tasks, rng, draws=199).values()) <= 0.05
    assert alarms / 300 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_one_test_alone_is_the_sign_flip():
    from evalsvc.verdict.resample import sign_flip_p

    values = np.random.default_rng(4).choice([-1.0, 0, 1], p=[0.1, 0.75, 0.15], size=200)
    joint = max_drop_p({"t": values[:, None]}, np.random.default_rng(1), draws=20_000)["t/0"]
    assert joint == pytest.approx(sign_flip_p(values, np.random.default_rng(2), draws=20_000), abs=0.015)


def test_nothing_that_flips_is_no_evidence():
    assert max_drop_p({"t": np.zeros((10, 2))}, np.random.default_rng(0), draws=99) == {"t/0": 1.0, "t/1": 1.0}
