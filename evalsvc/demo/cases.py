"""Questions of the generated history: case files as people write them, with a right and a wrong answer to each.

The suites' own scorers judge both answers, so that what a page says of an answer is what a run would have said.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import zip_longest
from math import log
from pathlib import Path
from typing import Any

from evalsvc.alternatives import pack
from evalsvc.engine.requests import GenerateResult, TokenLogprobs
from evalsvc.store.records import NewScore, Turn
from evalsvc.suites.base import Item
from evalsvc.suites.cases import CaseSuite
from evalsvc.suites.formats.case import FormatSuite
from evalsvc.suites.items import content_hash
from evalsvc.suites.toolcall.suite import ToolCallSuite

ITEMS = 45  # of each family
_FILLERS = (" a", " and", " of", " to", " in")
_SURE, _PARTED = (0.92, 0.03, 0.02, 0.01, 0.005), (0.51, 0.38, 0.04, 0.02, 0.01)  # of the likeliest tokens
CITIES = ("Lisbon", "Dublin", "Vienna", "Athens", "Oslo", "Prague", "Porto", "Seoul", "Quito", "Lima", "Cairo")
NAMES = ("Irene", "Victor", "Grace", "Leo", "Rosa", "Bruno", "Alma", "Nils", "Yuki")
THINGS = ("tea", "rope", "lamp", "soap", "bread", "glue", "paint")
TOOLS = [
    {"name": "get_weather", "description": "weather in a city", "arguments": {"city": "string"}},
    {"name": "set_timer", "description": "start a timer of some minutes", "arguments": {"minutes": "integer"}},
    {"name": "book_table", "description": "book a table", "arguments": {"people": "integer", "time": "string"}},
]
_OFFER = (
    "Tools: get_weather(city), set_timer(minutes), book_table(people, time). Answer with a JSON call or in words.\n"
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One item as it is asked in every night.

    Attributes:
        answers: The wrong one and the right one.
        scores: Of each of them, as the suite's scorer gives them.
        turns: Of each of them its tokens.
        alternatives: Of each of them the likeliest tokens, as `evalsvc.alternatives` packs them.
    """

    suite: str
    item: Item
    prompt: str
    answers: tuple[str, str]
    scores: tuple[tuple[NewScore, ...], tuple[NewScore, ...]]
    turns: tuple[tuple[Turn, ...], tuple[Turn, ...]]
    alternatives: tuple[bytes | None, ...]
    scoring_version: str


def write_cases(folder: Path) -> tuple[list[Asked], list[dict[str, Any]]]:
    """Writes the case files; the items of all suites, and the suites as a run's experiment names them."""
    tools, shapes = list(_tool_cases()), list(_format_cases())
    for name, cases in (("tools", tools), ("formats", shapes)):
        lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case, _, _ in cases)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    asked = _of_cases(ToolCallSuite("tools", folder / "tools.jsonl", form="json"), tools)
    asked += _of_cases(FormatSuite("formats", folder / "formats.jsonl"), shapes)
    asked += list(_tasks())
    suites = [
        {"name": "tools", "kind": "toolcall", "cases": "tools.jsonl", "format": "json"},
        {"name": "formats", "kind": "formats", "cases": "formats.jsonl"},
        {"name": "tasks", "kind": "lm_eval"},
    ]
    return asked, suites


def tokens(text: str) -> tuple[int, ...]:
    """Made-up token ids: one for each word with the space before it, and for each other character."""
    return tuple(zlib.crc32(piece.encode()) % 50_000 for piece in pieces(text))


def pieces(text: str) -> list[str]:
    """The texts of these tokens."""
    return re.findall(r"\s*\w+|\s*[^\w\s]|\s+$", text)


def _turns(answers: tuple[str, str]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    wrong, right = ((Turn(None, None, tokens(text)),) for text in answers)
    return wrong, right


def _likeliest(wrong: str, right: str) -> tuple[bytes | None, ...]:
    """The likeliest tokens of both answers; where they part each arm's own comes first and the other's second."""
    both = [pieces(wrong), pieces(right)]
    parting = next((i for i, (a, b) in enumerate(zip_longest(*both)) if a != b), 0)
    packed = []
    for own, other in (both, both[::-1]):
        places = []
        for place, piece in enumerate(own):
            near = place == parting and place < len(other)
            named = [piece, other[place] if near else " the", *_FILLERS]
            shares = _PARTED if near else _SURE
            top = tuple(
                (tokens(text)[0], log(share)) for text, share in zip(dict.fromkeys(named), shares, strict=False)
            )
            places.append(TokenLogprobs(top[0][0], top[0][1], top[: len(shares)]))
        texts = {tokens(text)[0]: text for text in (*own, *other, " the", *_FILLERS)}
        told: dict[str, Any] = {"prompt_tokens": 40, "prompt_sha256": "t", "finish_reason": "stop", "stage_tokens": {}}
        answer = GenerateResult(id="", text="", token_ids=(), logprobs=tuple(places), texts=texts, **told)
        packed.append(pack([answer]))
    return tuple(packed)


def _of_cases(suite: CaseSuite[Any], cases: list[tuple[dict[str, Any], str, str]]) -> list[Asked]:
    asked = []
    for item, (case, wrong, right) in zip(suite.items(), cases, strict=True):
        scores = []
        for text in (wrong, right):
            told: dict[str, Any] = {
                "prompt_tokens": 40,
                "prompt_sha256": "t",
                "finish_reason": "stop",
                "stage_tokens": {},
            }
            answer = GenerateResult(id=item.id, text=text, token_ids=tokens(text), **told)
            found = suite.score(item, [answer])  # pyright: ignore[reportAttributeAccessIssue]
            given = [
                NewScore(metric=s.metric, filter=s.filter, value=s.value, error_class=s.error_class) for s in found
            ]
            scores.append(tuple(given))
        asked.append(
            Asked(
                suite=suite.name,
                item=item,
                prompt=case["prompt"],
                answers=(wrong, right),
                scores=(scores[0], scores[1]),
                turns=_turns((wrong, right)),
                alternatives=_likeliest(wrong, right),
                scoring_version=suite.scoring_version,  # pyright: ignore[reportAttributeAccessIssue]
            )
        )
    return asked


def _tool_cases() -> Iterator[tuple[dict[str, Any], str, str]]:
    """Case, wrong answer and right answer: a call among three tools, then words where no tool fits."""
    for i in range(ITEMS):
        city, other = CITIES[i % len(CITIES)], CITIES[(i + 3) % len(CITIES)]
        people, minutes, hour = 2 + i % 7, 5 + i, 17 + i % 5
        said, name, arguments, wrong = (
            (f"What is the weather like in {city}?", "get_weather", {"city": city}, {"city": other}),
            (f"Wake me in {minutes} minutes.", "set_timer", {"minutes": minutes}, {"minutes": minutes + 10}),
            (
                f"A table for {people} at {hour}:00, please.",
                "book_table",
                {"people": people, "time": f"{hour}:00"},
                {"people": people, "time": f"{hour - 12}:00"},
            ),
        )[i % 3]
        case = _tool_case(f"choose-{i:03d}", "choose", said, {"call": {"name": name, "arguments": arguments}})
        yield case, json.dumps({"name": name, "arguments": wrong}), json.dumps({"name": name, "arguments": arguments})
    for i in range(ITEMS):
        thing, city = THINGS[i % len(THINGS)], CITIES[i % len(CITIES)]
        case = _tool_case(
            f"refrain-{i:03d}", "refrain", f"Tell me in a word what {thing} is for, {i}.", {"no_call": True}
        )
        yield case, json.dumps({"name": "get_weather", "arguments": {"city": city}}), f"For a day with {thing}."


def _tool_case(name: str, family: str, said: str, expect: dict[str, Any]) -> dict[str, Any]:
    prompt = f"{_OFFER}User: {said}\nAnswer:"
    return {"id": name, "family": family, "prompt": prompt, "tools": TOOLS, "expect": expect}


def _format_cases() -> Iterator[tuple[dict[str, Any], str, str]]:
    """Case, wrong answer and right answer: an object with given keys, and a markdown table."""
    for i in range(ITEMS):
        held = {"name": NAMES[i % len(NAMES)], "age": 20 + i, "city": CITIES[i % len(CITIES)]}
        prompt = f"{held['name']}, aged {held['age']}, lives in {held['city']}. As JSON with name, age and city:"
        other = held | {"city": CITIES[(i + 4) % len(CITIES)]}
        wrong = json.dumps(other) if i % 3 else f"{json.dumps(held)} and so on"
        check = {"constraints": [{"kind": "json", "keys": list(held)}], "check": {"json_equals": held}}
        yield {"id": f"json-{i:03d}", "family": "json", "prompt": prompt, **check}, wrong, json.dumps(held)
    for i in range(ITEMS):
        things = [THINGS[(i + step) % len(THINGS)] for step in range(3)]
        lines = ["| item | price |", "|---|---|", *(f"| {one} | {2 + (i + n) % 9} |" for n, one in enumerate(things))]
        prompt = f"Order {i}: {', '.join(things)}. A markdown table with the columns item and price:"
        wrong = "\n".join(lines[:-1]) if i % 2 else "\n".join(line.strip("| ") for line in lines[2:])
        wanted = {"constraints": [{"kind": "table", "columns": ["item", "price"], "min_rows": 3, "max_rows": 3}]}
        yield {"id": f"table-{i:03d}", "family": "table", "prompt": prompt, **wanted}, wrong, "\n".join(lines)


def _tasks() -> Iterator[Asked]:
    """Questions with one right answer, as an lm-eval task has them."""
    for i in range(ITEMS):
        day = date(2024, 2, 20) + timedelta(days=9 * i)
        later = [str(day + timedelta(days=3 + i % 5 + off)) for off in (1, 0)]
        yield _task(
            f"dates-{i:03d}", "dates", f"Q: Which date is {3 + i % 5} days after {day}?\nA:", later[0], later[1]
        )
    for i in range(ITEMS):
        left, right = 17 + 3 * i, 8 + 5 * i
        total = left + right
        yield _task(f"sums-{i:03d}", "sums", f"Q: What is {left} + {right}?\nA:", str(total - 10), str(total))


def _task(name: str, family: str, prompt: str, wrong: str, right: str) -> Asked:
    item = Item(
        id=name,
        family=family,
        cluster="",
        sha256=content_hash([prompt, right]),
        metric="exact_match",
        right_answer=right,
    )
    scores = tuple(
        (NewScore(metric="exact_match", filter="none", value=value, error_class=None if value else "wrong_answer"),)
        for value in (0.0, 1.0)
    )
    return Asked(
        suite="tasks",
        item=item,
        prompt=prompt,
        answers=(wrong, right),
        scores=(scores[0], scores[1]),
        turns=_turns((wrong, right)),
        alternatives=_likeliest(wrong, right),
        scoring_version="lm-eval",
    )
