"""How long verdicts take: `python -m tests.benchmarks.verdicts` from the repository's root.

Processor time of one thread (the wall clock of a machine without other work), the least of some repeats after imports;
beside it, where another package answers the same question, that package on the same data in the same run. Exit code 0
when all targets are reached, 1 when one is missed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when numpy is imported

import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.console import Console, JustifyMethod
from rich.table import Table
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from evalsvc.store.records import Beside, Choices
from evalsvc.verdict import corpus
from evalsvc.verdict.families import max_drop_p
from evalsvc.verdict.measure import measure
from evalsvc.verdict.resample import sign_flip_p
from evalsvc.verdict.secondary import choice_signals, spread
from evalsvc.verdict.sequential import Sequential, first_decision
from tests.evalsvc import by_hand

ITEMS, CHOICES, CLUSTERS, BLOCK, DRAWS = 12_032, 4, 200, 250, 10_000
TASKS, ARMS, TASK_ITEMS = 10, 4, 1_319


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What is timed.
        seconds: Of ours.
        target: Seconds that were asked for; None where nothing was.
        peer: Another package's name.
        peer_seconds: What it took.
        note: Anything to know.
    """

    what: str
    seconds: float
    target: float | None = None
    peer: str = ""
    peer_seconds: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.target is None or self.seconds <= self.target


def shortest(work: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of processor time, the least of some repeats."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


@dataclass
class Data:
    """A simulated pair of arms: right in 80 %, 5 % of the items flip, log-likelihoods shift a little."""

    base: list[int]
    cand: list[int]
    labels: list[str]
    logprobs: tuple[list[list[float]], list[list[float]]]
    gold: list[int]
    kl: list[float]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Data":
        base = rng.random(ITEMS) < 0.8
        cand = base ^ (rng.random(ITEMS) < 0.05)
        first = rng.normal(-3, 1, (ITEMS, CHOICES))
        second = first + rng.normal(0, 0.05, first.shape)
        return cls(
            base=base.astype(int).tolist(),
            cand=cand.astype(int).tolist(),
            labels=[f"c{i % CLUSTERS}" for i in range(ITEMS)],
            logprobs=(first.tolist(), second.tolist()),
            gold=rng.integers(0, CHOICES, ITEMS).tolist(),
            kl=rng.exponential(0.01, ITEMS).tolist(),
        )

    @property
    def differences(self) -> np.ndarray:
        return np.subtract(self.base, self.cand).astype(float)

    @property
    def margins(self) -> np.ndarray:
        """Fall of the gold choice's log-likelihood."""
        ours, theirs = (np.array(rows)[np.arange(ITEMS), self.gold] for rows in self.logprobs)
        return ours - theirs


def compare(data: Data, rng: np.random.Generator) -> list[Row]:
    """The comparison with everything beside it."""
    parts = {
        "counts, exact McNemar, Tango, Newcombe": lambda: measure(data.base, data.cand),
        f"the same over {CLUSTERS} clusters": lambda: measure(data.base, data.cand, data.labels),
        f"signals of {CHOICES} choices (gold margin, Brier, gold probability)": lambda: choice_signals(
            *data.logprobs, data.gold, rng
        ),
        "spread of KL": lambda: spread(data.kl),
    }
    took = {name: shortest(work) for name, work in parts.items()}
    signals = next(name for name in took if name.startswith("signals"))

    def permuted() -> None:
        stats.permutation_test(
            (data.margins,),
            lambda x, axis: x.mean(axis=axis),
            permutation_type="samples",
            n_resamples=1999,
            batch=50,
            rng=rng,
        )

    def counted() -> None:
        mcnemar(pandas.crosstab(np.array(data.base), np.array(data.cand)), exact=True)

    peers: dict[str, tuple[str, float | None]] = {
        next(iter(took)): ("pandas crosstab and statsmodels mcnemar(exact): the p alone", shortest(counted)),
        signals: ("scipy permutation_test, one signal of the three, 1,999 draws", shortest(permuted, 1)),
    }
    whole = sum(took.values())
    return [
        Row(f"compare {ITEMS:,} pairs with all secondary signals", whole, 0.3, note="the sum of what follows"),
        *(Row(f"  {name}", seconds, None, *peers.get(name, ("", None))) for name, seconds in took.items()),
    ]


def gate(data: Data) -> list[Row]:
    """The whole decision: pairing, faults, rows of the table, worst case, signals."""
    about = {"suite": "suite", "through": "decode", "scored_by": "loglikelihood", "metric": "acc", "chance": 0.25}
    pairs = [
        by_hand.pair(
            by_hand.side(float(base), sample_id=i),
            by_hand.side(float(cand), sample_id=ITEMS + i),
            item_id=str(i),
            **about,
        )
        for i, (base, cand) in enumerate(zip(data.base, data.cand, strict=True))
    ]
    beside = tuple(
        Beside(choices={start + i: Choices(tuple(row), data.gold[i]) for i, row in enumerate(rows)})
        for start, rows in zip((0, ITEMS), data.logprobs, strict=True)
    )
    arms = by_hand.arm("base"), by_hand.arm("kv8", "fp8")
    took = shortest(lambda: decide_gate(*arms, pairs, Policy(name="benchmark"), beside=(beside[0], beside[1])))
    return [
        Row(f"the gate's whole decision about {ITEMS:,} pairs in memory, signals of their choices with it", took, 0.3)
    ]


def fractions(data: Data, rng: np.random.Generator) -> list[Row]:
    """Scores between 0 and 1: sign-flips of 9,999 draws."""
    values = data.margins
    ours = shortest(lambda: sign_flip_p(values, rng), 3)

    def permuted() -> None:
        stats.permutation_test(
            (values,),
            lambda x, axis: x.sum(axis=axis),
            permutation_type="samples",
            alternative="greater",
            n_resamples=9_999,
            batch=50,
            rng=rng,
        )

    half = [value / 2 for value in data.base]
    return [
        Row(
            f"sign-flips of {ITEMS:,} fractions, 9,999 draws",
            ours,
            None,
            "scipy permutation_test",
            shortest(permuted, 1),
        ),
        Row(f"compare {ITEMS:,} pairs of fractions", shortest(lambda: measure(half, data.cand), 3), 0.3),
    ]


def checked(blocks: Sequence[tuple[list[float], list[int] | None]], largest: int, repeats: int = 20) -> float:
    """Seconds to take in the last block and to ask the processes whether it decides, the least of some repeats."""
    found = []
    for _ in range(repeats):
        process = Sequential(largest)
        for block in blocks[:-1]:
            process.add(*block)
        start = time.process_time()
        process.add(*blocks[-1])
        first_decision(process, 0.01, 0.05)
        found.append(time.process_time() - start)
    return min(found)


def sequential(data: Data, rng: np.random.Generator) -> list[Row]:
    """One block's check, of items and of clusters of unequal sizes."""
    totals = data.differences.tolist()
    blocks = [(totals[start : start + BLOCK], None) for start in range(0, ITEMS, BLOCK)]
    sizes = rng.multinomial(ITEMS - CLUSTERS, rng.dirichlet(np.full(CLUSTERS, 20))) + 1
    drops = rng.binomial(sizes, 0.025) - rng.binomial(sizes, 0.025)
    units = [
        (drops[start : start + 5].astype(float).tolist(), sizes[start : start + 5].tolist())
        for start in range(0, CLUSTERS, 5)
    ]
    return [
        Row(f"sequential check of the first block of {BLOCK} items", checked(blocks[:1], 1), 0.001),
        Row(f"sequential check of the last block of {ITEMS:,} items", checked(blocks, 1), 0.001),
        Row(f"the same of {CLUSTERS} clusters, the last five", checked(units, int(sizes.max())), 0.001),
    ]


def bootstrap(data: Data, rng: np.random.Generator) -> list[Row]:
    """A corpus metric: perplexity of texts of unequal length."""
    tokens = rng.integers(5, 200, ITEMS).astype(float)
    first = np.stack([-tokens * rng.normal(2.0, 0.1, ITEMS), tokens], axis=1)
    second = np.stack([first[:, 0] - tokens * rng.normal(0.001, 0.05, ITEMS), tokens], axis=1)
    usual, corpus.DRAWS = corpus.DRAWS, DRAWS
    ours = shortest(lambda: corpus.measure_corpus("perplexity", first, second, better="lower"), 2)
    corpus.DRAWS = usual

    def rise(a, b, n, axis):
        total = n.sum(axis=axis)
        return np.exp(-b.sum(axis=axis) / total) - np.exp(-a.sum(axis=axis) / total)

    def resampled() -> None:
        columns = (first[:, 0], second[:, 0], tokens)
        stats.bootstrap(
            columns, rise, paired=True, vectorized=True, n_resamples=DRAWS, batch=50, method="percentile", rng=rng
        )

    note = f"ours draws {DRAWS:,} permutations too"
    usually = shortest(lambda: corpus.measure_corpus("perplexity", first, second, better="lower"), 2)
    return [
        Row(
            f"bootstrap of {DRAWS:,} draws, perplexity of {ITEMS:,} texts",
            ours,
            None,
            "scipy bootstrap",
            shortest(resampled, 1),
            note,
        ),
        Row(f"the same comparison with its usual {usual:,} draws", usually),
    ]


def joint(rng: np.random.Generator) -> list[Row]:
    """The largest drop over tasks and arms that share a baseline."""
    shape = (TASK_ITEMS, ARMS)
    flips = {f"t{i}": rng.choice([-1.0, 0.0, 1.0], shape, p=[0.025, 0.95, 0.025]) for i in range(TASKS)}
    dense = {f"t{i}": rng.normal(0, 1, shape) for i in range(TASKS)}
    name = f"joint permutation, {TASKS} tasks x {ARMS} arms x {DRAWS:,} draws, {TASK_ITEMS:,} items each"
    single = dense["t0"][:, 0]

    def permuted() -> None:
        stats.permutation_test(
            (single,),
            lambda x, axis: x.sum(axis=axis),
            permutation_type="samples",
            n_resamples=DRAWS,
            batch=200,
            rng=rng,
        )

    return [
        Row(f"{name}: 5 % flip", shortest(lambda: max_drop_p(flips, rng, draws=DRAWS), 3), 5.0),
        Row(
            f"{name}: every item differs",
            shortest(lambda: max_drop_p(dense, rng, draws=DRAWS), 3),
            5.0,
            f"scipy permutation_test, one task and arm of {TASKS * ARMS}",
            shortest(permuted, 1),
        ),
    ]


def printed(seconds: float) -> str:
    """Seconds or milliseconds, two digits or whole."""
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def times(ratio: float) -> str:
    """How many times as long."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def tabulated(rows: list[Row]) -> Table:
    """Rows as rich prints them."""
    table = Table(show_lines=False)
    columns: dict[str, JustifyMethod] = {
        "what": "left",
        "ours": "right",
        "target": "right",
        "another": "right",
        "of": "left",
    }
    for column, justify in columns.items():
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        colour = "" if row.target is None else "[green]" if row.reached else "[red]"
        target = "" if row.target is None else f"{printed(row.target)} {'reached' if row.reached else 'missed'}"
        other = (
            "" if row.peer_seconds is None else f"{printed(row.peer_seconds)} ({times(row.peer_seconds / row.seconds)})"
        )
        table.add_row(
            row.what, colour + printed(row.seconds), target, other, "; ".join(filter(None, (row.peer, row.note)))
        )
    return table


def main() -> int:
    """Measures and prints."""
    warnings.simplefilter("ignore")
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "scipy", "statsmodels"))
    console.print(f"{name}, one thread, load {os.getloadavg()[0]:.1f} before the run; {packages}", markup=False)
    rng = np.random.default_rng(20261130)
    data = Data.drawn(rng)
    rows = [
        *compare(data, rng),
        *gate(data),
        *fractions(data, rng),
        *sequential(data, rng),
        *bootstrap(data, rng),
        *joint(rng),
    ]
    console.print(tabulated(rows))
    return int(not all(row.reached for row in rows))


if __name__ == "__main__":
    sys.exit(main())
