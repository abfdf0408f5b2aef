"""What all generators share: words, few-shot prefixes with random numbers of their own, and how files are written."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

SEED = "evalsvc-1"
PREFIXES = 8


def words(text: str, between: str | None = None) -> list[str]:
    return text.split(between)


WORDS = words(
    "window paper table green tiger doctor butter rabbit spoon ladder meadow copper music drum kite bell rope coin hat "
    "salad jacket lemon basket candle winter river bottle garden pencil silver mirror button carpet orange pillow "
    "castle engine forest hammer island jungle kettle market needle parrot pocket ribbon saddle tunnel valley"
)
NAMES = words("Rosa Felix Leo Nora Grace Adam Clara Hugo Irene Oscar Paula Simon Tina Victor Wanda Bruno Emma Karl")
CITIES = words(
    "Tokyo Madrid Boston Prague Toronto Lisbon Vienna Oslo Cairo Lima Dublin Athens Berlin Seoul Delhi Denver"
)
JOBS = words("teacher baker nurse pilot farmer lawyer painter driver waiter tailor singer plumber chemist butcher")
MONTHS = words("January February March April May June July August September October November December")

Shots = list[dict[str, Any]]
Draw = Callable[[Random], dict[str, Any]]
Cases = Iterator[tuple[dict[str, Any], Shots]]  # a prefix, its cases


def prefix_id(family: str, number: int) -> str:
    """The id stored with every sample: unique over all families."""
    return f"{family}-p{number}"


def fresh(rng: Random, draw: Draw, key: Callable[[dict[str, Any]], Any], seen: set[Any]) -> dict[str, Any]:
    """Draws until the key is new, and remembers it."""
    while True:
        made = draw(rng)
        if key(made) not in seen:
            seen.add(key(made))
            return made


def plan(family: str) -> Iterator[tuple[int, Random]]:
    """The prefixes of a family, each with its own generator."""
    for number in range(PREFIXES):
        yield number, Random(f"{SEED}:{family}:{number}")


def write_cases(path: Path, *families: Cases) -> None:
    """Cases in `NAME.jsonl`, their prefixes in `NAME.prefixes.jsonl`."""
    made = [pair for family in families for pair in family]
    write_lines(path, [case for _, cases in made for case in cases])
    write_lines(path.with_suffix(".prefixes.jsonl"), [prefix for prefix, _ in made])


def write_lines(path: Path, rows: Shots) -> None:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
