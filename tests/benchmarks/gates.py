"""Error rates of gates on simulated paired outcomes: `python -m tests.benchmarks.gates`.

Baseline accuracy .80, margin 1 point, alpha .05. Designs: a fixed threshold (red above 1 point), b unpaired z, t
TensorRT-LLM's rule (sigma 50), e a 95 % paired interval against the margin, c the fixed design of this service (exact
McNemar and Tango), h its hybrid sequential design in blocks of 250. Prints % REGRESSED / % PASS, and for h the mean
number of items; then clustered cells, a family of ten suites with early stops, and the release rule.
"""

import argparse
from collections.abc import Callable
from functools import cache
from math import log, sqrt

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp
from scipy.stats import norm

from evalsvc.claims import POOLED, Key
from evalsvc.policy import Policy
from evalsvc.release import judge_measured, release_word
from evalsvc.verdict.families import holm
from evalsvc.verdict.measure import measure, measure_counts
from evalsvc.verdict.paired import mcnemar_exact, tango_upper
from evalsvc.verdict.rule import decide
from evalsvc.verdict.sequential import BETS, E_SHARE, FIXED_SHARE, hybrid_p

ALPHA, MARGIN, ACCURACY, BLOCK = 0.05, 0.01, 0.8, 250
CELLS = [(f, n) for f in (0.05, 0.12) for n in (500, 1319, 5000)]
DROPS = (0.0, 0.005, 0.01, 0.02, 0.04)
E_LEVEL = E_SHARE * ALPHA
Z = float(norm.isf(ALPHA))
Words = np.ndarray  # 1 REGRESSED, 0 INCONCLUSIVE, -1 PASS


@cache
def fixed_word(lost: int, gained: int, n: int, alpha: float = ALPHA, margin: float = MARGIN) -> int:
    """The service's fixed design on counts."""
    if tango_upper(lost, gained, n, alpha) <= margin:
        return -1
    return int(mcnemar_exact(lost, gained) < alpha)


def draw(rng: np.random.Generator, f: float, drop: float, n: int, runs: int) -> np.ndarray:
    """Counts of right in both, lost, gained, wrong in both. Shape: (runs, 4)."""
    lost, gained = (f + drop) / 2, (f - drop) / 2
    return rng.multinomial(n, [ACCURACY - lost, lost, gained, 1 - ACCURACY - gained], size=runs)


def threshold(counts: np.ndarray, n: int) -> Words:
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


def fixed(counts: np.ndarray, n: int) -> Words:
    return np.array([fixed_word(int(b), int(c), n) for _, b, c, _ in counts])


def log_e(lost: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """log e-values against "no drop" at each look. Shape of the result: that of `lost`."""
    logs = lost[..., None] * np.log1p(BETS) + gained[..., None] * np.log1p(-BETS)
    return logsumexp(logs, axis=-1) - log(len(BETS))


def log_e_pass(lost: np.ndarray, gained: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """log e-values against "the drop is at least the margin"."""
    bets = BETS / (1 - MARGIN)
    same = seen - lost - gained
    logs = (
        lost[..., None] * np.log1p(-bets * (1 - MARGIN))
        + gained[..., None] * np.log1p(bets * (1 + MARGIN))
        + same[..., None] * np.log1p(bets * MARGIN)
    )
    return logsumexp(logs, axis=-1) - log(len(BETS))


def hybrid(
    rng: np.random.Generator, f: float, drop: float, n: int, runs: int, family: int = 1
) -> tuple[Words, np.ndarray, np.ndarray]:
    """Words, items used, and hybrid p of the regression, of runs that look every 250 items."""
    sizes = np.diff(np.append(np.arange(0, n, BLOCK), n))
    lost, gained = (f + drop) / 2, (f - drop) / 2
    steps = np.stack([rng.multinomial(size, [lost, gained, 1 - f], size=runs) for size in sizes], axis=1)
    b, c = steps[..., 0].cumsum(axis=1), steps[..., 1].cumsum(axis=1)
    seen = sizes.cumsum()
    e, e_pass = log_e(b, c), log_e_pass(b, c, seen)
    red, green = e >= log(family / E_LEVEL), e_pass >= -log(E_LEVEL)
    stopped = red | green
    at = np.where(stopped.any(axis=1), stopped.argmax(axis=1), len(sizes) - 1)
    rows = np.arange(runs)
    level = FIXED_SHARE * ALPHA
    words, p = np.zeros(runs, dtype=int), np.ones(runs)
    for i in rows:
        highest = e[i, : at[i] + 1].max()
        if stopped[i, at[i]]:
            words[i] = 1 if red[i, at[i]] else -1
            p[i] = hybrid_p(1.0, highest)
            continue
        p[i] = hybrid_p(mcnemar_exact(int(b[i, -1]), int(c[i, -1])), highest)
        if tango_upper(b[i, -1], c[i, -1], n, level) <= MARGIN:
            words[i] = -1
        else:
            words[i] = int(p[i] < ALPHA)
    return words, seen[at], p


DESIGNS: dict[str, Callable[[np.ndarray, int], Words]] = {
    "a": threshold,
    "b": unpaired,
    "t": sigma_fifty,
    "e": interval,
    "c": fixed,
}


def rates(words: Words) -> tuple[float, float]:
    """% REGRESSED and % PASS."""
    return 100 * float(np.mean(words == 1)), 100 * float(np.mean(words == -1))


def grid(rng: np.random.Generator, runs: int, cells=CELLS, drops=DROPS) -> list[dict]:
    """Every cell of the published grid, by design."""
    found = []
    for f, n in cells:
        for drop in drops:
            counts = draw(rng, f, drop, n, runs)
            cell = {"f": f, "n": n, "drop": drop}
            cell |= {name: rates(design(counts, n)) for name, design in DESIGNS.items()}
            words, used, _ = hybrid(rng, f, drop, n, runs)
            found.append({**cell, "h": rates(words), "items": float(used.mean())})
    return found


def clustered_outcomes(
    rng: np.random.Generator, clusters: int, size: int, f: float, drop: float, rho: float
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Outcomes of both arms where flips of one cluster are alike.

    An item takes its cluster's own outcome (lost, gained or the same) with probability sqrt(rho), else one of its own:
    two items of a cluster then have correlation rho.
    """
    lost, gained = (f + drop) / 2, (f - drop) / 2
    shared = rng.choice([1, -1, 0], p=[lost, gained, 1 - f], size=(clusters, 1))
    own = rng.choice([1, -1, 0], p=[lost, gained, 1 - f], size=(clusters, size))
    differences = np.where(rng.random((clusters, size)) < sqrt(rho), shared, own).ravel()
    stays = rng.random(clusters * size) < ACCURACY
    baseline = np.where(differences == 0, stays, differences == 1).astype(int)
    labels = [f"c{i // size}" for i in range(clusters * size)]
    return baseline, baseline - differences, labels


def clustered(rng: np.random.Generator, runs: int) -> list[dict]:
    """False alarms at no drop and false PASS at a drop of the margin, 8 and 20 clusters."""
    found = []
    for clusters, size in ((8, 63), (8, 165), (20, 25), (20, 66)):
        for f in (0.05, 0.12):
            for rho in (0.0, 0.1, 0.3):
                cell = {"clusters": clusters, "n": clusters * size, "f": f, "rho": rho}
                for name, drop, wanted in (("false alarm", 0.0, 1), ("false PASS", MARGIN, -1)):
                    hits = 0
                    for _ in range(runs):
                        base, cand, labels = clustered_outcomes(rng, clusters, size, f, drop, rho)
                        word = decide(measure(base.tolist(), cand.tolist(), labels), MARGIN).word
                        hits += word == ("REGRESSED" if wanted == 1 else "PASS")
                    cell[name] = 100 * hits / runs
                found.append(cell)
    return found


def family_of_ten(rng: np.random.Generator, runs: int) -> float:
    """% of runs of ten undamaged suites that flag any, with early stops and Holm on the hybrid p."""
    columns = [hybrid(rng, 0.05, 0.0, 1319, runs, family=10)[2] for _ in range(10)]
    return 100 * float(np.mean([min(holm(list(row))) < ALPHA for row in np.array(columns).T]))


def release_rates(rng: np.random.Generator, runs: int, drops: list[float], policy: Policy) -> dict[str, float]:
    """% of each word over runs of ten suites of 1,319 items at 5 % discordance."""
    found: dict[str, int] = {}
    for _ in range(runs):
        counts = [draw(rng, 0.05, drop, 1319, 1)[0] for drop in drops]
        measured = {Key(f"s{i}"): measure_counts(int(b), int(c), 1319) for i, (_, b, c, _) in enumerate(counts)}
        total = np.sum(counts, axis=0)
        measured = {POOLED: measure_counts(int(total[1]), int(total[2]), 13190), **measured}
        judged = judge_measured(measured, policy)
        word = release_word({key: verdict.word for key, verdict in judged.items()}, policy)
        found[word] = found.get(word, 0) + 1
    return {word: 100 * count / runs for word, count in found.items()}


DEFAULT = Policy(name="default")
TIGHT = Policy(name="guards of 2 points, strict", guard_points=2.0, guards="strict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000, help="repetitions of each cell")
    parser.add_argument("--clustered-runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261129)
    options = parser.parse_args()
    console, rng = Console(width=120, highlight=False), np.random.default_rng(options.seed)
    table = Table(title=f"% REGRESSED / % PASS, {options.runs} repetitions, margin 1 point")
    for name in ("f", "n", "drop", "a", "b", "t", "e", "c", "h (items)"):
        table.add_column(name, justify="right")
    for cell in grid(rng, options.runs):
        shown = [f"{cell[name][0]:.0f}/{cell[name][1]:.0f}" for name in DESIGNS]
        shown.append(f"{cell['h'][0]:.0f}/{cell['h'][1]:.0f} ({cell['items']:.0f})")
        table.add_row(f"{100 * cell['f']:.0f} %", str(cell["n"]), f"{100 * cell['drop']:.1f}", *shown)
    console.print(table)
    table = Table(title=f"clustered, {options.clustered_runs} repetitions: % wrong, 5 promised")
    for name in ("clusters", "n", "f", "rho", "false alarm", "false PASS"):
        table.add_column(name, justify="right")
    for cell in clustered(rng, options.clustered_runs):
        table.add_row(
            str(cell["clusters"]),
            str(cell["n"]),
            f"{100 * cell['f']:.0f} %",
            f"{cell['rho']:.1f}",
            f"{cell['false alarm']:.1f}",
            f"{cell['false PASS']:.1f}",
        )
    console.print(table)
    console.print(
        f"ten undamaged suites with early stops: {family_of_ten(rng, options.runs):.1f} % flag any (5 promised)"
    )
    few = max(200, options.runs // 10)
    for title, drops in (
        ("no drop", [0.0] * 10),
        ("2 points in every suite", [0.02] * 10),
        ("2 points in one suite of ten", [0.02] + [0.0] * 9),
    ):
        for policy in (DEFAULT, TIGHT):
            words = release_rates(rng, few, drops, policy)
            said = ", ".join(f"{word} {share:.0f} %" for word, share in sorted(words.items()))
            console.print(f"release, {title}, policy {policy.name}: {said}")


if __name__ == "__main__":
    main()
