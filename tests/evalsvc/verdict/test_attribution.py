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


def test_planted_effects_and_an_interaction_are_recovered_at_the_stated_rate():
    """200 experiments: each 95 % interval holds its truth in 95 % of them, within Monte Carlo error."""
    rng = np.random.default_rng(3)
    planted = {frozenset([W]): 0.05, frozenset([K]): 0.0, frozenset([W, K]): 0.04}
    truth = {(K,): 0.02, (W,): 0.07, (K, W): 0.04}  # means over contexts: half of the interaction comes on top
    rounds, inside, seen = 200, dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for _ in range(rounds):
        effects = by_changes(attribute(outcomes(rng, arms_of([W, K]), planted, n=500), [""] * 500, rng))
        for changes, drop in truth.items():
            effect = effects[changes]
            assert effect.averaged and effect.lower is not None and effect.upper is not None
            inside[changes] += effect.lower <= drop <= effect.upper
            seen[changes] += effect.p_adjusted <= 0.05
    error = 3 * np.sqrt(0.05 * 0.95 / rounds)
    assert all(abs(count / rounds - 0.95) <= error + 0.01 for count in inside.values()), inside
    assert seen[(W,)] == rounds and seen[(K, W)] > 0.5 * rounds


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
