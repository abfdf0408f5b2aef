"""What holds for every count: symmetry, monotony, ranges, p under the null, and coverage at the stated level."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from evalsvc.verdict import corpus
from evalsvc.verdict.clusters import Clusters, cluster_p
from evalsvc.verdict.corpus import corpus_value, measure_corpus
from evalsvc.verdict.measure import measure, measure_counts
from evalsvc.verdict.paired import (
    accuracy_upper,
    mcnemar_exact,
    mcnemar_midp,
    newcombe_interval,
    tango_lower,
    tango_upper,
    wilson_interval,
)
from evalsvc.verdict.sequential import BETS, Sequential, hybrid_p

LEVELS = (0.01, 0.05, 0.2, 0.5)
cells = st.tuples(*[st.integers(0, 60)] * 4).filter(any)  # right in both, lost, gained, wrong in both


def three_errors(rate, runs):
    """Three standard errors of a rate that was simulated."""
    return 3 * np.sqrt(rate * (1 - rate) / runs)


@given(cells, st.sampled_from([0.01, 0.05, 0.2]))
def test_exchanging_the_arms_mirrors_every_p_and_bound_of_counts(table, alpha):
    both, lost, gained, _ = table
    n = sum(table)
    forward = measure_counts(lost, gained, n, alpha=alpha, baseline_right=both + lost)
    backward = measure_counts(gained, lost, n, alpha=alpha, baseline_right=both + gained)
    assert (forward.p, forward.p_gain) == (backward.p_gain, backward.p)
    assert forward.p_mid == pytest.approx(1 - backward.p_mid)
    assert (forward.lower, forward.upper) == (-backward.upper, -backward.lower)
    assert forward.interval == (-backward.interval[1], -backward.interval[0])
    assert forward.newcombe == pytest.approx((-backward.newcombe[1], -backward.newcombe[0]), abs=1e-12)
    assert forward.drop == -backward.drop and forward.discordance == backward.discordance


fractions = st.lists(
    st.tuples(*[st.sampled_from([0, 0.25, 0.5, 1])] * 2, st.sampled_from(["", "", "a", "b", "c"])),
    min_size=2,
    max_size=40,
)


@settings(max_examples=30)
@given(fractions)
def test_exchanging_the_arms_mirrors_every_p_and_bound_of_fractions(rows):
    base, cand, labels = zip(*rows, strict=True)
    forward, backward = measure(base, cand, labels), measure(cand, base, labels)
    assert (forward.p, forward.p_gain) == pytest.approx((backward.p_gain, backward.p))
    assert (forward.lower, forward.upper) == pytest.approx((-backward.upper, -backward.lower), abs=1e-9)
    assert forward.interval == pytest.approx((-backward.interval[1], -backward.interval[0]), abs=1e-9)
    ordered = [-1, forward.interval[0], forward.lower, forward.drop, forward.upper, forward.interval[1], 1]
    assert np.all(np.diff(ordered) >= -1e-9)


@given(cells)
def test_every_number_lies_where_it_can(table):
    both, lost, gained, _ = table
    n = sum(table)
    found = measure_counts(lost, gained, n, baseline_right=both + lost)
    assert all(0 <= p <= 1 for p in (found.p, found.p_gain, found.p_mid))
    assert found.p + found.p_gain >= 1 and found.p_mid <= found.p
    assert -1 <= found.interval[0] <= found.lower <= found.drop <= found.upper <= found.interval[1] <= 1
    assert np.all(np.diff([-1, found.newcombe[0], found.drop, found.newcombe[1], 1]) >= -1e-9)
    low, high = wilson_interval(both + lost, n, 0.95)
    assert np.all(np.diff([0, low, (both + lost) / n, high, 1]) >= -1e-9)


@given(cells, st.sampled_from([0.0, 0.01, 0.1]))
def test_one_more_loss_makes_every_measure_say_worse(table, margin):
    """A loss in place of an item that both had right."""
    both, lost, gained, _ = table
    n, before = sum(table) + 1, (lost, gained)
    after = (lost + 1, gained)
    for measure_of in (mcnemar_exact, mcnemar_midp):
        assert measure_of(*after) <= measure_of(*before) + 1e-15
    for bound in (tango_lower, tango_upper):
        assert bound(*after, n, 0.05) >= bound(*before, n, 0.05)
    processes = [Sequential() for _ in range(2)]
    for process, (b, c) in zip(processes, (before, after), strict=True):
        process.add([1] * b + [-1] * c + [0] * (n - b - c))
    assert processes[1].above(margin)[-1] > processes[0].above(margin)[-1]
    assert processes[1].below(margin)[-1] < processes[0].below(margin)[-1]
    assert accuracy_upper(both + 1, n, 0.05) >= accuracy_upper(both, n, 0.05)


@given(st.integers(0, 120))
def test_the_exact_p_is_uniform_on_what_it_can_be_without_a_drop(discordant):
    """P(p <= x) is exactly x at each x that p can take, so at most x elsewhere; the mid-p is one half on average."""
    lost = np.arange(discordant + 1)
    p = np.array([mcnemar_exact(b, discordant - b) for b in lost])
    weight = binom.pmf(lost, discordant, 0.5)
    assert [weight[p <= x * (1 + 1e-9)].sum() for x in p] == pytest.approx(list(p), abs=1e-9)
    mid = [mcnemar_midp(int(b), int(discordant - b)) for b in lost]
    assert float(weight @ mid) == pytest.approx(0.5)


@pytest.mark.parametrize("count", [8, 20])
def test_the_p_of_clusters_is_uniform_or_larger_without_a_drop(count):
    """Flips of a cluster lean one way together, as many clusters up as down."""
    rng, runs = np.random.default_rng(21), 4000
    flips = rng.binomial(60, 0.08, (runs, count))
    totals = 2 * rng.binomial(flips, rng.beta(0.5, 0.5, (runs, count))) - flips
    p = np.array([cluster_p(Clusters(row.astype(float), np.full(count, 60.0))) for row in totals])
    for level in LEVELS:
        assert np.mean(p <= level) <= level + three_errors(level, runs)
    assert np.mean(p <= 0.5) > 0.4  # a test, not a wall


def test_the_hybrid_p_is_uniform_or_larger_without_a_drop_though_one_looks_at_every_block():
    rng, runs, blocks, size = np.random.default_rng(22), 8000, 8, 150
    steps = rng.multinomial(size, [0.05, 0.05, 0.9], size=(runs, blocks))
    lost, gained = steps[..., 0].cumsum(axis=1), steps[..., 1].cumsum(axis=1)
    logs = lost[..., None] * np.log1p(BETS) + gained[..., None] * np.log1p(-BETS)
    highest = np.log(np.exp(logs).mean(axis=-1)).max(axis=1)
    fixed = binom.sf(lost[:, -1] - 1, lost[:, -1] + gained[:, -1], 0.5)
    p = np.array([hybrid_p(*pair) for pair in zip(fixed, highest, strict=True)])
    for level in LEVELS:
        assert np.mean(p <= level) <= level + three_errors(level, runs)
    assert np.mean(p <= 0.05) > 0.02


@pytest.mark.parametrize(("n", "f", "drop"), [(300, 0.12, 0.0), (500, 0.05, 0.02), (1319, 0.05, -0.01)])
def test_intervals_of_the_drop_cover_it_at_their_level(n, f, drop):
    """Tango's score bound is not exact: it may be short by half a point, and is not here by more than chance."""
    rng, runs, accuracy = np.random.default_rng(23), 20_000, 0.8
    p = [accuracy - (f + drop) / 2, (f + drop) / 2, (f - drop) / 2]
    tables, times = np.unique(rng.multinomial(n, [*p, 1 - sum(p)], runs)[:, :4], axis=0, return_counts=True)
    pairs, index = np.unique(tables[:, 1:3], axis=0, return_inverse=True)
    ends = np.array([[f(int(b), int(c), n, 0.05) for f in (tango_lower, tango_upper)] for b, c in pairs])[index]
    for miss in (ends[:, 0] > drop, ends[:, 1] < drop):
        assert times[miss].sum() / runs <= 0.05 + three_errors(0.05, runs) + 0.005
    some = rng.integers(0, len(tables), 2000)
    newcombe = np.array([newcombe_interval(*map(int, tables[i]), level=0.95) for i in some])
    covered = (newcombe[:, 0] <= drop) & (drop <= newcombe[:, 1])
    assert np.average(covered, weights=times[some]) >= 0.95 - three_errors(0.05, 2000)


@pytest.mark.parametrize("n", [12, 48, 300])
def test_bounds_of_an_accuracy_cover_it_at_their_level(n):
    """Summed over every count: Clopper and Pearson's never miss more often, Wilson's do not on average."""
    right = np.arange(n + 1)
    upper = np.array([accuracy_upper(int(count), n, 0.05) for count in right])
    ends = np.array([wilson_interval(int(count), n, 0.95) for count in right])
    shares = np.linspace(0.02, 0.98, 97)
    weights = binom.pmf(right, n, shares[:, None])
    assert np.all((weights * (upper < shares[:, None])).sum(axis=1) <= 0.05 + 1e-12)
    covered = (ends[:, 0] <= shares[:, None]) & (shares[:, None] <= ends[:, 1])
    assert (weights * covered).sum(axis=1).mean() == pytest.approx(0.95, abs=0.01)


def test_bounds_of_a_corpus_metric_cover_it_at_their_level(monkeypatch):
    """F1 over a set: a ratio of sums, of items of which more are wrong in the candidate."""
    monkeypatch.setattr(corpus, "DRAWS", 299)
    rng, runs, n = np.random.default_rng(24), 500, 150

    def drawn(size):
        gold = rng.random(size) < 0.6
        return [np.stack([gold, gold ^ (rng.random(size) < wrong)], axis=1).astype(float) for wrong in (0.1, 0.15)]

    truth = -float(np.subtract(*[corpus_value("f1", parts) for parts in drawn(400_000)[::-1]]))
    found = [measure_corpus("f1", *drawn(n)) for _ in range(runs)]
    for missed in ([m.lower > truth for m in found], [m.upper < truth for m in found]):
        assert (
            np.mean(missed) <= 0.05 + three_errors(0.05, runs) + 0.01
        )  # percentiles of a bootstrap are a little short
