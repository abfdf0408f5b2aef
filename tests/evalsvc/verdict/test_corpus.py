"""Corpus metrics against closed forms, lm-eval's own aggregations, scikit-learn's, and simulation."""

from math import inf, log

import numpy as np
import pytest
from scipy.stats import norm

from evalsvc.verdict.corpus import corpus_value, measure_corpus
from evalsvc.verdict.measure import measure_units
from evalsvc.verdict.resample import mean_bounds, sign_flip_p


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def texts(generator: np.random.Generator, count: int, spread: float = 0.1) -> np.ndarray:
    """Log-likelihood and weight of texts of unequal length."""
    weight = generator.integers(5, 200, count).astype(float)
    return np.stack([-weight * generator.normal(2.0, spread, count), weight], axis=1)


def classes(generator: np.random.Generator, count: int, kinds: int, right: float) -> np.ndarray:
    gold = generator.integers(0, kinds, count)
    given = np.where(generator.random(count) < right, gold, generator.integers(0, kinds, count))
    return np.stack([gold, given], axis=1).astype(float)


def test_by_hand():
    assert corpus_value("perplexity", np.array([[-log(4), 1.0], [-log(4), 1.0]])) == pytest.approx(4)
    assert corpus_value("perplexity", np.array([[-6.0, 3.0], [-1.0, 1.0]])) == pytest.approx(np.exp(7 / 4))
    assert corpus_value("bits_per_byte", np.array([[-log(2), 1.0], [-3 * log(2), 3.0]])) == pytest.approx(1)
    assert corpus_value("f1", np.array([[1, 1], [1, 0], [0, 1], [0, 0], [1, 1]])) == pytest.approx(4 / 6)
    tp, tn, fp, fn = 2, 1, 1, 1
    expected = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert corpus_value("mcc", np.array([[1, 1], [1, 0], [0, 1], [0, 0], [1, 1]])) == pytest.approx(expected)
    assert corpus_value("f1", np.zeros((3, 2))) == corpus_value("mcc", np.ones((3, 2))) == 0


def test_values_are_lm_evals_own():
    metrics = pytest.importorskip("lm_eval.api.metrics")
    parts, binary = texts(rng(1), 300), classes(rng(2), 400, 2, 0.7)
    pairs = [tuple(row) for row in parts]
    assert corpus_value("perplexity", parts) == pytest.approx(metrics.weighted_perplexity(pairs), rel=1e-12)
    assert corpus_value("bits_per_byte", parts) == pytest.approx(metrics.bits_per_byte(pairs), rel=1e-12)
    alone = np.stack([parts[:, 0], np.ones(300)], axis=1)
    assert corpus_value("perplexity", alone / 100) != corpus_value("perplexity", alone / 99)
    assert corpus_value("perplexity", np.stack([parts[:, 0] / 100, np.ones(300)], axis=1)) == pytest.approx(
        metrics.perplexity(list(parts[:, 0] / 100)), rel=1e-12
    )
    as_ints = [(int(gold), int(given)) for gold, given in binary]
    assert corpus_value("f1", binary) == pytest.approx(metrics.f1_score(as_ints), rel=1e-12)
    many = [(int(gold), int(given)) for gold, given in classes(rng(3), 400, 5, 0.6)]
    assert corpus_value("mcc", np.array(many)) == pytest.approx(metrics.matthews_corrcoef(many), rel=1e-12)


def test_a_clear_rise_of_perplexity_and_its_reverse():
    parts = texts(rng(6), 80)
    worse = parts - np.stack([parts[:, 1] * rng(7).normal(0.05, 0.05, 80), np.zeros(80)], axis=1)
    found = measure_corpus("perplexity", parts, worse, better="lower")
    assert found.p == pytest.approx(1 / 2000) and found.p_gain > 0.99
    assert 0 < found.lower < found.drop < found.upper
    assert found.drop == pytest.approx(corpus_value("perplexity", worse) - corpus_value("perplexity", parts))
    assert found.lost + found.gained == 80 and found.lost > found.gained
    back = measure_corpus("perplexity", worse, parts, better="lower")
    assert back.drop == pytest.approx(-found.drop) and back.p > 0.99 and back.upper < 0
    assert measure_corpus("perplexity", parts, worse, better="higher").drop == pytest.approx(-found.drop)


def test_where_each_text_has_one_weight_it_is_nearly_the_mean_of_items():
    """bits per byte with equal bytes is a mean: the sign-flip and t know its p and its bounds."""
    base = np.stack([-rng(4).random(200), np.ones(200)], axis=1)
    cand = base - np.stack([rng(5).normal(0.01, 0.1, 200), np.zeros(200)], axis=1)
    found = measure_corpus("bits_per_byte", base, cand, better="lower")
    differences = (base[:, 0] - cand[:, 0]) / log(2)
    assert found.p == pytest.approx(sign_flip_p(differences, rng(2), draws=9999), abs=0.03)
    lower, upper, _ = mean_bounds(differences, np.ones(200), 0.05, rng())
    assert (found.lower, found.upper) == pytest.approx((lower, upper), abs=0.002)


@pytest.mark.parametrize("name", ["perplexity", "f1", "mcc"])
def test_errors_without_a_drop_and_with_a_drop_of_the_margin(name):
    """Arms exchangeable: p under .05 in 5 %. The bound covers the true drop, which is 0, in 95 %."""
    generator, low, short, rounds = rng(11), 0, 0, 300
    for _ in range(rounds):
        if name == "perplexity":
            base = texts(generator, 60)
            noise = generator.normal(0, 2.0, 60)
            cand = base + np.stack([noise, np.zeros(60)], axis=1)
        else:
            base = classes(generator, 150, 2, 0.6)
            cand = base.copy()
            moved = generator.random(150) < 0.15
            cand[moved, 1] = np.where(generator.random(moved.sum()) < 0.8, base[moved, 0], 1 - base[moved, 0])
            swap = generator.random(150) < 0.5
            base[swap, 1], cand[swap, 1] = cand[swap, 1].copy(), base[swap, 1].copy()
        found = measure_corpus(name, base, cand, better="lower" if name == "perplexity" else "higher")
        low, short = low + (found.p < 0.05), short + (found.upper < 0)
    error = 3 * np.sqrt(0.05 * 0.95 / rounds)
    assert low / rounds <= 0.05 + error
    assert short / rounds <= 0.06 + error  # a percentile bootstrap is a little short


def test_items_that_change_together_are_exchanged_together():
    """One of 8 prefixes is lost whole: as items that is certain, as clusters it is one event."""
    base = np.stack([np.ones(160), np.ones(160)], axis=1)
    base[::2] = 0
    cand = base.copy()
    cand[:20, 1] = 1 - cand[:20, 1]
    alone = measure_corpus("mcc", base, cand)
    together = measure_corpus("mcc", base, cand, [f"p{i // 20}" for i in range(160)])
    assert alone.p < 0.001 < 0.4 < together.p
    assert together.clusters == 8 and together.upper > alone.upper and together.lower < alone.lower
    assert "per cluster" in together.method and "jackknife" in together.method
    assert measure_corpus("mcc", base, cand, ["one"] * 160).few_clusters


def test_equal_arms_are_not_certain_and_one_item_says_nothing():
    parts = texts(rng(8), 40)
    few, many = (measure_corpus("perplexity", x, x, better="lower") for x in (parts, texts(rng(8), 4000)))
    assert few.p == 1.0 and few.drop == 0
    assert 0 < many.upper < few.upper and few.lower < 0
    one = measure_corpus("perplexity", parts[:1], parts[:1], better="lower")
    assert (one.lower, one.upper) == (-inf, inf)


def test_a_mean_in_its_own_units_is_the_t_test_and_knows_its_direction():
    base = rng(1).normal(50, 10, 200)
    cand = base + rng(2).normal(0.5, 3, 200)
    found = measure_units(base.tolist(), cand.tolist(), better="lower")
    rise = cand - base
    error = rise.std(ddof=1) / np.sqrt(200)
    assert found.drop == pytest.approx(rise.mean())
    assert found.upper == pytest.approx(rise.mean() + norm.isf(0.05) * error, rel=0.01)
    assert found.p == pytest.approx(norm.sf(rise.mean() / error), abs=0.01)
    assert (found.baseline_mean, found.candidate_mean) == pytest.approx((base.mean(), cand.mean()))
    other = measure_units(base.tolist(), cand.tolist(), better="higher")
    assert other.drop == pytest.approx(-found.drop) and other.p == pytest.approx(1 - found.p, abs=0.01)


def test_equal_means_of_many_items_have_a_bound_and_of_one_none():
    values = rng(3).normal(50, 10, 500).tolist()
    same = measure_units(values, values)
    assert same.method == "sign-flip, all alike" and 0 < same.upper < 1 and same.p == 1
    assert measure_units([5.0], [5.0]).upper == inf
