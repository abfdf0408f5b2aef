"""`suites/calls.jsonl`: tool-call cases over forty tools, tagged by the size of model that they are for."""

from pathlib import Path

from making.base import write_lines
from making.chat_calls import hard, medium
from making.small_calls import small


def write_calls(path: Path) -> None:
    """The small part with its prefixes, then conversations."""
    made = [pair for family in small() for pair in family]
    write_lines(path, [*(case for _, cases in made for case in cases), *medium(), *hard()])
    write_lines(path.with_suffix(".prefixes.jsonl"), [prefix for prefix, _ in made])
