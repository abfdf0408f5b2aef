"""Tool-call cases as conversations, without examples: `medium` ones from templates, `hard` ones written by hand."""

from collections.abc import Iterator
from random import Random
from typing import Any

from making.base import SEED, Shots
from making.tools import TOOLS, ask, tool, with_kind
from making.wordings import CHAT, INCOMPLETE
from making.written_calls import WRITTEN

MEDIUM = {
    "simple": 8,
    "choice": 10,
    "parallel": 8,
    "nested": 8,
    "enums": 8,
    "dates": 8,
    "irrelevant": 8,
    "asking": 8,
    "turns": 8,
}
KINDS = {"nested": ("{",), "enums": ("|",), "dates": ("date",)}


def wanted(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose free texts count without case and spaces."""
    kinds = TOOLS[call["name"]][1]
    return {"name": call["name"], "arguments": {k: matcher(kinds[k], v) for k, v in call["arguments"].items()}}


def matcher(kind: Any, value: Any) -> dict[str, Any]:
    if isinstance(kind, dict):
        return {"object": {key: matcher(kind[key], inner) for key, inner in value.items()}}
    if isinstance(value, list):
        return {"items": [{"same_text": inner} for inner in value]}
    if isinstance(value, int):
        return {"number": value} if kind == "amount" else {"exact": value}
    return {"exact": value} if "|" in kind or kind in ("date", "clock", "parcel") else {"same_text": value}


def offered(rng: Random, needed: list[str], more: int, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The needed tools among others, in random order."""
    others = rng.sample([name for name in TOOLS if name not in (*needed, *without)], more)
    return [tool(name) for name in rng.sample([*needed, *others], len(needed) + more)]


def case(id_: str, family: str, level: str, text: str, tools: Shots, expect: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"id": id_, "family": family, "level": level, "messages": messages, "tools": tools, "expect": expect}


def medium() -> Iterator[dict[str, Any]]:
    """Each family by its template."""
    names = sorted(TOOLS)
    asked = iter(Random(f"{SEED}:calls:medium").sample(names, len(names)) * 3)
    talk = Random(f"{SEED}:calls:chat").sample(CHAT, len(CHAT))[: MEDIUM["irrelevant"]]
    for family, count in MEDIUM.items():
        for number in range(count):
            id_ = f"{family}-medium-{number}"
            rng = Random(f"{SEED}:calls:{id_}")
            if family == "irrelevant":
                yield case(id_, family, "medium", talk[number], offered(rng, [], 6), {"no_call": True})
            elif family == "asking":
                name = sorted(INCOMPLETE)[number]
                said, _, named = rng.choice(INCOMPLETE[name])
                yield case(id_, family, "medium", said, offered(rng, [name], 3), {"ask_back": named})
            elif family == "parallel":
                yield parallel(id_, rng, [next(asked), next(asked)])
            elif family == "turns":
                yield turns(id_, rng, [next(asked), next(asked)])
            else:
                pool = with_kind(*KINDS[family]) if family in KINDS else [next(asked)]
                yield single(id_, family, rng, pool[number % len(pool)])


def single(id_: str, family: str, rng: Random, name: str) -> dict[str, Any]:
    made = ask(name, rng)
    more = {"simple": 1, "choice": 11}.get(family, 3)
    return case(id_, family, "medium", made["user"], offered(rng, [name], more), {"calls": [wanted(made["call"])]})


def parallel(id_: str, rng: Random, names: list[str]) -> dict[str, Any]:
    """Two requests for two tools in one message."""
    made = [ask(name, rng) for name in names]
    text = " And another thing. ".join(one["user"] for one in made)
    return case(id_, "parallel", "medium", text, offered(rng, names, 2), {"calls": [wanted(m["call"]) for m in made]})


def turns(id_: str, rng: Random, names: list[str]) -> dict[str, Any]:
    """A request, its recorded result, and a second request."""
    first, second = (ask(name, rng) for name in names)
    made = case(id_, "turns", "medium", first["user"], offered(rng, names, 2), {"calls": [wanted(first["call"])]})
    after = {"results": ["done"], "user": second["user"], "expect": {"calls": [wanted(second["call"])]}}
    return made | {"turns": [after]}


def hard() -> Iterator[dict[str, Any]]:
    """The written cases, each among as many other tools as it says."""
    for family, cases in WRITTEN.items():
        for number, (text, needed, more, expect, *rest) in enumerate(cases):
            id_ = f"{family}-hard-{number}"
            made = case(id_, family, "hard", text, offered(Random(f"{SEED}:calls:{id_}"), needed, more), expect)
            yield made | ({"turns": rest} if rest else {})
