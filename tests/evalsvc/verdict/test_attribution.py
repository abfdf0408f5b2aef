"""Effects planted in simulated arms are found at the stated rate, and what arms cannot separate is unknown."""

from itertools import combinations

import numpy as np
import pytest

from evalsvc.verdict.attribution import Arm, attribute

W, K, P = ("decode.weights", "int4"), ("decode.kv", "fp8"), ("prefill.weights", "fp8")


def arms_of(changes) -> list[Arm]:
    return [frozenset(part) for size in range(len(changes) + 1) for part in combinations(changes, size)]


def outcomes(rng, arms, drops, n=2000, noise=0.03) -> dict[Arm, np.ndarray]:
    """Items right at .7; each arm loses what its changes take, and flips symmetrically besides."""
    base = (rng.random(n) < 0.7).astype(float)
    found = {}
    for arm in arms:
        drop = sum(amount for part, amount in drops.items() if part <= arm)
        flips = rng.random(n)
        values = np.where((base == 1) & (flips < drop / 0.7), 0.0, base)
        symmetric = (rng.random(n) < noise) & bool(arm)
        found[arm] = np.where(symmetric, rng.permutation(values), values)
    return found


def by_changes(effects):
    return {effect.changes: effect for effect in effects}


def coverage(rng, arms, planted, truth, *, n, rounds, labels=None, draw=outcomes):
    """How often each effect's interval holds its truth, and how often Holm's p finds it. Shares of the rounds."""
    inside, seen = dict.fromkeys(truth, 0.0), dict.fromkeys(truth, 0.0)
    for _ in range(rounds):
        effects = by_changes(attribute(draw(rng, arms, planted, n=n), labels or [""] * n, rng))
        for changes, drop in truth.items():
            effect = effects[changes]
            assert effect.averaged and effect.lower is not None and effect.upper is not None
            inside[changes] += (effect.lower <= drop <= effect.upper) / rounds
            seen[changes] += (effect.p_adjusted <= 0.05) / rounds
    return inside, seen


def least(rounds):
    """95 % less three standard errors."""
    return 0.95 - 3 * np.sqrt(0.05 * 0.95 / rounds)


def test_planted_effects_and_an_interaction_are_recovered_at_the_stated_rate():
    """250 experiments of two changes in all their combinations."""
    planted = {frozenset([W]): 0.05, frozenset([K]): 0.0, frozenset([W, K]): 0.04}
    truth = {(K,): 0.02, (W,): 0.07, (K, W): 0.04}  # means over contexts: half of the interaction comes on top
    inside, seen = coverage(np.random.default_rng(3), arms_of([W, K]), planted, truth, n=500, rounds=250)
    assert min(inside.values()) >= least(250), inside
    assert max(inside.values()) <= 0.99, "intervals that hold everything say nothing"
    assert seen[(W,)] == pytest.approx(1.0) and seen[(K, W)] > 0.5


def test_three_changes_and_their_interactions_are_recovered_at_the_stated_rate():
    """100 experiments of eight arms: one pair interacts, the others do not."""
    planted = {frozenset([W]): 0.04, frozenset([P]): 0.06, frozenset([W, K]): 0.06}
    truth = {(W,): 0.07, (K,): 0.03, (P,): 0.06, (K, W): 0.06, (K, P): 0.0, (W, P): 0.0}
    inside, seen = coverage(np.random.default_rng(13), arms_of([W, K, P]), planted, truth, n=400, rounds=100)
    assert min(inside.values()) >= least(100), inside
    assert min(seen[(W,)], seen[(P,)]) > 0.9 and seen[(K, W)] > 0.5
    assert max(seen[(K, P)], seen[(W, P)]) <= 0.05


@pytest.mark.parametrize(("clusters", "rounds"), [(10, 80), (40, 150)])
def test_effects_on_items_that_flip_together_are_recovered_at_the_stated_rate(clusters, rounds):
    """Each cluster takes an effect of its own around the planted one: intervals of single items would be too short."""
    size = 20

    def draw(rng, arms, drops, n):
        base = (rng.random(n) < 0.7).astype(float)
        own = {part: rng.choice([0.0, 2.0], clusters).repeat(size) * amount for part, amount in drops.items()}
        found = {}
        for arm in arms:
            drop = sum((amount for part, amount in own.items() if part <= arm), np.zeros(n))
            found[arm] = np.where((base == 1) & (rng.random(n) < drop / 0.7), 0.0, base)
        return found

    labels = [f"c{i // size}" for i in range(clusters * size)]
    planted = {frozenset([W]): 0.15, frozenset([K]): 0.05}
    truth = {(W,): 0.15, (K,): 0.05, (K, W): 0.0}
    numbers = {"n": clusters * size, "rounds": rounds, "draw": draw}
    rng = np.random.default_rng(14)
    inside, _ = coverage(rng, arms_of([W, K]), planted, truth, labels=labels, **numbers)
    assert min(inside.values()) >= least(rounds), inside
    alone, _ = coverage(rng, arms_of([W, K]), planted, truth, **numbers)
    assert alone[(W,)] < least(rounds), alone


def test_without_effects_the_family_is_wrong_in_one_of_twenty():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(150):
        effects = attribute(outcomes(rng, arms_of([W, K]), {}, n=300, noise=0.1), [""] * 300, rng)
        wrong += min(effect.p_adjusted for effect in effects) <= 0.05
    assert wrong / 150 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)


def test_one_change_at_a_time_leaves_the_interaction_unknown():
    rng = np.random.default_rng(5)
    arms = [frozenset(), frozenset([W]), frozenset([K])]
    effects = by_changes(attribute(outcomes(rng, arms, {frozenset([W]): 0.05}), [""] * 2000, rng))
    assert effects[(W,)].contexts == (frozenset(),) and not effects[(W,)].averaged
    assert effects[(K, W)].drop is None
    assert effects[(K, W)].unknown == "no arm has decode.kv=fp8 and decode.weights=int4 and nothing else"


def test_a_missing_corner_leaves_known_what_the_other_arms_can_tell():
    """Without the arm of all three changes each pair is known in one context, and that is not called a mean."""
    rng = np.random.default_rng(15)
    arms = [arm for arm in arms_of([W, K, P]) if len(arm) < 3]
    effects = by_changes(attribute(outcomes(rng, arms, {frozenset([W]): 0.05}), [""] * 2000, rng))
    assert effects[(K, W)].contexts == (frozenset(),) and not effects[(K, W)].averaged
    assert len(effects[(W,)].contexts) == 3 and not effects[(W,)].averaged
    assert not any(effect.unknown for effect in effects.values())


def test_changes_that_only_come_together_cannot_be_told_apart():
    rng = np.random.default_rng(6)
    arms = [frozenset(), frozenset([W, K])]
    effects = attribute(outcomes(rng, arms, {frozenset([W]): 0.1}), [""] * 2000, rng)
    assert [effect.drop for effect in effects] == [None, None, None]
    assert "decode.weights=int4 and nothing else" in by_changes(effects)[(W,)].unknown


def test_two_formats_of_one_factor_are_two_changes_and_never_interact():
    rng = np.random.default_rng(7)
    other = ("decode.weights", "fp8")
    arms = [frozenset(), frozenset([W]), frozenset([other])]
    effects = attribute(outcomes(rng, arms, {frozenset([W]): 0.08}), [""] * 2000, rng)
    assert [effect.changes for effect in effects] == [(other,), (W,)]
    assert effects[0].averaged and effects[1].averaged  # no other factor changes: there is one context


def test_three_factors_are_averaged_over_four_contexts():
    rng = np.random.default_rng(8)
    effects = by_changes(attribute(outcomes(rng, arms_of([W, K, P]), {frozenset([P]): 0.06}), [""] * 2000, rng))
    assert len(effects) == 6 and len(effects[(P,)].contexts) == 4
    assert effects[(P,)].drop == pytest.approx(0.06, abs=0.015) and effects[(P,)].p_adjusted < 0.01


def test_items_without_a_value_are_left_out_and_clusters_widen():
    rng = np.random.default_rng(9)
    found = outcomes(rng, [frozenset(), frozenset([W])], {frozenset([W]): 0.1}, n=400)
    found[frozenset([W])][:100] = np.nan
    alone = attribute(found, [""] * 400, rng)[0]
    assert alone.n == 300
    clustered = attribute(found, [f"c{i // 20}" for i in range(400)], rng)[0]
    assert clustered.drop == pytest.approx(alone.drop)
    found[frozenset([W])][:] = np.nan
    assert attribute(found, [""] * 400, rng)[0].unknown == "no item is scored in all of the arms"


def test_a_baseline_is_needed():
    with pytest.raises(ValueError, match="no arm without changes"):
        attribute({frozenset([W]): np.ones(3)}, [""] * 3, np.random.default_rng(0))
