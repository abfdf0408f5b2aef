"""`suites/shapes.jsonl`: format cases over every kind of constraint, tagged by the size of model that they are for."""

from pathlib import Path

from making.base import write_lines
from making.chat_shapes import case, medium
from making.small_shapes import small
from making.written_shapes import WRITTEN


def write_shapes(path: Path) -> None:
    """The small part with its prefixes, then conversations."""
    made = [pair for family in small() for pair in family]
    hard = [
        case(f"{family}-hard-{number}", family, "hard", one)
        for family, written in WRITTEN.items()
        for number, one in enumerate(written)
    ]
    write_lines(path, [*(one for _, cases in made for one in cases), *medium(), *hard])
    write_lines(path.with_suffix(".prefixes.jsonl"), [prefix for prefix, _ in made])
