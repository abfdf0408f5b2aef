"""Items that flip together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, ttest_1samp
from scipy.stats import t as student

from evalsvc.verdict.clusters import Clusters, cluster_bounds, cluster_p, flip_freedom, gather_clusters
from evalsvc.verdict.measure import measure, measure_counts
from evalsvc.verdict.paired import smallest_provable_margin, tango_statistic


def clusters(totals, sizes):
    return Clusters(np.array(totals, dtype=float), np.array(sizes, dtype=float))


def test_an_empty_label_stands_alone_and_a_label_that_looks_like_an_index_does_not():
    found = gather_clusters([1, 1, -1, 0, 1], ["a", "", "a", "", "3"])
    assert sorted(zip(found.totals, found.sizes, strict=True)) == [(0, 1), (0, 2), (1, 1), (1, 1)]


def test_p_is_students_on_totals():
    totals = [3, 1, 0, 2, -1, 2, 1, 1]
    assert cluster_p(clusters(totals, [6] * 8)) == pytest.approx(ttest_1samp(totals, 0, alternative="greater").pvalue)


def test_equal_sizes_give_the_textbook_bound():
    totals, size = np.array([3, 1, 0, 2, -1, 2, 1, 1]), 6
    n, drop, c = 8 * size, totals.sum() / (8 * size), 8
    error = np.sqrt(c / (c - 1) * ((totals - size * drop) ** 2).sum()) / n
    half = student.isf(0.05, c - 1) * error
    assert cluster_bounds(clusters(totals, [size] * 8), 0.05) == pytest.approx((drop - half, drop + half))


def test_equal_totals_fall_back_to_flipping_signs():
    """t has no denominator there, so a p of 0 from it would be an artefact of rounding answers to integers."""
    assert cluster_p(clusters([2] * 8, [6] * 8)) == 2**-8
    assert cluster_p(clusters([-2] * 8, [6] * 8)) == 1.0
    assert cluster_p(clusters([0] * 8, [6] * 8)) == 1.0


def test_no_flip_at_all_keeps_the_bound_of_independent_items():
    found = measure([1] * 48, [1] * 48, [f"prefix{i % 8}" for i in range(48)])
    assert (found.clusters, found.p) == (8, 1.0)
    assert found.upper == pytest.approx(smallest_provable_margin(48))


def test_flips_of_one_prefix_prove_less_than_flips_of_many():
    """One prefix of eight losing all its six items is one event, not six."""
    labels = [f"prefix{i // 6}" for i in range(48)]
    together = measure([1] * 48, [0] * 6 + [1] * 42, labels)
    assert measure_counts(6, 0, 48).p < 0.05 < together.p
    assert together.upper > measure_counts(6, 0, 48).upper


def test_flips_that_few_clusters_hold_leave_fewer_degrees_of_freedom():
    """One cluster of twenty moves: its variance is known like one of four values or so, not of twenty."""
    assert 1 <= flip_freedom(clusters([20] + [0] * 19, [66] * 20), 20) < 5
    spread = clusters([2, -1, 0, 3, -2, 1, 0, -3, 2, -2] * 2, [66] * 20)
    assert flip_freedom(spread, 60) == 19


def test_rare_flips_that_know_nothing_of_clusters_keep_their_degrees_of_freedom():
    """Three flips among 500 are far from normal, clusters or not: that is no sign of clusters that flip as one."""
    alone = clusters([1, 1, -1] + [0] * 247, [2] * 250)
    assert flip_freedom(alone, 3) == pytest.approx(249, rel=0.02)
    assert measure([1] * 500, [0] + [1] * 499, [str(i // 2) for i in range(500)]).upper < 0.01


def test_clusters_that_all_lost_alike_have_a_variance_of_nothing():
    assert flip_freedom(clusters([1] * 8, [6] * 8), 8) == 7


def test_labels_of_other_items_are_refused():
    with pytest.raises(ValueError, match="2 labels for 3 items"):
        measure([1, 1, 1], [1, 0, 1], ["a", "a"])


def test_one_dominant_cluster_proves_nothing():
    assert cluster_bounds(clusters([4, 1, 0, 0, 0, 0, 0, 0], [400] + [10] * 7), 0.05) == (-1.0, 1.0)


def test_a_single_cluster_is_compared_given_itself_and_says_so():
    found = measure([1] * 40, [0] * 10 + [1] * 30, ["only"] * 40)
    assert found.few_clusters and found.clusters == 1
    assert found.p == measure_counts(10, 0, 40).p


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001])
def test_two_clusters_prove_nothing_at_any_alpha(alpha):
    found = measure([1] * 40, [0] * 10 + [1] * 30, [str(i // 20) for i in range(40)], alpha=alpha)
    assert (found.lower, found.upper) == (-1.0, 1.0) and found.p >= 0.25


@pytest.mark.parametrize(("count", "few"), [(5, True), (6, False)])
def test_fewer_than_six_clusters_are_marked(count, few):
    assert measure([1] * 60, [1] * 60, [str(i % count) for i in range(60)]).few_clusters is few


def test_labels_that_nobody_shares_change_nothing():
    outcome = ([1, 1, 1, 0, 0, 1] * 5, [1, 0, 0, 1, 0, 1] * 5)
    assert measure(*outcome, [str(i) for i in range(30)]) == measure(*outcome, None) == measure(*outcome, [""] * 30)


def test_one_large_cluster_of_errors_is_not_read_as_a_count_of_items():
    with pytest.raises(ValueError, match="do not fit"):
        measure_counts(3, 2, 4)
    with pytest.raises(ValueError, match="right in the baseline"):
        measure_counts(3, 2, 10, baseline_right=2)


outcomes = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from(["", "a", "b", "c", "d"])), min_size=1, max_size=60
)


@given(outcomes)
def test_swapping_the_arms_mirrors_everything_and_clusters_never_sharpen(rows):
    base, cand, labels = zip(*rows, strict=True)
    forward, backward = measure(base, cand, labels), measure(cand, base, labels)
    assert (forward.lower, forward.upper) == pytest.approx((-backward.upper, -backward.lower))
    assert (forward.p, forward.p_gain) == pytest.approx((backward.p_gain, backward.p))
    alone = measure(base, cand)
    assert -1 <= forward.lower <= alone.lower <= forward.drop <= alone.upper <= forward.upper <= 1
    assert forward.p >= alone.p


def test_false_alarms_stay_under_five_percent_when_items_flip_alone():
    rng, repetitions, n = np.random.default_rng(7), 20_000, 500
    discordant = rng.binomial(n, 0.05, repetitions)
    lost = rng.binomial(discordant, 0.5)
    rate = float(np.mean(binom.sf(lost - 1, discordant, 0.5) < 0.05))
    assert 0.01 < rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("sizes", [[60] * 8, [24] * 20, [400] + [20] * 19], ids=["8 equal", "20 equal", "one dominant"])
def test_false_alarms_stay_under_five_percent_when_items_flip_together(sizes):
    """Each cluster leans its own way, most of its flips one way, with no drop on average."""
    rng, repetitions = np.random.default_rng(11), 2_500
    red = 0
    for _ in range(repetitions):
        discordant = rng.binomial(sizes, 0.08)
        lost = rng.binomial(discordant, rng.beta(0.5, 0.5, len(sizes)))
        totals = clusters(2 * lost - discordant, sizes)
        red += max(binom.sf(lost.sum() - 1, discordant.sum(), 0.5), cluster_p(totals)) < 0.05
    assert red / repetitions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


def test_a_drop_of_the_margin_passes_in_at_most_five_percent_when_items_flip_alone():
    rng, repetitions, n, margin = np.random.default_rng(3), 20_000, 1319, 0.01
    flips = rng.multinomial(n, [0.03, 0.02, 0.95], repetitions)[:, :2]
    pairs, times = np.unique(flips, axis=0, return_counts=True)
    passed = [tango_statistic(int(b), int(c), n, margin) <= -1.6448536 for b, c in pairs]
    rate = float(times[passed].sum()) / repetitions
    assert 0.02 < rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("sizes", [[60] * 8, [24] * 20, [400] + [20] * 19], ids=["8 equal", "20 equal", "one dominant"])
def test_a_drop_of_the_margin_passes_in_at_most_five_percent_when_items_flip_together(sizes):
    rng, repetitions, margin, discordance = np.random.default_rng(5), 2_500, 0.02, 0.08
    lean = 0.5 + margin / discordance / 2
    passed = 0
    for _ in range(repetitions):
        discordant = rng.binomial(sizes, discordance)
        lost = rng.binomial(discordant, rng.beta(lean, 1 - lean, len(sizes)))
        passed += cluster_bounds(clusters(2 * lost - discordant, sizes), 0.05)[1] <= margin
    assert passed / repetitions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)
