"""Plain JSON: `{"name": ..., "arguments": {...}}` and nothing else; several calls are a list of such objects."""

import re
from collections.abc import Sequence

from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import (
    CallFormat,
    Schemas,
    call_of,
    compact,
    json_value,
    skip,
    split_reasoning,
)

BEGUN = re.compile(r"[{\[]")


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """The whole answer is one JSON value. Leniently text may stand around it."""
    reasoning, rest = split_reasoning(text)
    begun = BEGUN.search(rest)
    first = skip(rest, 0)
    fenced = rest.startswith("```", first)
    called = begun is not None and (begun.start() == first or fenced or is_call(rest, begun.start()))
    if begun is None or not called:
        return Parsed(text=rest.strip(), reasoning=reasoning)
    try:
        at = first if fenced else begun.start()
        if at > first:
            leniency.repair("text before the call")
        value, end = json_value(rest, at, leniency)
        if rest[end:].strip():
            leniency.repair("text after the call")
        calls = _calls(value, leniency)
    except Malformed as error:
        return Parsed(text=rest.strip(), reasoning=reasoning, problems=(str(error),), attempted=True)
    around = (rest[:at] + rest[end:]).strip()
    return Parsed(calls=calls, text=around, reasoning=reasoning, repairs=tuple(leniency.done), attempted=True)


def is_call(text: str, at: int) -> bool:
    """Whether what begins at a brace looks like a call's object, or a list that begins with one."""
    return re.compile(r"""\[?\s*\{\s*["'](?:name|arguments|parameters)["']\s*:""").match(text, at) is not None


def _calls(value: object, leniency: Leniency) -> tuple[Call, ...]:
    if not isinstance(value, list):
        return (call_of(value, "arguments", leniency),)
    if len(value) < 2:
        leniency.repair("a list of one call" if value else "an empty list")
    return tuple(call_of(entry, "arguments", leniency) for entry in value)


def write(calls: Sequence[Call]) -> str:
    """An object, or a list of several."""
    made = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return compact(made[0] if len(made) == 1 else made)


PLAIN = CallFormat("json", (), (), read, write)
