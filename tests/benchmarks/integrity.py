"""Planted faults, soaks without faults, and the CPU cost of each mode of integrity.

    python -m tests.benchmarks.integrity --faults 10000 --engine-faults 200 --slots 1000000
    python -m tests.benchmarks.integrity --only cost --model DIR

On the page layer each kind is planted in full in every mode that claims it, through the engine in the cheapest such
mode, and a tenth as often in the others. A fault that a mode claims and misses, or an alarm without a fault, ends the
program with status 1.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from evalsvc.engine.batch import Chunk
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.guard import stamps_in
from evalsvc.engine.kv.pages import Sequence
from evalsvc.engine.kv.perturb import BY_CONTENT, BY_TAGS, KINDS
from tests.benchmarks.integrity_engine import Campaign, tiny_model
from tests.benchmarks.integrity_pages import Counts, World

CLAIMS = {"tags": BY_TAGS, "content:first": (*BY_TAGS, "scale", "forged"), "content": KINDS}
IN_FULL = {"tags": BY_TAGS, "content": BY_CONTENT}  # through the engine
LAYER_FORMAT = {"content": "fp8", "content:first": "fp8", "tags": "bf16"}
PLAN = "w=bf16,kv=int8 > w=bf16,kv=fp8"
MODES = ("off", "tags", "content:first", "content")
BATCH, CONTEXT, CHUNK, POOL = 16, 256, 64, 8192  # of what is timed
OUT = Console(width=110)


def pages(faults: int, seed: int) -> bool:
    """The campaign on the page layer; whether every claim held."""
    table, fine = _table("page layer", "mode", "fault", "planted", "caught", "claimed", "false alarms"), True
    for mode, claimed in CLAIMS.items():
        world = World(LAYER_FORMAT[mode], mode, seed, head_dim=64)
        for kind in KINDS:
            if not world.has(kind):
                continue
            counts = world.campaign(kind, faults if kind in claimed else max(faults // 10, 1))
            fine &= _add(table, mode, kind, counts, kind in claimed)
    OUT.print(table)
    return fine


def engine(model: Path, faults: int, seed: int) -> bool:
    """The campaign through the engine; whether every claim held."""
    table, fine = _table("through the engine", "mode", "fault", "planted", "caught", "claimed", "false alarms"), True
    for mode, kinds in (("tags", BY_TAGS), ("content", KINDS)):
        campaign = Campaign(model, PLAN, mode, seed)
        for kind in kinds:
            counts = campaign.run(kind, faults if kind in IN_FULL[mode] else max(faults // 10, 1))
            fine &= _add(table, mode, kind, counts, True)
    OUT.print(table)
    return fine


def soak(model: Path, slots: int, seed: int) -> bool:
    """Runs without faults; whether there was no alarm."""
    table, alarms = _table("without faults", "where", "mode", "slots checked", "alarms or changed answers"), 0
    for mode in ("tags", "content"):
        world = World("fp8", mode, seed)
        found = world.live_on(slots)
        table.add_row("page layer", mode, f"{world.checked:,}", str(found))
        for kv_tokens in (1024, 112):
            campaign = Campaign(model, PLAN, mode, seed, kv_tokens)
            wrong = campaign.soak(slots // 2)
            where = f"engine, pool of {kv_tokens} tokens, {campaign.preemptions} preemptions"
            table.add_row(where, mode, f"{campaign.checked:,}", str(wrong))
            found += wrong
        alarms += found
    OUT.print(table)
    return alarms == 0


def cost(model: Path, repeats: int) -> None:
    """CPU time of one decode step and of one chunk of prefill in each mode, over that of `off`: median and range.

    The modes take turns on stages of the same weights, over pages that hold random keys and values.
    """
    served = Engine.load(model, "w=bf16,kv=bf16 > w=bf16,kv=fp8", kv_tokens=64)
    table = _table(f"CPU time over `off`, {model.name}", "what", "mode", "median", "range", "ms of off")
    for what, held, sequences, tokens in (
        (f"decode step, {BATCH} requests of {CONTEXT} tokens", served.arm().decode, BATCH, 1),
        (f"prefill chunk of {CHUNK} tokens after {CONTEXT}", served.arm().prefill, 1, CHUNK),
    ):
        made = {mode: type(held)(held.weights, held.plan, POOL, integrity=mode) for mode in MODES}
        begun = {mode: [_begun(stage) for _ in range(sequences)] for mode, stage in made.items()}
        taken: dict[str, list[float]] = {mode: [] for mode in MODES}
        for repeat in range(repeats + 1):  # the first one warms up
            for mode in MODES if repeat % 2 else MODES[::-1]:
                chunks = [Chunk(sequence, [7 + repeat] * tokens) for sequence in begun[mode]]
                started = time.process_time()
                made[mode].forward(chunks)
                taken[mode].append(time.process_time() - started)
        for mode in MODES:
            ratios = [a / b for a, b in zip(taken[mode][1:], taken["off"][1:], strict=True)]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            table.add_row(what, mode, f"{median(ratios):.3f}", spread, f"{1000 * median(taken['off'][1:]):.0f}")
    OUT.print(table)


def _begun(stage: Any) -> Sequence:
    """A sequence of CONTEXT tokens with random keys and values."""
    sequence, layout = Sequence(), stage.weights.layout
    slots = torch.tensor(stage.pool.extend(sequence, CONTEXT))
    for layer in range(layout.layers):
        key, value = torch.randn(2, CONTEXT, layout.kv_heads, layout.head_dim)
        stage.pool.write(layer, slots, key, value, stamps_in(sequence, 0, CONTEXT))
    return sequence


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _add(table: Table, mode: str, kind: str, counts: Counts, claimed: bool) -> bool:
    numbers = f"{counts.planted:,}", f"{counts.caught:,}", "yes" if claimed else "no", str(counts.false_alarms)
    table.add_row(mode, kind, *numbers)
    print(f"{mode} {kind}: {counts.caught} of {counts.planted} caught, {counts.false_alarms} alarms", file=sys.stderr)
    return counts.false_alarms == 0 and (counts.caught == counts.planted or not claimed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000, help="of each kind on the page layer")
    parser.add_argument("--engine-faults", type=int, default=200, help="of each kind through the engine")
    parser.add_argument("--slots", type=int, default=1_000_000, help="checked without faults, in each mode")
    parser.add_argument("--model", type=Path, help="directory of the model whose cost is measured; none: the tiny one")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--only", choices=("pages", "engine", "soak", "cost"), help="one part; none: all")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = [asked.only] if asked.only else ["pages", "engine", "soak", "cost"]
    with tempfile.TemporaryDirectory() as folder:
        tiny, fine = tiny_model(Path(folder)), True
        if "pages" in parts:
            fine &= pages(asked.faults, asked.seed)
        if "engine" in parts:
            fine &= engine(tiny, asked.engine_faults, asked.seed)
        if "soak" in parts:
            fine &= soak(tiny, asked.slots, asked.seed)
        if "cost" in parts:
            cost(asked.model or tiny, asked.repeats)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
