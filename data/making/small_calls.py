"""Few-shot tool-call cases for small models: nine families under eight prefixes each."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from making.base import PREFIXES, SEED, Cases, Shots, plan, prefix_id
from making.tools import TOOLS, ask, tool, with_kind
from making.wordings import CHAT, INCOMPLETE

PER_PREFIX = 3
NO_TOOL = "no tool"
Made = dict[str, Any]  # `user`: the turn before the answer, `answer`: the right text, `expect`

ONE_ARGUMENT = [name for name, (_, given, _) in TOOLS.items() if len(given) == 1 and name not in ("add_contact",)]
SEVERAL = ["book_table", "transfer_money", "log_meal", "add_to_cart", "start_workout", "get_news", "call_taxi"]


def text_of(call: Any) -> str:
    return json.dumps(call)


def called(name: str, rng: Random) -> Made:
    made = ask(name, rng)
    return {"user": made["user"], "answer": text_of(made["call"]), "expect": {"call": made["call"]}}


def both(name: str, rng: Random) -> Made:
    """Two requests for one tool at once."""
    one, other = ask(name, rng), ask(name, rng)
    while other["call"] == one["call"]:
        other = ask(name, rng)
    calls = [one["call"], other["call"]]
    return {"user": f"{one['user']} {other['user']}", "answer": text_of(calls), "expect": {"calls": calls}}


def again(name: str, rng: Random) -> Made:
    """A call whose result is recorded, and a request for the next."""
    one, other = ask(name, rng), ask(name, rng)
    while other["call"] == one["call"]:
        other = ask(name, rng)
    said = f"{one['user']}\nCall: {text_of(one['call'])}\nResult: done\nUser: Thanks. {other['user']}"
    return {"user": said, "answer": text_of(other["call"]), "expect": {"call": other["call"]}}


def unfinished(name: str, rng: Random) -> Made:
    said, question, named = rng.choice(INCOMPLETE[name])
    return {"user": said, "answer": question, "expect": {"ask_back": named}}


def tools_text(names: list[str], rest: str = "") -> str:
    lines = [f"- {name}({', '.join(TOOLS[name][1])}): {TOOLS[name][0]}" for name in names]
    return "\n".join(["Tools:", *lines, *([rest] if rest else [])]) + "\n\n"


def turn(made: Made) -> str:
    return f"User: {made['user']}\nCall:"


def family(
    name: str, several: int, shots: int, pool: list[str], draw: Callable[[str, Random], Made], limit: int
) -> Cases:
    """A family whose prefixes show `several` tools of a pool and `shots` requests for each."""
    seen: set[str] = set()
    for number, rng in plan(f"calls:{name}"):
        names = rng.sample(pool, several)
        order = [tool for _ in range(shots) for tool in rng.sample(names, several)]
        shown = distinct(rng, order, draw, seen)
        asked = distinct(rng, [names[i % several] for i in range(PER_PREFIX)], draw, seen)
        yield prefixed(name, number, names, tools_text(names), shown, asked, limit)


def distinct(rng: Random, names: list[str], draw: Callable[[str, Random], Made], seen: set[str]) -> list[Made]:
    """A request for each name, none asked before."""
    made: list[Made] = []
    for name in names:
        one = draw(name, rng)
        while one["user"] in seen:
            one = draw(name, rng)
        seen.add(one["user"])
        made.append(one)
    return made


def prefixed(
    name: str, number: int, names: list[str], head: str, shown: list[Made], asked: list[Made], limit: int
) -> tuple[dict[str, Any], Shots]:
    """A prefix and its cases."""
    prefix = prefix_id(f"{name}-small", number)
    text = head + "".join(f"{turn(one)} {one['answer']}\n\n" for one in shown)
    cases = [
        {
            "id": f"{prefix}-{place}",
            "family": name,
            "level": "small",
            "prefix": prefix,
            "input": turn(one),
            "stop": ["\n"],
            "max_tokens": limit,
            "tools": [tool(each) for each in names],
            "expect": one["expect"],
        }
        for place, one in enumerate(asked)
    ]
    return {"id": prefix, "text": text}, cases


def irrelevant() -> Cases:
    """Small talk under tools, between requests that they answer."""
    questions = Random(f"{SEED}:calls:chat").sample(CHAT, PREFIXES * (1 + PER_PREFIX))
    for number, rng in plan("calls:irrelevant"):
        names = rng.sample(ONE_ARGUMENT, 3)
        talk = [
            {"user": questions.pop(), "answer": NO_TOOL, "expect": {"no_call": NO_TOOL}} for _ in range(1 + PER_PREFIX)
        ]
        calls = [called(name, rng) for name in [*rng.sample(names, 3), *rng.sample(names, 2)]]
        shown = [calls[0], talk[0], *calls[1:]]
        head = tools_text(names, f"If no tool fits, write: {NO_TOOL}")
        yield prefixed("irrelevant", number, names, head, shown, talk[1:], 40)


def asking() -> Cases:
    """Requests that lack what the tool needs, between complete ones."""
    said = [(name, place) for name, all_ in INCOMPLETE.items() for place in range(len(all_))]
    order = Random(f"{SEED}:calls:asking").sample(said, len(said))
    for number, rng in plan("calls:asking"):
        mine = [order.pop() for _ in range(2 + PER_PREFIX)]
        names = list(dict.fromkeys(name for name, _ in mine))
        made = [
            {"user": user, "answer": question, "expect": {"ask_back": named}}
            for user, question, named in (INCOMPLETE[name][place] for name, place in mine)
        ]
        calls = [called(name, rng) for name in [*names, *names][:3]]
        head = tools_text(names, "If something is missing, ask for it.")
        yield prefixed("asking", number, names, head, [calls[0], made[0], *calls[1:], made[1]], made[2:], 40)


def small() -> Iterator[Cases]:
    """All nine families."""
    yield family("simple", 2, 2, SEVERAL, called, 48)
    yield family("choice", 3, 2, ONE_ARGUMENT, called, 40)
    yield family("parallel", 1, 3, [n for n in ONE_ARGUMENT if n not in ("list_events", "lock_door")], both, 72)
    yield family("nested", 1, 4, with_kind("{"), called, 72)
    yield family("enums", 1, 4, [n for n in with_kind("|", most=2) if n != "lock_door"], called, 48)
    yield family("dates", 1, 4, with_kind("date"), called, 64)
    yield irrelevant()
    yield asking()
    yield family("turns", 2, 2, [n for n in ONE_ARGUMENT if n != "lock_door"], again, 40)
