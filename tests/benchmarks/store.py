"""What the store takes: `python -m tests.benchmarks.store [--samples N] [--markdown FILE]`.

Two sides that are compared run in turn on the same rows: the store, and sqlite3 by itself.
"""

import argparse
import hashlib
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Printed

from evalsvc.history import arms_of, histories, history
from evalsvc.series import keep_series
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.paired import tables_by_family
from evalsvc.store.records import ArmRecord, NewSample, NewScore
from evalsvc.store.session import Store, open_store

ITEMS, FAMILIES, BATCH = 13_000, 57, 5_000
TABLES = ("items", "samples", "scores")


def sha(text: str) -> str:
    """A hash as long as the ones that are stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_samples(count: int, arm: int) -> list[NewSample]:
    """Answers of one arm: a prompt of 280 characters, one score, both stages timed."""
    return [
        NewSample(
            suite="tasks",
            item_id=f"task-{i:06}",
            item_hash=sha(f"item {i}"),
            family=f"family-{i % FAMILIES}",
            cluster=f"prefix-{i % 9}",
            metric="acc",
            filter="none",
            chance=0.25,
            scored_by="generation",
            request_hash=sha(f"request {i}"),
            settings_hash=sha("settings"),
            rendered_hash=sha(f"tokens {i}"),
            prompt=f"Question {i}: " + "what follows from the words before? " * 7,
            answer=f"The answer of arm {arm} is {i}.",
            finish_reason="stop",
            prompt_tokens=70,
            answer_tokens=9,
            stage_tokens={"prefill": 1, "decode": 8},
            handed_over=True,
            timings={"queue_s": 0.01 * (i % 7), "prefill_s": 0.125, "decode_s": 0.5 + 0.001 * (i % 11)},
            scoring_version="1",
            scores=(NewScore(metric="acc", filter="none", value=float((i * 7 + arm * (i % 5)) % 4 != 0)),),
        )
        for i in range(count)
    ]


def open_arm(store: Store, run_id: int, name: str, expected: int) -> int:
    """An arm of plan `name`."""
    about: dict[str, Any] = {"plan": "w=bf16,kv=bf16", "stages": {}, "injected": {}, "details": {}}
    return writer.open_arm(store, run_id, name=name, fingerprint=sha(name), expected=expected, **about)


def open_run(store: Store, number: int) -> int:
    """A run of its own."""
    return writer.open_run(
        store, experiment="nightly", experiment_hash=sha(f"e{number}"), resolved={}, baseline="base", seed=number
    )


def store_samples(store: Store, run_id: int, arm_id: int, samples: Sequence[NewSample], batch: int) -> None:
    """Stores them, so many at a time."""
    for start in range(0, len(samples), batch):
        writer.add_samples(store, run_id, arm_id, samples[start : start + batch])


def insert_rates(folder: Path, count: int, batch: int, repeats: int) -> tuple[float, float]:
    """Samples a second of the store and of sqlite3's executemany of the same rows: medians of turns."""
    ours, theirs = [], []
    samples = make_samples(count, 0)
    for turn in range(repeats):
        path, bare = folder / f"ours-{turn}.sqlite", folder / f"bare-{turn}.sqlite"
        with open_store(path, create=True) as store:
            run_id = open_run(store, turn)
            arm_id = open_arm(store, run_id, "base", count)
            took = clock(lambda s=store, r=run_id, a=arm_id: store_samples(s, r, a, samples, batch))
        ours.append(count / took)
        theirs.append(count / insert_bare(path, bare, batch))
    return statistics.median(ours), statistics.median(theirs)


def insert_bare(path: Path, bare: Path, batch: int) -> float:
    """Seconds in which sqlite3 inserts a database's rows into an empty one of the same tables, batch by batch."""
    with open_store(bare, create=True):
        pass
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(bare, isolation_level=None)) as target:
        target.execute("PRAGMA synchronous = FULL")
        target.execute("PRAGMA foreign_keys = ON")
        for table in ("runs", "arms"):
            rows = source.execute(f"SELECT * FROM {table}").fetchall()
            target.executemany(f"INSERT INTO {table} VALUES ({marks(rows)})", rows)
        held = {table: source.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() for table in TABLES}

        def insert() -> None:
            for start in range(0, len(held["samples"]), batch):
                target.execute("BEGIN IMMEDIATE")
                for table, rows in held.items():
                    some = rows[start : start + batch]
                    target.executemany(f"INSERT INTO {table} VALUES ({marks(some)})", some)
                target.execute("COMMIT")

        return clock(insert)


def marks(rows: Sequence[Sequence[Any]]) -> str:
    """As many question marks as a row has columns."""
    return ", ".join("?" * len(rows[0]))


def clock(work: Callable[[], Any]) -> float:
    """Seconds that some work took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


PAIRED = """
SELECT i.suite, i.family, sum(b.value >= 1 AND c.value >= 1), sum(b.value >= 1 AND c.value < 1),
  sum(b.value < 1 AND c.value >= 1), sum(b.value < 1 AND c.value < 1)
FROM samples x JOIN samples y ON y.arm_id = ? AND y.item_pk = x.item_pk AND y.through = x.through
  AND y.repeat = x.repeat AND y.status = 'scored'
JOIN items i ON i.id = x.item_pk
JOIN scores b ON b.sample_id = x.id AND b.metric = i.metric AND b.filter = i.filter
JOIN scores c ON c.sample_id = y.id AND c.metric = i.metric AND c.filter = i.filter
WHERE x.arm_id = ? AND x.status = 'scored' GROUP BY 1, 2
"""
RUNS = (
    "SELECT r.id, r.experiment, r.status, r.created_at, a.name, a.stored, a.errors "
    "FROM runs r JOIN arms a ON a.run_id = r.id"
)
DONE = (
    "SELECT i.suite, i.item_id, i.item_hash, s.request_hash, s.settings_hash, s.repeat FROM samples s "
    "JOIN items i ON i.id = s.item_pk WHERE s.arm_id = ? AND s.status IN ('scored', 'skipped')"
)


HISTORY = """
SELECT json_extract(a.series, '$."' || ? || '".figures."".lost'),
  json_extract(a.series, '$."' || ? || '".figures."".gained')
FROM arms a JOIN runs r ON r.id = a.run_id WHERE a.name = 'night' ORDER BY a.id
"""


def medians(repeats: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of each work, in turn."""
    took = [(clock(ours), clock(theirs)) for _ in range(repeats)]
    return statistics.median(own for own, _ in took), statistics.median(other for _, other in took)


def query_rows(path: Path, repeats: int) -> Iterator[tuple[str, float, float, float]]:
    """What is read, seconds of the store, seconds of sqlite3 with the same question, and the aim in seconds."""
    with open_store(path, read_only=True) as store, closing(sqlite3.connect(path)) as bare:
        base, cand, *_ = queries.arms(store, 1)
        large = max(queries.arms(store), key=lambda arm: arm.expected)

        def ask(sql: str, *values: int) -> list[Any]:
            return bare.execute(sql, values).fetchall()

        n = base.expected
        ours = tables_by_family(store, base, cand)
        theirs = ask(PAIRED, cand.id, base.id)
        assert {(s, f): (t.both, t.lost, t.gained, t.neither) for (s, f), t in ours.items()} == {
            (s, f): tuple(counts) for s, f, *counts in theirs
        }
        yield (
            f"paired 2x2 by task, {n:,} pairs",
            *medians(repeats, lambda: tables_by_family(store, base, cand), lambda: ask(PAIRED, cand.id, base.id)),
            0.1,
        )
        yield ("list of runs", *medians(repeats, lambda: queries.runs(store), lambda: ask(RUNS)), 0.05)
        frozen = queries.resolve_arm(store, "@frozen")
        nights = len(arms_of(store, frozen, "night"))
        pooled = [(p.lost, p.gained) for p in history(store, frozen, "night")]
        assert pooled == [tuple(found) for found in ask(HISTORY, frozen.id, frozen.id)], "what is kept is what is read"
        yield (
            f"history of {nights} nights",
            *medians(repeats, lambda: histories(store, frozen, "night"), lambda: ask(HISTORY, frozen.id, frozen.id)),
            0.2,
        )
        yield (
            f"what a resumed run has, {large.expected:,} items",
            *medians(repeats, lambda: writer.done_keys(store, large.id), lambda: set(ask(DONE, large.id))),
            2.0,
        )


def fill(path: Path, samples: int, items: int = ITEMS, large: int = 100_000, nights: int = 365) -> float:
    """A database of runs of two arms each, one large arm, and nights of which the figures are kept; gives seconds."""
    arms = [make_samples(items, number) for number in range(2)]
    with open_store(path, create=True) as store:

        def work() -> None:
            for number in range(max(1, (samples - large) // (2 * items))):
                run_id = open_run(store, number)
                for name, answers in zip(("base", "cand"), arms, strict=True):
                    arm_id = open_arm(store, run_id, name, items)
                    store_samples(store, run_id, arm_id, answers, BATCH)
            run_id = open_run(store, -1)
            many = make_samples(large, 3)
            store_samples(store, run_id, open_arm(store, run_id, "base", len(many)), many, BATCH)
            fill_nights(store, nights)

        return clock(work)


def fill_nights(store: Store, nights: int) -> None:
    """Runs of an arm `night` of 20 items, each compared with `@frozen`; a history reads what is kept of them alone."""
    frozen = finished_arm(store, "frozen", make_samples(20, 0))
    promote(store, frozen, "frozen", "to be compared with")
    for night in range(nights):
        keep_series(store, frozen, [finished_arm(store, "night", make_samples(20, 1 + (night > nights // 2)))])


def finished_arm(store: Store, name: str, samples: Sequence[NewSample]) -> ArmRecord:
    """A finished run of one arm."""
    run_id = open_run(store, -2)
    arm_id = open_arm(store, run_id, name, len(samples))
    writer.add_samples(store, run_id, arm_id, samples)
    writer.finish_arm(store, arm_id, {"prefill": {"seconds": 1.0}, "decode": {"seconds": 2.0}}, "matched")
    writer.finish_run(store, run_id)
    return queries.arms(store, run_id)[0]


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--samples", type=int, default=2_000_000)
    options.add_argument("--keep", type=Path, help="A database to fill once and to read again.")
    arguments = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evalsvc-store-"))
    printed = Printed("what", "store", "sqlite3 alone", "ratio", "aim")
    try:
        ours, theirs = insert_rates(folder, 50_000, BATCH, 3)
        printed.add_row(
            "inserted samples a second", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}x", "50,000; 0.4x"
        )
        path = arguments.keep or folder / "large.sqlite"
        if not path.exists():
            took = fill(path, arguments.samples)
            print(f"{arguments.samples:,} samples stored in {took:.0f} s", file=sys.stderr)
        for what, mine, bare, aim in query_rows(path, 7):
            printed.add_row(
                what, f"{1000 * mine:.1f} ms", f"{1000 * bare:.1f} ms", f"{mine / bare:.2f}x", f"{1000 * aim:.0f} ms"
            )
    finally:
        shutil.rmtree(folder)
    Console().print(printed)


if __name__ == "__main__":
    main()
