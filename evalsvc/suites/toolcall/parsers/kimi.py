"""Kimi K2: a section of calls with ids `functions.NAME:IDX`."""

import re
from collections.abc import Sequence

from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import (
    CallFormat,
    Schemas,
    compact,
    expect,
    json_value,
    skip,
    split_reasoning,
    walk,
)

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
ID = re.compile(r"[^\s<]+")
STRICT_ID = re.compile(r"functions\.(.+):\d+")
LOOSE_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """Sections; calls outside of one are read leniently."""

    def section(text: str, at: int) -> tuple[list[Call], int]:
        if text.startswith(CALL, at):
            leniency.repair("no begin of the section")
        else:
            at = skip(text, at + len(BEGIN))
        calls: list[Call] = []
        while text.startswith(CALL, at):
            call, at = _one(text, skip(text, at + len(CALL)), leniency)
            calls.append(call)
            at = skip(text, at)
        if not calls:
            raise Malformed("a section without calls" if at < len(text) else "truncated")
        if text.startswith(END, at):
            return calls, at + len(END)
        leniency.repair("no end of the section")
        return calls, at

    reasoning, rest = split_reasoning(text)
    return walk(rest, (BEGIN, CALL), section, leniency, reasoning)


def _one(text: str, at: int, leniency: Leniency) -> tuple[Call, int]:
    written = ID.match(text, at)
    if written is None:
        raise Malformed("no id" if at < len(text) else "truncated")
    named = STRICT_ID.fullmatch(written[0])
    if named is None:
        leniency.repair("not an id `functions.NAME:IDX`")
        named = LOOSE_ID.fullmatch(written[0])
    if named is None:
        raise Malformed("no id")
    at = expect(text, skip(text, written.end()), ARGUMENTS)
    arguments, at = json_value(text, at, leniency)
    if not isinstance(arguments, dict):
        raise Malformed("arguments are not an object")
    return Call(named[1], arguments, written[0]), expect(text, skip(text, at), CALL_END)


def write(calls: Sequence[Call]) -> str:
    """One section, ids counted from 0."""
    bodies = (
        f"{CALL}functions.{call.name}:{number}{ARGUMENTS}{compact(call.arguments)}{CALL_END}"
        for number, call in enumerate(calls)
    )
    return BEGIN + "".join(bodies) + END


KIMI = CallFormat("kimi_k2", (BEGIN, CALL), ((BEGIN,), ("<|im_system|>tool_declare",)), read, write)
