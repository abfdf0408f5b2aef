"""Llama 3: `{"name": ..., "parameters": {...}}`, calls apart by `;`, with or without `<|python_tag|>` before them."""

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
from evalsvc.suites.toolcall.parsers.plain import is_call

TAG = "<|python_tag|>"
ENDS = re.compile(r"(?:\s*+<\|(?:eom_id|eot_id)\|>)*+\s*+\Z")


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """Objects apart by `;`; a `;` inside a string is data. Strictly nothing stands before or after them."""
    reasoning, rest = split_reasoning(text)
    tagged = rest.find(TAG)
    if 0 <= rest.find("{") < tagged:  # data
        tagged = -1
    at = skip(rest, 0) if tagged < 0 else tagged + len(TAG)
    begun = at if tagged >= 0 or rest.startswith(("{", "```"), at) else rest.find("{")
    if begun < 0 or not (begun == at or is_call(rest, begun)):
        return Parsed(text=rest.strip(), reasoning=reasoning)
    calls: list[Call] = []
    before = rest[: max(tagged, 0) if begun == at else begun].strip()
    end = begun
    problems: tuple[str, ...] = ()
    try:
        if begun > at:
            leniency.repair("text before the call")
        while True:
            value, end = json_value(rest, end, leniency)
            calls.append(call_of(value, "parameters", leniency, frozenset({"type"})))
            following = skip(rest, end)
            if not rest.startswith(";", following):
                break
            end = following + 1
        if ENDS.match(rest, end) is None:
            leniency.repair("text after the call")
    except Malformed as error:
        problems = (str(error),)
    left = before + ("" if ENDS.match(rest, end) else rest[end:].strip())
    if problems and not calls:
        left = rest.strip()
    return Parsed(
        calls=tuple(calls),
        text=left,
        reasoning=reasoning,
        problems=problems,
        repairs=tuple(leniency.done),
        attempted=True,
    )


def write(calls: Sequence[Call]) -> str:
    """Objects apart by `; `."""
    return "; ".join(compact({"name": call.name, "parameters": call.arguments}) for call in calls)


LLAMA = CallFormat("llama_json", (TAG,), (("<|eom_id|>",), (TAG,), ('"parameters": dictionary of',)), read, write)
