"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one pair of tags a call."""

from collections.abc import Sequence

from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import (
    CallFormat,
    Schemas,
    call_of,
    compact,
    expect,
    json_value,
    skip,
    split_reasoning,
    walk,
)

OPENS, CLOSES = "<tool_call>", "</tool_call>"


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """Calls between tags. A tag inside a JSON string is data."""

    def one(text: str, at: int) -> tuple[list[Call], int]:
        value, end = json_value(text, at + len(OPENS), leniency)
        call = call_of(value, "arguments", leniency)
        end = skip(text, end)
        try:
            return [call], expect(text, end, CLOSES)
        except Malformed:
            leniency.repair("no end tag")
            return [call], end

    reasoning, rest = split_reasoning(text, (OPENS,))
    return walk(rest, (OPENS,), one, leniency, reasoning)


def write(calls: Sequence[Call]) -> str:
    """One pair of tags a call."""
    bodies = (compact({"name": call.name, "arguments": call.arguments}) for call in calls)
    return "\n".join(f"{OPENS}\n{body}\n{CLOSES}" for body in bodies)


HERMES = CallFormat("hermes", (OPENS,), ((OPENS,),), read, write)
