"""What was measured of an arm, for a terminal of 80 columns: groups of facts, stages side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line

MIB = 1024**2
_WIDEST = 40  # columns of a name that is not broken


def render_proof(proof: Mapping[str, Any]) -> RenderableType:
    """Facts of the stages side by side, then those that belong to no stage. What is empty is left out.

    Bytes stand in MiB and hashes are cut; `show --json` has all of it. How prompts begin, `show` says in words.
    """
    stages = [name for name in ("prefill", "decode") if isinstance(proof.get(name), Mapping)]
    rest = {name: value for name, value in proof.items() if name not in (*stages, "beginnings")}
    parts: list[RenderableType] = []
    if stages:
        facts = [dict(_flat(proof[stage])) for stage in stages]
        parts.append(_table(("measured", *stages), facts))
    beside = dict(_flat(rest))
    if beside:
        if parts:
            parts.append(Text(""))
        parts.append(_table(("of both stages" if stages else "measured", ""), [beside]))
    return Group(*parts)


def _table(columns: Sequence[str], facts: Sequence[Mapping[tuple[str, ...], str]]) -> Table:
    """One line a fact; facts of one group stand indented under its name."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    paths = list(dict.fromkeys(path for held in facts for path in held))
    heads = list(dict.fromkeys(path[0] for path in paths))
    names = {path: f"  {one_line('.'.join(path[1:]))}" if path[1:] else one_line(path[0]) for path in paths}
    table.add_column(columns[0], overflow="fold", min_width=min(_WIDEST, max(map(len, names.values()))))
    for column in columns[1:]:
        table.add_column(column, overflow="fold")
    for head in heads:
        group = [path for path in paths if path[0] == head]
        if group != [(head,)]:
            table.add_row(Text(one_line(head)))
        for path in group:
            table.add_row(Text(names[path]), *(Text(one_line(held.get(path, ""))) for held in facts))
    return table


def _flat(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every fact that says something, by the keys that lead to it."""
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, (*path, name))
        elif text := _in_words(name, entry):
            yield (*path, name), text


def _in_words(name: str, value: object) -> str:
    match value:
        case str() if name == "sha256":
            return f"{value[:12]}..."
        case bool() | str():
            return str(value)
        case int() | float() if name.endswith("_bytes"):
            return f"{value / MIB:,.1f} MiB"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"
        case None | []:
            return ""
        case list() if all(isinstance(entry, str) for entry in value):
            return ", ".join(value)
    return str(value)
