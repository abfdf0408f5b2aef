"""What each gate says of simulated counts, for all runs at once. Words: 1 REGRESSED, 0 INCONCLUSIVE, -1 PASS.

a: a fixed threshold (red above 1 point). b: unpaired z. t: TensorRT-LLM's rule (sigma 50). e: a 95 % paired interval
against the margin. c: this service's fixed design. h: its sequential design, which looks every 250 items, and every 10
in the published table.
"""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom, norm

from evalsvc.verdict.hybrid import measure_hybrid
from evalsvc.verdict.measure import measure_counts
from evalsvc.verdict.rule import decide
from evalsvc.verdict.sequential import BETS, E_SHARE, FIXED_SHARE, threshold

ALPHA, MARGIN, ACCURACY, BLOCK = 0.05, 0.01, 0.8, 250
PART = 500  # thousands of looks of all runs that are held at once
CODES = {"REGRESSED": 1, "INCONCLUSIVE": 0, "PASS": -1}
Z = float(norm.isf(ALPHA))
Words = np.ndarray


def chances(f: float, drop: float) -> list[float]:
    """Probabilities of a lost item, a gained one, and one that stays, at discordance f."""
    return [(f + drop) / 2, (f - drop) / 2, 1 - f]


def draw(rng: np.random.Generator, f: float, drop: float, n: int, runs: int) -> np.ndarray:
    """Counts of right in both, lost, gained, wrong in both. Shape: (runs, 4)."""
    lost, gained, _ = chances(f, drop)
    return rng.multinomial(n, [ACCURACY - lost, lost, gained, 1 - ACCURACY - gained], size=runs)


def at_threshold(counts: np.ndarray, n: int) -> Words:
    return np.where((counts[:, 1] - counts[:, 2]) / n > MARGIN, 1, -1)


def unpaired(counts: np.ndarray, n: int) -> Words:
    base, cand = (counts[:, 0] + counts[:, 1]) / n, (counts[:, 0] + counts[:, 2]) / n
    error = np.sqrt((base * (1 - base) + cand * (1 - cand)) / n)
    return np.where((base - cand) / error > Z, 1, -1)


def sigma_fifty(counts: np.ndarray, n: int) -> Words:
    return np.where(100 * (counts[:, 1] - counts[:, 2]) / n > Z * 50 * sqrt(2 / n), 1, -1)


def interval(counts: np.ndarray, n: int) -> Words:
    b, c = counts[:, 1], counts[:, 2]
    half = norm.isf(0.025) * np.sqrt(np.maximum(b + c - (b - c) ** 2 / n, 0)) / n
    drop = (b - c) / n
    return np.where(drop - half > MARGIN, 1, np.where(drop + half <= MARGIN, -1, 0))


def tango(lost: np.ndarray, gained: np.ndarray, n: np.ndarray | float, margin: np.ndarray | float) -> np.ndarray:
    """`evalsvc.verdict.paired.tango_statistic`; its upper bound at alpha is within the margin where it is <= -z."""
    a, b = 2 * n, -(lost + gained) + (2 * n - lost + gained) * margin
    q = (np.sqrt(np.maximum(b * b + 4 * a * gained * margin * (1 - margin), 0)) - b) / (2 * a)
    return (lost - gained - n * margin) / np.sqrt(n * (2 * q + margin * (1 - margin)))


def exact_p(lost: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """One-sided exact McNemar."""
    return binom.sf(lost - 1, lost + gained, 0.5)


def fixed(counts: np.ndarray, n: int) -> Words:
    b, c = counts[:, 1], counts[:, 2]
    return np.where(tango(b, c, n, MARGIN) <= -Z, -1, exact_p(b, c) < ALPHA)


DESIGNS: dict[str, Callable[[np.ndarray, int], Words]] = {
    "a": at_threshold,
    "b": unpaired,
    "t": sigma_fifty,
    "e": interval,
    "c": fixed,
}


def mixture(logs: np.ndarray) -> np.ndarray:
    """log of the mean over bets, the last axis."""
    return np.asarray(logsumexp(logs, axis=-1)) - log(len(BETS))


def stop_or_end(
    log_e: np.ndarray, log_e_pass: np.ndarray, p_fixed: np.ndarray, passed: np.ndarray, family: int = 1
) -> tuple[Words, np.ndarray, np.ndarray]:
    """The hybrid design, given its processes and its fixed test.

    Args:
        log_e: Against "no drop", after each look. Shape: (runs, looks).
        log_e_pass: Against "the drop is at least the margin". Shape: (runs, looks).
        p_fixed: Over all items. Shape: (runs,).
        passed: Whether the fixed bound at the fixed test's share of alpha is within the margin. Shape: (runs,).
        family: Tests in the family.

    Returns:
        Words, the last look, and the hybrid p.
    """
    green = log_e_pass >= threshold(ALPHA)
    decided = green | (log_e >= threshold(ALPHA, family))
    stopped, rows = decided.any(axis=1), np.arange(len(decided))
    at = np.where(stopped, decided.argmax(axis=1), decided.shape[1] - 1)
    highest = np.maximum.accumulate(log_e, axis=1)[rows, at]
    p = np.minimum(np.exp(-highest) / E_SHARE, np.where(stopped, 1.0, p_fixed / FIXED_SHARE)).clip(max=1.0)
    early = np.where(green[rows, at], -1, 1)
    return np.where(stopped, early, np.where(passed, -1, p < ALPHA)), at, p


def block_steps(
    rng: np.random.Generator, f: float, drop: float, n: int, runs: int, block: int = BLOCK
) -> tuple[np.ndarray, np.ndarray]:
    """Lost, gained and unchanged items of each block, and the items up to its end. Shape: (runs, blocks, 3)."""
    sizes = np.diff(np.append(np.arange(0, n, block), n))
    return np.stack([rng.multinomial(s, chances(f, drop), size=runs) for s in sizes], axis=1), sizes.cumsum()


def hybrid(steps: np.ndarray, ends: np.ndarray, family: int = 1) -> tuple[Words, np.ndarray, np.ndarray]:
    """Words, items used, and the hybrid p of the regression."""
    parts = np.array_split(steps, -(-steps.shape[0] * steps.shape[1] // (1000 * PART)))
    words, used, p = zip(*(_hybrid(part, ends, family) for part in parts), strict=True)
    return np.concatenate(words), np.concatenate(used), np.concatenate(p)


def _hybrid(steps: np.ndarray, ends: np.ndarray, family: int) -> tuple[Words, np.ndarray, np.ndarray]:
    counts, n = steps.cumsum(axis=1), int(ends[-1])
    values, bets = np.array([1.0, -1.0, 0.0]), BETS / (1 - MARGIN)
    log_e = mixture(counts @ np.log1p(np.multiply.outer(values, BETS)))
    log_e_pass = mixture(counts @ np.log1p(-np.multiply.outer(values - MARGIN, bets)))
    b, c = counts[:, -1, 0], counts[:, -1, 1]
    passed = tango(b, c, n, MARGIN) <= -norm.isf(FIXED_SHARE * ALPHA)
    words, at, p = stop_or_end(log_e, log_e_pass, exact_p(b, c), passed, family)
    return words, ends[at], p


def check_designs(rng: np.random.Generator, draws: int) -> None:
    """Fails where the designs above and the service's own functions part."""
    for f, n in ((0.05, 500), (0.12, 1319)):
        counts = draw(rng, f, 0.005, n, draws)
        own = [decide(measure_counts(int(b), int(c), n), MARGIN).word for _, b, c, _ in counts]
        assert fixed(counts, n).tolist() == [CODES[word] for word in own]
        steps, ends = block_steps(rng, f, 0.03, n, draws)
        words, used, _ = hybrid(steps, ends)
        for word, items, blocks in zip(words, used, steps, strict=True):
            differences = np.concatenate([np.repeat([1, -1, 0], block) for block in blocks])[:items]
            base = (differences >= 0).astype(int)
            looks = ends[ends <= items].tolist()
            found = measure_hybrid(
                base.tolist(), (base - differences).tolist(), [""] * len(base), looks, complete=bool(items == n)
            )
            assert CODES[decide(found, MARGIN).word] == word
