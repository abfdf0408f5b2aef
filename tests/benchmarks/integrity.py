"""Planted faults, soaks without faults, and the CPU cost of each mode of integrity.

    python -m tests.benchmarks.integrity --faults 10000 --engine-faults 200 --slots 1000000
    python -m tests.benchmarks.integrity --only cost --model DIR

Each kind is planted in full in the cheapest mode that claims it, and a tenth as often in the others. A fault that a
mode claims and misses, or an alarm without a fault, ends the program with status 1.
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

from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.perturb import BY_CONTENT, BY_TAGS, KINDS
from evalsvc.engine.requests import GenerateRequest
from tests.benchmarks.integrity_engine import Campaign, tiny_model
from tests.benchmarks.integrity_pages import Counts, World

CLAIMS = {"tags": BY_TAGS, "content:first": (*BY_TAGS, "scale", "forged"), "content": KINDS}
IN_FULL = {"tags": BY_TAGS, "content:first": (), "content": BY_CONTENT}
LAYER_FORMAT = {"content": "fp8", "content:first": "fp8", "tags": "bf16"}
PLAN = "w=bf16,kv=int8 > w=bf16,kv=fp8"
MODES = ("off", "tags", "content:first", "content")
OUT = Console(width=110)


def pages(faults: int, seed: int) -> bool:
    """The campaign on the page layer; whether every claim held."""
    table, fine = _table("page layer", "mode", "fault", "planted", "caught", "claimed", "false alarms"), True
    for mode, claimed in CLAIMS.items():
        world = World(LAYER_FORMAT[mode], mode, seed, head_dim=64)
        for kind in KINDS:
            if not world.has(kind):
                continue
            counts = world.campaign(kind, faults if kind in IN_FULL[mode] else max(faults // 10, 1))
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


def cost(model: Path, repeats: int, new_tokens: int) -> None:
    """CPU time of the same work in each mode, over that without integrity: median and range of the repeats."""
    requests = [
        GenerateRequest(prompt=[(7 * n + i) % 200 + 20 for i in range(192)], max_tokens=new_tokens, ignore_eos=True)
        for n in range(16)
    ]
    plan = "w=bf16,kv=bf16 > w=bf16,kv=fp8"
    engines = {mode: Engine.load(model, plan, kv_tokens=8192, integrity=mode) for mode in MODES}
    taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for repeat in range(repeats + 1):  # the first one warms up
        for mode in MODES if repeat % 2 else MODES[::-1]:
            spent = _cpu_seconds(engines[mode], requests)
            if repeat:
                taken[mode].append(spent)
    table = _table(f"CPU time over `off`, {model.name}", "mode", "whole", "range", "decode alone", "range")
    for mode in MODES:
        row = [mode]
        for part in range(2):
            ratios = [a[part] / b[part] for a, b in zip(taken[mode], taken["off"], strict=True)]
            row += [f"{median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]
        table.add_row(*row)
    OUT.print(table)


def _cpu_seconds(served: Engine, requests: list[GenerateRequest]) -> tuple[float, float]:
    """CPU seconds of all, and of decode's forwards alone."""
    arm, decoding = served.arm(), 0.0
    for stage in (arm.prefill, arm.decode):
        stage.cache.drop_all()
    run: Any = arm.decode.run

    def timed(chunks: Any) -> Any:
        nonlocal decoding
        started = time.process_time()
        found = run(chunks)
        decoding += time.process_time() - started
        return found

    arm.decode.run = timed  # pyright: ignore[reportAttributeAccessIssue]
    started = time.process_time()
    list(served.generate(requests))
    whole = time.process_time() - started
    del arm.decode.__dict__["run"]
    return whole, decoding


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _add(table: Table, mode: str, kind: str, counts: Counts, claimed: bool) -> bool:
    numbers = f"{counts.planted:,}", f"{counts.caught:,}", "yes" if claimed else "no", str(counts.false_alarms)
    table.add_row(mode, kind, *numbers)
    return counts.false_alarms == 0 and (counts.caught == counts.planted or not claimed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000, help="of each kind on the page layer")
    parser.add_argument("--engine-faults", type=int, default=200, help="of each kind through the engine")
    parser.add_argument("--slots", type=int, default=1_000_000, help="checked without faults, in each mode")
    parser.add_argument("--model", type=Path, help="directory of the model whose cost is measured; none: the tiny one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=32)
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
            cost(asked.model or tiny, asked.repeats, asked.new_tokens)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
