"""Items that flip together: simulated clusters, and the service's clustered rule for all runs at once.

Three ways in which two items of a cluster can be alike, each with correlation rho:
whole: an item takes its cluster's one outcome with probability sqrt(rho), else an outcome of its own;
rates: a cluster's chances of a lost, a gained and an unchanged item are drawn from a Dirichlet distribution;
direction: as many items flip in every cluster, but each leans its own way (Beta), lost or gained.
"""

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from evalsvc.verdict.hybrid import measure_hybrid
from evalsvc.verdict.measure import measure
from evalsvc.verdict.rule import decide
from evalsvc.verdict.sequential import BETS, FIXED_SHARE
from tests.benchmarks.designs import ALPHA, CODES, MARGIN, Words, chances, exact_p, mixture, stop_or_end, tango

MODELS = ("whole", "rates", "direction")
SHAPES = {
    "8 of 63": [63] * 8,
    "8 of 165": [165] * 8,
    "8 of 25 to 305": list(range(25, 306, 40)),
    "20 of 25": [25] * 20,
    "20 of 66": [66] * 20,
    "20 of 9 to 123": list(range(9, 124, 6)),
}
WIDE_MARGIN = 0.05
WIDE = {"8 of 165": [165] * 8, "20 of 66": [66] * 20, "56 of 4": [4] * 56}  # at that margin; the last is the demo's
STEP = 8  # clusters between two looks of the sequential design


def draw_clusters(
    rng: np.random.Generator, model: str, sizes: list[int], f: float, drop: float, rho: float, runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lost and gained items of each cluster. Shape of both: (runs, clusters)."""
    shape, p = (runs, len(sizes)), np.array(chances(f, drop))
    if model == "whole" or rho == 0:
        together = rng.binomial(sizes, np.sqrt(rho), size=shape)
        own, luck = rng.multinomial(np.array(sizes) - together, p), rng.random(shape)
        lost = own[..., 0] + together * (luck < p[0])
        return lost, own[..., 1] + together * ((luck >= p[0]) & (luck < f))
    weight = (1 - rho) / rho
    if model == "rates":
        gamma = rng.standard_gamma(p * weight, size=(*shape, 3))
        own = rng.multinomial(np.broadcast_to(sizes, shape), gamma / gamma.sum(axis=-1, keepdims=True))
        return own[..., 0], own[..., 1]
    flips = rng.binomial(sizes, f, size=shape)
    lost = rng.binomial(flips, rng.beta(p[0] / f * weight, p[1] / f * weight, size=shape))
    return lost, flips - lost


def judge_clusters(
    lost: np.ndarray, gained: np.ndarray, sizes: list[int], alpha: float = ALPHA, margin: float = MARGIN
) -> tuple[np.ndarray, np.ndarray]:
    """p of each run, and whether its upper bound is within the margin: `evalsvc.verdict.measure.measure`."""
    c, n, each = len(sizes), float(sum(sizes)), np.array(sizes, dtype=float)
    b, g, totals = lost.sum(axis=1), gained.sum(axis=1), (lost - gained).astype(float)
    drop = totals.sum(axis=1)
    spread = ((totals - totals.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_t = student.sf(drop / np.sqrt(c / (c - 1) * spread), c - 1)
    p_cluster = np.where(spread < 1e-12, np.where(drop > 0, 0.5**c, 1.0), p_t)
    squares = (totals - each * (drop / n)[:, None]) ** 2
    variance, flips = b + g - drop**2 / n, np.maximum(b + g, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        deff = np.maximum(np.where(variance > 0, c / (c - 1) * squares.sum(axis=1) / variance, 1.0), 1.0)
        kurtosis = c * (squares**2).sum(axis=1) / squares.sum(axis=1) ** 2
    expected = (3 + np.maximum(n / flips - 3, 0) * c / n) * (c - 1) / (c + 1)
    freedom = np.where(squares.sum(axis=1) > 1e-12, (c - 1) * np.minimum(expected / kurtosis, 1.0), c - 1.0)
    deviate = np.where(variance > 0, student.isf(alpha, np.maximum(freedom, 1.0)), norm.isf(alpha))
    score = tango(b, g, n, margin)  # of n / deff items it is 1 / sqrt(deff) of this
    passed = (score <= -norm.isf(alpha)) & (score / np.sqrt(deff) <= -deviate)
    return np.maximum(exact_p(b, g), p_cluster), passed & _t_passes(totals, each, alpha, margin)


def _t_passes(totals: np.ndarray, sizes: np.ndarray, alpha: float, margin: float) -> np.ndarray:
    """Whether t on totals rejects "the drop is the margin", as `evalsvc.verdict.clusters.cluster_bounds` inverts it."""
    c, n = len(sizes), float(sizes.sum())
    k = student.isf(alpha, c - 1) ** 2 * c / (c - 1)
    away = totals - margin * sizes
    beyond = away.sum(axis=1) ** 2 >= k * ((away - away.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    bounded = n * n > k * ((sizes - sizes.mean()) ** 2).sum()
    return ~totals.any(axis=1) | (bounded & beyond & (away.sum(axis=1) < 0))


def clustered_words(lost: np.ndarray, gained: np.ndarray, sizes: list[int], margin: float = MARGIN) -> Words:
    """The fixed design."""
    p, passed = judge_clusters(lost, gained, sizes, margin=margin)
    return np.where(passed, -1, p < ALPHA)


def hybrid_words(lost: np.ndarray, gained: np.ndarray, sizes: list[int]) -> tuple[Words, np.ndarray]:
    """The sequential design over whole clusters, `STEP` to a block; words and clusters used."""
    totals, each, largest = lost - gained, np.array(sizes), max(sizes)
    ends = np.append(np.arange(STEP, len(sizes), STEP), len(sizes))
    logs = np.log1p(np.multiply.outer(totals / largest, BETS)).cumsum(axis=1)[:, ends - 1]
    away = (totals - MARGIN * each) / largest
    logs_pass = np.log1p(-np.multiply.outer(away, BETS / (1 - MARGIN))).cumsum(axis=1)[:, ends - 1]
    p, _ = judge_clusters(lost, gained, sizes)
    _, passed = judge_clusters(lost, gained, sizes, FIXED_SHARE * ALPHA)
    words, at, _ = stop_or_end(mixture(logs), mixture(logs_pass), p, passed)
    return words, ends[at]


def outcomes(
    lost: np.ndarray, gained: np.ndarray, sizes: list[int], used: int
) -> tuple[list[int], list[int], list[str]]:
    """Both arms' items of one run's first so many clusters, and their labels."""
    parts = [np.repeat([1, -1, 0], [b, g, s - b - g]) for b, g, s in zip(lost, gained, sizes, strict=True)]
    differences = np.concatenate(parts[:used])
    base = (differences >= 0).astype(int)
    return base.tolist(), (base - differences).tolist(), [f"c{i}" for i in range(used) for _ in range(sizes[i])]


def check_clusters(rng: np.random.Generator, draws: int) -> None:
    """Fails where the rules above and the service's own functions part."""
    for model, sizes, f in (("rates", SHAPES["20 of 9 to 123"], 0.05), ("whole", SHAPES["8 of 63"], 0.05)):
        lost, gained = draw_clusters(rng, model, sizes, f, 0.0, 0.1, draws)
        for word, b, g in zip(clustered_words(lost, gained, sizes), lost, gained, strict=True):
            assert CODES[decide(measure(*outcomes(b, g, sizes, len(sizes))), MARGIN).word] == word
    sizes = [33] * 40
    lost, gained = draw_clusters(rng, "rates", sizes, 0.12, 0.06, 0.1, draws)
    for word, used, b, g in zip(*hybrid_words(lost, gained, sizes), lost, gained, strict=True):
        looks = [33 * i for i in range(STEP, int(used) + 1, STEP)]
        found = measure_hybrid(*outcomes(b, g, sizes, int(used)), looks, largest=33, complete=bool(used == 40))
        assert CODES[decide(found, MARGIN).word] == word
