"""Templates of documents: JSON, YAML, XML, CSV, tables and fenced code with a schema, an order or a number of rows."""

import json
from random import Random
from typing import Any

from making.base import CITIES, NAMES

Made = tuple[str, list[dict[str, Any]], str]
COLUMNS = ["name", "city", "age"]


def _people(rng: Random, count: int) -> list[list[Any]]:
    cities = rng.sample(CITIES, count)
    return [[name, cities[i], rng.randint(20, 70)] for i, name in enumerate(rng.sample(NAMES, count))]


def _told(people: list[list[Any]]) -> str:
    return " ".join(f"{name} from {city} is {age}." for name, city, age in people)


def _exactly(made: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"const": value} for key, value in made.items()}}


def json_(rng: Random, thing: str) -> Made:
    stock, price = rng.randint(2, 90), rng.randint(100, 900)
    made = {"stock": stock, "item": thing, "price": {"value": price, "currency": "EUR"}, "tags": ["new", "sale"]}
    asked = (
        f"There are {stock} of the item {thing} at {price} EUR each, with the tags new and sale. JSON alone, "
        "no code fence, with the keys stock, item, price (an object of value and currency) and tags, in this order."
    )
    return asked, [{"kind": "json", "schema": _exactly(made), "keys": list(made)}], json.dumps(made)


def yaml_(rng: Random, thing: str) -> Made:
    count = rng.randint(2, 90)
    made = {"item": thing, "count": count, "colors": ["red", "blue"]}
    asked = (
        f"Write YAML alone, no code fence: item is {thing}, count is {count}, colors is the list of red and blue; the "
        "keys in this order."
    )
    text = f"item: {thing}\ncount: {count}\ncolors:\n- red\n- blue"
    return asked, [{"kind": "yaml", "schema": _exactly(made), "keys": list(made)}], text


def xml(rng: Random, thing: str) -> Made:
    count = rng.randint(2, 90)
    inner = [f"<item>{thing}</item>", f"<count>{count}</count>"]
    asked = f"Write XML alone: a root element order with the elements item ({thing}) and count ({count})."
    right = {"kind": "xml", "root": "order", "elements": ["item", "count"]}
    return (
        asked,
        [right, {"kind": "regex", "pattern": f">\\s*{count}\\s*<", "within": True}],
        f"<order>{''.join(inner)}</order>",
    )


def csv(rng: Random, thing: str) -> Made:
    people = _people(rng, rng.randint(2, 4))
    asked = f"{_told(people)} Write this as CSV with the columns name, city and age, and nothing else."
    lines = [",".join(map(str, row)) for row in (COLUMNS, *people)]
    right = {"kind": "csv", "columns": COLUMNS, "min_rows": len(people), "max_rows": len(people)}
    return asked, [right, {"kind": "include", "words": [row[0] for row in people]}], "\n".join(lines)


def table(rng: Random, thing: str) -> Made:
    people = _people(rng, rng.randint(2, 4))
    asked = f"{_told(people)} Write this as a markdown table with the columns name, city and age, and nothing else."
    lines = [f"| {' | '.join(map(str, row))} |" for row in (COLUMNS, ["---"] * 3, *people)]
    right = {"kind": "table", "columns": COLUMNS, "min_rows": len(people), "max_rows": len(people)}
    return asked, [right, {"kind": "include", "words": [row[0] for row in people]}], "\n".join(lines)


def code(rng: Random, thing: str) -> Made:
    language, text = rng.choice(
        (("python", f'print("{thing}")'), ("toml", f'item = "{thing}"'), ("json", f'{{"item": "{thing}"}}'))
    )
    asked = f"Write one fenced code block of the language {language} that has the word {thing} in it, and nothing else."
    right = [{"kind": "code", "language": language, "only": True}, {"kind": "include", "words": [thing]}]
    return asked, right, f"```{language}\n{text}\n```"


DOCUMENTS = (json_, yaml_, xml, csv, table, code)
