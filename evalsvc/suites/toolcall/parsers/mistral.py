"""Mistral: `[TOOL_CALLS]` before a list of objects (older models) or before each `name[ARGS]{...}` (from v11 on)."""

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
    walk,
)

MARK = "[TOOL_CALLS]"
NAME = re.compile(r"\s*+([^\s\[\]{}]++)\s*+(?:\[CALL_ID\]([^\s\[\]{}]++))?+(?:\[ARGS\])?+(?=\s*+\{)")


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """Both forms; the mark alone does not say which."""

    def section(text: str, at: int) -> tuple[list[Call], int]:
        at = skip(text, at + len(MARK))
        if text.startswith(("[", "```"), at):
            value, end = json_value(text, at, leniency)
            if not isinstance(value, list) or not value:
                raise Malformed("not a list of calls")
            return [call_of(entry, "arguments", leniency, frozenset({"id"})) for entry in value], end
        named = NAME.match(text, at)
        if named is None:
            raise Malformed("truncated" if at >= len(text) else "no name")
        arguments, end = json_value(text, named.end(), leniency)
        if not isinstance(arguments, dict):
            raise Malformed("arguments are not an object")
        return [Call(named[1], arguments, named[2])], end

    reasoning, rest = split_reasoning(text)
    if not reasoning and "[/THINK]" in text:
        reasoning, rest = split_reasoning(text, (MARK,), "[THINK]", "[/THINK]")
    return walk(rest, (MARK,), section, leniency, reasoning)


def write(calls: Sequence[Call]) -> str:
    """The newer form."""
    return "".join(f"{MARK}{call.name}[ARGS]{compact(call.arguments)}" for call in calls)


MISTRAL = CallFormat("mistral", (MARK,), ((MARK,),), read, write)
