"""Few-shot format cases for small models: eleven families under eight prefixes each."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from making.base import CITIES, JOBS, NAMES, WORDS, Cases, plan, prefix_id

PER_PREFIX = 3
Made = dict[str, Any]  # `input`: what is asked, up to where the answer begins; `example`: the right one; `constraints`
COLORS = ("red", "blue", "green", "white", "black", "brown")
TOLD = (
    "In {city} the {color} {item} costs {price} dollars.",
    "For {price} dollars {city} sells the {item}, which is {color}.",
    "The {item} in {color} comes from {city}; it is {price} dollars.",
)
KEYS = ("item", "color", "price", "city")


def goods(rng: Random) -> dict[str, Any]:
    values = (rng.choice(WORDS), rng.choice(COLORS), rng.randint(11, 98), rng.choice(CITIES))
    return dict(zip(KEYS, values, strict=True))


def told(made: dict[str, Any], rng: Random) -> str:
    return rng.choice(TOLD).format(**made)


def exactly(made: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of one object and no other."""
    return {"type": "object", "properties": {key: {"const": value} for key, value in made.items()}}


def json_(rng: Random) -> Made:
    made = goods(rng)
    right = {"kind": "json", "schema": exactly(made), "keys": list(KEYS)}
    return {"input": f"Text: {told(made, rng)}\nJSON:", "example": json.dumps(made), "constraints": [right]}


def yaml_(rng: Random) -> Made:
    made = goods(rng)
    right = {"kind": "yaml", "schema": exactly(made), "keys": list(KEYS)}
    text = "\n".join(f"{key}: {value}" for key, value in made.items())
    return {"input": f"Text: {told(made, rng)}\nYAML:\n", "example": text, "constraints": [right]}


def csv_(rng: Random) -> Made:
    row = goods(rng)
    lines = [",".join(KEYS), ",".join(map(str, row.values()))]
    right = {"kind": "csv", "columns": list(KEYS), "max_rows": 1}
    said = {"kind": "include", "words": lines[1:], "match": "substring"}
    return {"input": f"Text: {told(row, rng)}\nCSV:\n", "example": "\n".join(lines), "constraints": [right, said]}


def table(rng: Random) -> Made:
    row = goods(rng)
    cells = [f"| {' | '.join(map(str, line))} |" for line in (KEYS, ["---"] * len(KEYS), row.values())]
    right = {"kind": "table", "columns": list(KEYS), "max_rows": 1}
    said = {"kind": "include", "words": cells[2:], "match": "substring"}
    return {"input": f"Text: {told(row, rng)}\nTable:\n", "example": "\n".join(cells), "constraints": [right, said]}


def xml(rng: Random) -> Made:
    made = {"name": rng.choice(NAMES), "job": rng.choice(JOBS), "city": rng.choice(CITIES)}
    inner = [f"<{key}>{value}</{key}>" for key, value in made.items()]
    right = {"kind": "xml", "root": "person", "elements": list(made)}
    said = {"kind": "include", "words": inner, "match": "substring"}
    asked = "{name} from {city} is a {job}.\nXML:".format(**made)
    return {"input": f"Text: {asked}", "example": f"<person>{''.join(inner)}</person>", "constraints": [right, said]}


def numbered(rng: Random) -> Made:
    given = rng.sample(WORDS, rng.randint(3, 4))
    lines = [f"{place}. {word}" for place, word in enumerate(given, 1)]
    right = {"kind": "numbered_list", "n": len(given), "only": True}
    said = {"kind": "include", "words": lines, "match": "substring"}
    return {"input": f"Words: {', '.join(given)}\nList:\n", "example": "\n".join(lines), "constraints": [right, said]}


def marker(rng: Random) -> Made:
    given = " ".join(rng.sample(WORDS, rng.randint(4, 8)))
    right = [{"kind": "stops_at", "marker": "STOP"}, {"kind": "starts_with", "text": given}]
    asked = f"Copy the words and then write STOP.\nWords: {given}\nCopy:"
    return {"input": asked, "example": f"{given} STOP", "constraints": right}


def casing(rng: Random) -> Made:
    word = rng.choice(WORDS)
    right = [{"kind": "casing", "case": "upper"}, {"kind": "choice", "options": [word.upper()]}]
    return {"input": f"In capitals: {word} ->", "example": word.upper(), "constraints": right}


def code(rng: Random) -> Made:
    (one, two), value, more = rng.sample(WORDS, 2), rng.randint(11, 98), rng.randint(11, 98)
    lines = [f"{one} = {value}", f"{two} = {more}", f"print({one} + {two})"]
    right = {"kind": "code", "language": "python", "only": True}
    said = {"kind": "include", "words": lines, "match": "substring"}
    text = "\n".join(["```python", *lines, "```"])
    asked = f"Print the sum of {one} and {two}, which are {value} and {more}.\nPython:\n"
    return {"input": asked, "example": text, "constraints": [right, said]}


def choice(rng: Random) -> Made:
    given = rng.sample(WORDS, 3)
    place = rng.randrange(3)
    asked = f"Words: {', '.join(given)}\nThe {('first', 'second', 'third')[place]} word is"
    right = {"kind": "choice", "options": [given[place]]}
    return {"input": asked, "example": given[place], "constraints": [right]}


def limits(rng: Random) -> Made:
    made = goods(rng)
    text = "{color} {item}".format(**made)
    right = [
        {"kind": "words", "min": 2, "max": 2},
        {"kind": "starts_with", "text": text},
        {"kind": "exclude", "words": [made["city"], "dollars"]},
    ]
    asked = f"Text: {told(made, rng)}\nColor and item, two words:"
    return {"input": asked, "example": text, "constraints": right}


FAMILIES: dict[str, tuple[Callable[[Random], Made], int, int]] = {  # how a case is drawn, examples, most tokens
    "json": (json_, 2, 56),
    "yaml": (yaml_, 2, 48),
    "csv": (csv_, 3, 48),
    "table": (table, 2, 64),
    "xml": (xml, 3, 64),
    "numbered": (numbered, 3, 56),
    "marker": (marker, 3, 40),
    "casing": (casing, 5, 14),
    "code": (code, 2, 64),
    "choice": (choice, 5, 8),
    "limits": (limits, 3, 16),
}


def small() -> Iterator[Cases]:
    """All families."""
    for name, (draw, shots, limit) in FAMILIES.items():
        yield family(name, draw, shots, limit)


def family(name: str, draw: Callable[[Random], Made], shots: int, limit: int) -> Cases:
    """Eight prefixes with examples of their own and new cases under each; no answer is there twice."""
    seen: set[str] = set()
    for number, rng in plan(f"shapes:{name}"):
        prefix = prefix_id(f"{name}-small", number)
        own: set[str] = set()
        shown = [new(draw, rng, own, set()) for _ in range(shots)]
        asked = [new(draw, rng, own, seen) for _ in range(PER_PREFIX)]
        text = "".join(f"{one['input']}{gap(one)}{one['example']}\n\n" for one in shown)
        cases = [
            {"id": f"{prefix}-{place}", "family": name, "level": "small", "prefix": prefix, **one}
            | {"stop": ["\n" if gap(one) else "\n\n"], "max_tokens": limit}
            for place, one in enumerate(asked)
        ]
        yield {"id": prefix, "text": text}, cases


def new(draw: Callable[[Random], Made], rng: Random, own: set[str], seen: set[str]) -> Made:
    """A case whose answer is new under its prefix, and whose question no case before it asks."""
    while True:
        made = draw(rng)
        if made["example"] not in own and made["input"] not in seen:
            own.add(made["example"])
            seen.add(made["input"])
            return made


def gap(made: Made) -> str:
    """What stands between question and answer: nothing after a line end."""
    return "" if made["input"].endswith("\n") else " "
