"""Error rates of gates on simulated paired outcomes: `python -m tests.benchmarks.gates` from the repository's root.

Baseline accuracy .80, margin 1 point, alpha .05; designs as in `designs`, clusters as in `clusters`, releases as in
`releases`. Says of each promised cell whether it holds (5 % and three standard errors), and of designs c and h whether
they agree with the published table, where that is at hand. Exit code 1 when a promised cell or a published figure does
not hold.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.stats import norm

from tests.benchmarks.clusters import (
    MODELS,
    SHAPES,
    WIDE,
    WIDE_MARGIN,
    check_clusters,
    clustered_words,
    draw_clusters,
    hybrid_words,
)
from tests.benchmarks.designs import ALPHA, BLOCK, DESIGNS, MARGIN, Words, block_steps, check_designs, draw, hybrid
from tests.benchmarks.gate_tables import describe, markdown, print_tables
from tests.benchmarks.releases import POLICIES, SUITES, check_releases, family_of_ten, release_shares

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT.parent / "shared" / "reference" / "gates.md"
PUBLISHED_RUNS, PUBLISHED_BLOCK = 4000, 10
CELLS = [(f, n) for f in (0.05, 0.12) for n in (500, 1319, 5000)]
DROPS = (0.0, 0.005, 0.01, 0.02, 0.04)
FURTHEST = float(norm.isf(0.025 / 150))  # standard errors: 5 % over the 150 figures that are compared
OURS = {"c": "c", "h": "h", "h10": "h"}  # and the published column beside it
COMPARED = ("c", "h10")
PROMISED_RHO = 0.1
RELEASES = {
    "no drop": ([0.0] * SUITES, {"default": ("PASS", 0.90)}),
    "2 points in every suite": ([0.02] * SUITES, {"default": ("REGRESSED", 0.95)}),
    "2 points in one suite of ten": ([0.02] + [0.0] * (SUITES - 1), {}),
}


def rates(words: Words) -> list[float]:
    """Shares of REGRESSED and of PASS."""
    return [float(np.mean(words == 1)), float(np.mean(words == -1))]


def ceiling(runs: int) -> float:
    """What a rate of 5 % stays under, but for one time in 700."""
    return ALPHA + 3 * sqrt(ALPHA * (1 - ALPHA) / runs)


def grid(rng: np.random.Generator, runs: int) -> list[dict]:
    """Every cell of the published table, by design, and the items that h used (mean and its standard error)."""
    found = []
    for f, n in CELLS:
        for drop in DROPS:
            counts = draw(rng, f, drop, n, runs)
            cell = {"f": f, "n": n, "drop": drop}
            cell |= {name: rates(design(counts, n)) for name, design in DESIGNS.items()}
            for name, block in (("h", BLOCK), ("h10", PUBLISHED_BLOCK)):
                words, used, _ = hybrid(*block_steps(rng, f, drop, n, runs, block))
                cell |= {name: rates(words), f"items, {name}": [float(used.mean()), float(used.std()) / sqrt(runs)]}
            place = {0.0: 0, MARGIN: 1}.get(drop)  # a false alarm, a false PASS
            cell["wrong"] = {} if place is None else {name: cell[name][place] for name in OURS}
            found.append(cell)
    return found


def read_published(path: Path) -> dict[tuple, dict[str, list[float]]]:
    """By f, n and drop of each design its two rates, and for sequential ones the mean number of items."""
    lines = [line.strip("| ").split("|") for line in path.read_text(encoding="utf-8").splitlines() if "%" in line[:8]]
    header = ("a", "b", "t", "e", "c", "d", "h")
    found = {}
    for f, n, drop, *values in ([part.strip() for part in line] for line in lines):
        key = (float(f.rstrip("% ")) / 100, int(n), float(drop) / 100)
        found[key] = {name: [float(x) for x in re.findall(r"\d+", v)] for name, v in zip(header, values, strict=True)}
    return found


def apart(cell: dict, published: dict[tuple, dict[str, list[float]]], design: str, runs: int) -> bool:
    """Whether a cell and its published figure, rounded to 1 % and 1 item, part by more than the noise of both."""
    theirs = published[(cell["f"], cell["n"], cell["drop"])][OURS[design]]
    both = 1 / runs + 1 / PUBLISHED_RUNS
    for ours, percent in zip(cell[design], theirs, strict=False):
        likely = min(max((ours + percent / 100) / 2, 0.005), 0.995)
        if abs(ours - percent / 100) > 0.005 + FURTHEST * sqrt(likely * (1 - likely) * both):
            return True
    if len(theirs) == 2:
        return False
    items, error = cell[f"items, {design}"]
    return abs(items - theirs[2]) > 0.5 + FURTHEST * error * sqrt(runs * both)


def clustered(rng: np.random.Generator, runs: int) -> list[dict]:
    """False alarms at no drop and false PASS at a drop of the margin, where items flip together."""
    found = []
    rows = [(shape, sizes, f, MARGIN) for shape, sizes in SHAPES.items() for f in (0.05, 0.12)]
    rows += [(shape, sizes, 0.12, WIDE_MARGIN) for shape, sizes in WIDE.items()]
    for shape, sizes, f, margin in rows:
        for model, rho in [("alone", 0.0), *((model, rho) for rho in (0.1, 0.3) for model in MODELS)]:
            none, dropped = (
                rates(clustered_words(*draw_clusters(rng, model, sizes, f, drop, rho, runs), sizes, margin))
                for drop in (0.0, margin)
            )
            promised = rho <= PROMISED_RHO and (margin == MARGIN or shape == "56 of 4")
            name = shape if margin == MARGIN else f"{shape}, margin {100 * margin:.0f}"
            cell = {"clusters": name, "f": f, "model": model, "rho": rho, "promised": promised}
            found.append({**cell, "false alarm": none[0], "false PASS": dropped[1], "PASS at no drop": none[1]})
    return found


def clustered_looks(rng: np.random.Generator, runs: int) -> list[dict]:
    """The sequential design over whole clusters: 40 of 33 items, 8 to a block."""
    found, sizes = [], [33] * 40
    for f in (0.05, 0.12):
        for model, rho in [("alone", 0.0), *((model, 0.1) for model in MODELS)]:
            none, margin = (
                hybrid_words(*draw_clusters(rng, model, sizes, f, drop, rho, runs), sizes) for drop in (0.0, MARGIN)
            )
            cell = {"clusters": "40 of 33, looks", "f": f, "model": model, "rho": rho, "promised": True}
            shares = {"false alarm": rates(none[0])[0], "false PASS": rates(margin[0])[1]}
            found.append({**cell, **shares, "PASS at no drop": rates(none[0])[1]})
    return found


def release_cells(rng: np.random.Generator, runs: int) -> list[dict]:
    """Shares of each word by kind of damage and policy, and what is promised of them."""
    return [
        {"damage": damage, "policy": policy.name, "least": least.get(policy.name), **shares}
        for damage, (drops, least) in RELEASES.items()
        for policy in POLICIES
        for shares in [release_shares(rng, runs, drops, policy)]
    ]


def failures(found: dict) -> Iterator[str]:
    """A line for each promised cell that does not hold."""
    limit = found["limit"]
    for cell in found["grid"]:
        name = f"f {100 * cell['f']:.0f} %, n {cell['n']}, drop {100 * cell['drop']:.1f}"
        for design, error in cell["wrong"].items():
            if error > limit:
                yield f"{name}, design {design}: {100 * error:.1f} % wrong"
        for design in cell.get("apart", ()):
            yield f"{name}, design {design}: not the published figure"
    for cell in found["clustered"]:
        for error in ("false alarm", "false PASS"):
            if cell["promised"] and cell[error] > limit:
                yield f"{describe(cell)}: {error} {100 * cell[error]:.1f} %"
    if found["family"] > limit:
        yield f"ten suites with early stops: {100 * found['family']:.1f} % flag any"
    for cell in found["releases"]:
        if cell["least"] and cell[cell["least"][0]] < cell["least"][1]:
            word, least = cell["least"]
            yield f"release, {cell['damage']}: {word} {100 * cell[word]:.1f} %, {100 * least:.0f} promised"


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gates", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=4000, help="repetitions of each cell")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--check", type=int, default=20, help="draws put to the service's own functions as well")
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="also write every figure to this file")
    parser.add_argument(
        "--markdown", choices=("readme", "results"), help="print the tables of that file and nothing else"
    )
    parsed = parser.parse_args(argv)
    if parsed.runs < 1 or parsed.check < 0:
        parser.error("--runs is at least 1, --check at least 0")
    return parsed


def main(argv: list[str]) -> int:
    """Simulates, prints, and says what holds."""
    asked = arguments(argv)
    rng, console = np.random.default_rng(asked.seed), Console(width=120, highlight=False)
    for check in (check_designs, check_clusters, check_releases):
        check(rng, asked.check)
    found = {
        "runs": asked.runs,
        "limit": ceiling(asked.runs),
        "seed": asked.seed,
        "grid": grid(rng, asked.runs),
        "clustered": clustered(rng, asked.runs) + clustered_looks(rng, asked.runs),
        "family": family_of_ten(rng, asked.runs),
        "releases": release_cells(rng, asked.runs),
    }
    published = read_published(PUBLISHED) if PUBLISHED.is_file() else None
    if published is not None:
        for cell in found["grid"]:
            cell["apart"] = [name for name in COMPARED if apart(cell, published, name, asked.runs)]
    found["failures"] = list(failures(found))
    if asked.save:
        asked.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.markdown:
        print("\n".join(markdown(found, asked.markdown)))
        return int(bool(found["failures"]))
    print_tables(found, console)
    if published is None:
        console.print(f"not compared with the published table: {PUBLISHED} is not here")
    console.print("\n".join(found["failures"]) or "all cells hold", markup=False)
    return int(bool(found["failures"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
