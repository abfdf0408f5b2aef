"""The four numbers as tables: each in its own, with the class of device in its title."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.serving.figures import (
    CONFIDENCE,
    PERCENTILES,
    TIMES,
    CellFigures,
    Estimate,
    StageRoom,
    cells,
    rooms,
    times_baseline,
)
from evalsvc.serving.grid import LEAST_REQUESTS, MAXIMUM, WARM_UP, Grid
from evalsvc.store.records import Measurement

MIB = 2**20
ON_CPU = (
    "on a CPU quantized formats are decoded to bf16 for the product, so that a format's speed here says nothing about "
    "a device's; bytes and tokens that fit are the format's own"
)
_NAMES = {"ttft_s": "first token", "itl_s": "next token", "e2e_s": "whole answer"}


def bench_document(found: Sequence[Measurement], grid: Grid, price: float | None) -> dict[str, Any]:
    """Everything as plain JSON, the device beside every figure."""
    return {
        "schema": "evalsvc.bench-serve/1",
        "settings": {**_settings(found), "repeats": grid.repeats, "confidence": CONFIDENCE, "interval": "t"},
        "price_per_hour": price,
        "cells": [asdict(cell) for cell in figures(found, price)],
        "capacity": [capacity_document(m, grid) for m in found if m.kind == "capacity"],
        "notes": notes(found),
    }


def capacity_document(row: Measurement, grid: Grid) -> dict[str, Any]:
    """One arm's capacity by stage; what fits is worked out from its formats' bytes."""
    known = {"arm": row.arm, "device": row.device, "status": row.status, "message": row.message}
    stages = {
        stage: {
            **asdict(room),
            "tokens": room.tokens,
            "requests": {p: room.requests(p + grid.new_tokens) for p in grid.prompt_tokens},
        }
        for stage, room in (rooms(row) if row.figures else {}).items()
    }
    return {**known, "stages": stages}


def figures(found: Sequence[Measurement], price: float | None) -> list[CellFigures]:
    """Figures of each arm and cell, with the cost where there is a price."""
    if price is None:
        return cells(found)
    priced = [
        Measurement(**{**asdict(m), "kind": "price", "figures": {"per_hour": price}})
        for m in found
        if m.kind == "capacity"
    ]
    return cells([*found, *priced])


def render_bench(found: Sequence[Measurement], grid: Grid, price: float | None) -> RenderableType:
    """Speed, throughput, capacity and cost, one table each, and what stands behind them."""
    shown = _Shown(found, grid, price)
    device = ", ".join(dict.fromkeys(m.device for m in found))
    parts: list[RenderableType] = []
    for title, table in (
        ("1. speed of a request, ms", _speed(shown)),
        ("2. throughput, tokens/s", _throughput(shown)),
        ("3. capacity", _capacity([m for m in found if m.kind == "capacity"], grid)),
        ("4. cost", None if price is None else _cost(shown)),
    ):
        parts.append(Text(f"{title} ({device})", style="bold"))
        parts += [table if table is not None else Text("no price was given (--price-per-hour)"), Text("")]
    settings = _settings(found)
    behind = (
        f"at once: requests under way, max: as many as the plan holds, {grid.most} at most (--most); "
        "closed loop: each of so many clients sends its next request when the last is answered; "
        f"{settings['rounds']} requests a client and repeat (at least {LEAST_REQUESTS} in all), "
        f"{settings['new_tokens']} new tokens each, prompts of random token ids (seed {settings['seed']}, no shared "
        f"prefix); warm-up: {WARM_UP}; every arm once before any again, ratios by repeat; ± half of a "
        f"{100 * CONFIDENCE:.0f} % interval (Student's t over {grid.repeats} repeats)"
    )
    parts.append(Text(behind))
    parts += [Text(note) for note in notes(found)]
    return Group(*parts)


def notes(found: Sequence[Measurement]) -> list[str]:
    """What a reader must know of the device."""
    return [ON_CPU] if any(m.device.startswith("cpu") for m in found) else []


def _settings(found: Sequence[Measurement]) -> dict[str, Any]:
    return next(m.settings for m in found if m.kind != "price")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        left = column in ("arm", "stage", "")
        table.add_column(
            column, justify="left" if left else "right", overflow="fold", no_wrap=column in ("", "at once")
        )
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text("-" if cell is None else one_line(str(cell))) for cell in cells))


class _Shown:
    """Cells with the maximum of each arm known, so that maxima are named and stand beside maxima."""

    def __init__(self, found: Sequence[Measurement], grid: Grid, price: float | None):
        self.cells = figures(found, price)
        self._own = {
            (m.fingerprint, p): grid.own(rooms(m)["decode"].requests(p + grid.new_tokens))
            for m in found
            if m.kind == "capacity" and m.figures and MAXIMUM in grid.concurrency
            for p in grid.prompt_tokens
        }

    def at_maximum(self, cell: CellFigures) -> bool:
        """Whether it is the arm's own maximum."""
        return self._own.get((cell.fingerprint, cell.prompt_tokens)) == cell.concurrency

    def head(self, index: int) -> tuple[object, ...]:
        """Arm, prompt tokens and concurrency; the arm where it begins."""
        cell = self.cells[index]
        same = index and self.cells[index - 1].fingerprint == cell.fingerprint
        return "" if same else cell.arm, cell.prompt_tokens, f"{'max ' * self.at_maximum(cell)}{cell.concurrency}"

    def beside(self, cell: CellFigures) -> CellFigures | None:
        """The first arm's cell of the same concurrency, or its maximum for a maximum."""
        first = [c for c in self.cells if c.fingerprint == self.cells[0].fingerprint]
        first = [c for c in first if c.prompt_tokens == cell.prompt_tokens]
        equal = next((c for c in first if c.concurrency == cell.concurrency), None)
        return next((c for c in first if self.at_maximum(c)), None) if self.at_maximum(cell) else equal


def _speed(shown: _Shown) -> Table:
    table = _table("arm", "prompt", "at once", "", *(f"p{p}" for p in PERCENTILES), "requests")
    for index, cell in enumerate(shown.cells):
        if cell.status != "measured":
            _add(table, *shown.head(index), cell.status.replace("_", " "), "", "", "", "")
            continue
        for name in TIMES:
            head = shown.head(index) if name == TIMES[0] else ("", "", "")
            by_percentile = cell.times.get(name, {})
            values = (_value(by_percentile.get(p), 1000) for p in PERCENTILES)
            _add(table, *head, _NAMES[name], *values, cell.requests if name == TIMES[0] else "")
    return table


def _throughput(shown: _Shown) -> Table:
    table = _table("arm", "prompt", "at once", "prompt tokens", "generated", "x the first arm's")
    for index, cell in enumerate(shown.cells):
        first = shown.beside(cell)
        ratio = None if first is None else times_baseline(first, cell)
        gain = "" if first is cell else _value(ratio)
        if cell.status == "measured":
            values = _value(cell.prompt_tokens_s), _value(cell.generated_tokens_s)
        else:
            values = cell.status.replace("_", " "), ""
        _add(table, *shown.head(index), *values, gain)
    return table


def _capacity(rows: Sequence[Measurement], grid: Grid) -> Table:
    contexts = [p + grid.new_tokens for p in grid.prompt_tokens]
    columns = ("weights MiB", "others MiB", "KV B/token", "tokens fit", *(f"x {c} tokens" for c in contexts))
    table = _table("arm", "stage", *columns, "pool held")
    for row in rows:
        if not row.figures:
            _add(table, row.arm, row.status.replace("_", " "), *("" for _ in columns), "")
        for index, (stage, room) in enumerate((rooms(row) if row.figures else {}).items()):
            _add(table, "" if index else row.arm, stage, *_room_cells(room, contexts))
    memory = _settings(rows)["memory_bytes"]
    table.caption = f"of {memory / 2**30:,.2f} GiB a stage, as if each stage had a device of its own"
    return table


def _room_cells(room: StageRoom, contexts: Sequence[int]) -> tuple[str, ...]:
    return (
        f"{room.weights_bytes / MIB:,.1f}",
        f"{room.other_bytes / MIB:,.1f}",
        f"{room.kv_bytes_per_token:,.0f}",
        f"{room.tokens:,}",
        *(f"{room.requests(context):,}" for context in contexts),
        "-" if room.pool_tokens is None else f"{room.pool_tokens:,}",
    )


def _cost(shown: _Shown) -> Table:
    table = _table("arm", "prompt", "at once", "a million tokens", "a million generated")
    for index, cell in enumerate(shown.cells):
        costs = cell.cost_per_million_tokens, cell.cost_per_million_generated
        _add(table, *shown.head(index), *(_value(cost) for cost in costs))
    return table


def _value(estimate: Estimate | None, factor: float = 1.0) -> str | None:
    """A figure to three digits with half of its interval to two."""
    if estimate is None:
        return None
    mean = _digits(factor * estimate.mean, 3)
    if estimate.high is None:
        return mean
    return f"{mean} ±{_digits(factor * (estimate.high - estimate.mean), 2)}"


def _digits(value: float, digits: int) -> str:
    """So many digits, and all of what has more before its point."""
    return f"{value:.{digits}g}" if round(value) < 10**digits else f"{value:,.0f}"
