"""Capacity as tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.capacity.answer import Answer, StageAnswer
from evalsvc.capacity.published import MET, Held
from evalsvc.capacity.sharing import breakdown
from evalsvc.cli.common import one_line
from evalsvc.engine.precision import STORED

GB = 10**9


def render_answer(found: Answer) -> RenderableType:
    """Each stage of each plan in a line, and what it rests on."""
    model = found.model
    parts: list[RenderableType] = []
    for plan in dict.fromkeys(stage.plan for stage in found.stages):
        parts += [Text(one_line(plan)), _stages([s for s in found.stages if s.plan == plan], found.contexts), Text("")]
    counts = f"{_count(model.parameters)} parameters, a token reads {_count(model.active)}"
    heading = f"{model.name} ({model.kind}): {counts}"
    last = found.stages[-1].placed.weights
    return Group(
        Text(one_line(heading), style="bold"),
        Text(""),
        *parts,
        Text(one_line(_assumptions(found))),
        Text(one_line(f"weights of the last line: {breakdown(last, last)}")),
    )


def _count(parameters: int) -> str:
    return f"{parameters / GB:,.2f} billion" if parameters >= GB else f"{parameters:,}"


def _stages(stages: Sequence[StageAnswer], contexts: Sequence[int]) -> Table:
    columns = ("weights GB", "KV B/token", "left GB", "tokens", *(f"x {context:,}" for context in contexts))
    table = _table("stage", *columns)
    for stage in stages:
        placed = stage.placed
        numbers = (
            f"{placed.weights_bytes / GB:,.2f}",
            f"{placed.kv_bytes_per_token:,}",
            f"{placed.left_bytes / GB:,.2f}",
            f"{placed.tokens:,}" if placed.left_bytes else "no room",
            *(f"{placed.requests(context):,}" for context in contexts),
        )
        _add(table, stage.stage, *numbers)
    return table


def _assumptions(found: Answer) -> str:
    devices = found.devices
    memory = f"{devices.count} x {devices.memory_bytes / GB:g} GB for each stage, {100 * devices.utilization:g} % of it"
    cut = "whole on each device, whose tokens add up" if devices.data_attention else "cut over them"
    latent = any(layer.rank for layer in found.model.kv) and not devices.data_attention
    held = "; each device holds every token's latent" if latent and devices.count > 1 else ""
    packs = "experts alone, the rest bf16" if devices.packs == "experts" else "every matrix but embedding and head"
    if any(stage.weights == STORED for stage in found.stages):
        packs += f", under {STORED} of what the checkpoint says"
    experts = "given out whole" if devices.experts else "cut inside"
    return (
        f"bytes of one device, tokens and requests (x tokens of context) of all; {memory} for weights and KV; "
        f"attention {cut}{held}; experts {experts}; formats are of {packs}; "
        "tokens: every layer holds all of them, requests: a sliding layer its window alone; no drafts, no copies for "
        "speed, scales included"
    )


def published_document(held: Sequence[Held]) -> dict[str, Any]:
    """As plain JSON."""
    rows = [{**asdict(one), "difference": one.difference, "met": one.met} for one in held]
    return {"schema": "evalsvc.capacity.published/1", "met_within": MET, "figures": rows}


def render_published(held: Sequence[Held]) -> RenderableType:
    """Each figure beside the arithmetic's; the reasons of those that do not meet."""
    table = _table("figure", "published", "arithmetic", "unit", "difference", "")
    for one in held:
        percent = f"{100 * one.difference:+.1f} %"
        numbers = _short(one.published), _short(one.arithmetic), one.unit, percent, "met" if one.met else "differs"
        _add(table, one.what, *numbers)
    reasons = [f"{one.what}: {one.reasons}" for one in held if not one.met and one.reasons]
    counts = Counter(one.source for one in held)
    sources = [f"{source} ({count})" for source, count in counts.items()]
    lines = [*reasons, f"met: within {100 * MET:g} %; figures by source: {'; '.join(sources)}"]
    return Group(table, Text(""), *(Text(one_line(line)) for line in lines))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        left = column in ("plan", "stage", "figure", "unit", "")
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=column == "")
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(one_line(str(cell))) for cell in cells))
