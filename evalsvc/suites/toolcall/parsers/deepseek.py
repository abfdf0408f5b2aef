"""DeepSeek: V3 names type and function and fences the arguments, V3.1 writes `name<｜tool▁sep｜>{...}`."""

import re
from collections.abc import Callable, Sequence

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

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
NAME = re.compile(r"[^\s<{]+")


def _reader(one: Callable[[str, int, Leniency], tuple[Call, int]]) -> Callable[[str, Schemas, Leniency], Parsed]:
    def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
        def section(text: str, at: int) -> tuple[list[Call], int]:
            at = skip(text, at + len(BEGIN))
            calls: list[Call] = []
            while text.startswith(CALL, at):
                call, at = one(text, at + len(CALL), leniency)
                calls.append(call)
                at = skip(text, expect(text, skip(text, at), CALL_END))
            if not calls:
                raise Malformed("a section without calls" if at < len(text) else "truncated")
            if text.startswith(END, at):
                return calls, at + len(END)
            leniency.repair("no end of the section")
            return calls, at

        reasoning, rest = split_reasoning(text, (BEGIN,))
        return walk(rest, (BEGIN,), section, leniency, reasoning)

    return read


def _name(text: str, at: int) -> tuple[str, int]:
    found = NAME.match(text, at)
    if found is None:
        raise Malformed("no name" if at < len(text) else "truncated")
    return found[0], found.end()


def _v3(text: str, at: int, leniency: Leniency) -> tuple[Call, int]:
    at = expect(text, expect(text, at, "function"), SEP)
    name, at = _name(text, at)
    at = skip(text, at)
    fenced = text.startswith("```json", at)
    if not fenced:
        leniency.repair("no code fence")
    arguments, at = json_value(text, at + len("```json") if fenced else at, leniency)
    at = expect(text, skip(text, at), "```") if fenced else at
    return _call(name, arguments), at


def _v31(text: str, at: int, leniency: Leniency) -> tuple[Call, int]:
    name, at = _name(text, at)
    arguments, at = json_value(text, expect(text, at, SEP), leniency)
    return _call(name, arguments), at


def _call(name: str, arguments: object) -> Call:
    if not isinstance(arguments, dict):
        raise Malformed("arguments are not an object")
    return Call(name, arguments)


def write_v3(calls: Sequence[Call]) -> str:
    """Calls on lines of their own, arguments fenced."""
    bodies = (f"{CALL}function{SEP}{c.name}\n```json\n{compact(c.arguments)}\n```{CALL_END}" for c in calls)
    return BEGIN + "\n".join(bodies) + END


def write_v31(calls: Sequence[Call]) -> str:
    """Calls one after another."""
    return BEGIN + "".join(f"{CALL}{c.name}{SEP}{compact(c.arguments)}{CALL_END}" for c in calls) + END


V3 = CallFormat("deepseek_v3", (BEGIN,), ((BEGIN, "```json"),), _reader(_v3), write_v3)
V31 = CallFormat("deepseek_v31", (BEGIN,), ((BEGIN,),), _reader(_v31), write_v31)
