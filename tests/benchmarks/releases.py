"""Families of suites: ten with early stops and Holm, and the release rule, for all runs at once."""

import numpy as np
from scipy.stats import norm

from evalsvc.claims import POOLED, Key
from evalsvc.policy import Policy
from evalsvc.release import adjust, release_word
from evalsvc.verdict.families import holm
from evalsvc.verdict.measure import measure_counts
from evalsvc.verdict.rule import decide
from tests.benchmarks.designs import ALPHA, block_steps, draw, exact_p, hybrid, tango

SUITES, ITEMS, DISCORDANCE = 10, 1319, 0.05
POLICIES = (
    Policy(name="default"),
    Policy(name="guards of 2 points", guard_points=2.0),
    Policy(name="guards of 2 points, strict", guard_points=2.0, guards="strict"),
)


def family_of_ten(rng: np.random.Generator, runs: int) -> float:
    """Share of runs of ten undamaged suites that flag any, with early stops and Holm on the hybrid p."""
    columns = [hybrid(*block_steps(rng, DISCORDANCE, 0.0, ITEMS, runs), family=SUITES)[2] for _ in range(SUITES)]
    return float(np.mean([min(holm(list(row))) < ALPHA for row in np.array(columns).T]))


def release_shares(rng: np.random.Generator, runs: int, drops: list[float], policy: Policy) -> dict[str, float]:
    """Share of each word over runs of a release whose suites have these drops."""
    words = release_words(draw_suites(rng, runs, drops), policy)
    return {word: float(np.mean(words == word)) for word in ("PASS", "INCONCLUSIVE", "REGRESSED")}


def draw_suites(rng: np.random.Generator, runs: int, drops: list[float]) -> np.ndarray:
    """Counts of each suite. Shape: (runs, suites, 4)."""
    return np.stack([draw(rng, DISCORDANCE, drop, ITEMS, runs) for drop in drops], axis=1)


def release_words(counts: np.ndarray, policy: Policy) -> np.ndarray:
    """The release's word of each run. Shape: (runs,)."""
    suites = counts.shape[1]
    rows = np.concatenate([counts.sum(axis=1, keepdims=True), counts], axis=1)
    n = np.array([suites * ITEMS] + [ITEMS] * suites)
    margins = np.array([policy.margin] + [policy.guard("")] * suites)
    lost, gained = rows[..., 1], rows[..., 2]
    passed = tango(lost, gained, n, margins) <= -norm.isf(policy.alpha)
    red = ~passed & (_holm(exact_p(lost, gained)) < policy.alpha)
    waiting = ~passed & ~red
    undecided = waiting[:, 0] | ((policy.guards == "strict") & waiting.any(axis=1))
    return np.where(red.any(axis=1), "REGRESSED", np.where(undecided, "INCONCLUSIVE", "PASS"))


def _holm(p: np.ndarray) -> np.ndarray:
    order = np.argsort(p, axis=1)
    steps = np.take_along_axis(p, order, axis=1) * np.arange(p.shape[1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, axis=1).clip(max=1.0), axis=1)
    return adjusted


def check_releases(rng: np.random.Generator, draws: int) -> None:
    """Fails where the rule above and the service's own functions part."""
    for policy in POLICIES:
        counts = draw_suites(rng, draws, [0.02] + [0.0] * (SUITES - 1))
        for word, run in zip(release_words(counts, policy), counts, strict=True):
            total = run.sum(axis=0)
            measured = {POOLED: measure_counts(int(total[1]), int(total[2]), SUITES * ITEMS)}
            measured |= {Key(f"s{i}"): measure_counts(int(b), int(c), ITEMS) for i, (_, b, c, _) in enumerate(run)}
            adjusted = adjust({key: found.p for key, found in measured.items()})
            judged = {
                key: decide(
                    found, policy.margin if key == POOLED else policy.guard(key.suite), p_adjusted=adjusted[key]
                )
                for key, found in measured.items()
            }
            assert release_word({key: verdict.word for key, verdict in judged.items()}, policy) == word
