"""Formats whose values stand in tags without types: GLM 4.5 and later, and Qwen3-Coder.

A value is what its parameter's schema says: the text itself where that allows a string, else the JSON value written.
Where it fits no declared type the text is kept, so that a wrong argument is a wrong argument and not a missing call.
An end tag inside a value is data unless the next tag follows it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evalsvc.suites.strict_json import NotJson, parse
from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import (
    CallFormat,
    Schemas,
    compact,
    expect,
    skip,
    split_reasoning,
    walk,
)

OPENS, CLOSES = "<tool_call>", "</tool_call>"
GLM_NAME = re.compile(r"\s*+([^\s<]++)\s*+(?=<arg_key>|</tool_call>)")
GLM_KEY = re.compile(r"<arg_key>([^<]++)</arg_key>\s*+<arg_value>")
GLM_END = re.compile(r"</arg_value>\s*+(?=<arg_key>|</tool_call>)")
QWEN_NAME = re.compile(r"\s*+<function=([^\s>]++)>\s*+")
QWEN_KEY = re.compile(r"<parameter=([^\s>]++)>\n?")
QWEN_END = re.compile(r"\n?</parameter>\s*+(?=<parameter=|</function>)")
KINDS: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    type(None): {"null"},
    list: {"array"},
    dict: {"object"},
    str: {"string"},
}


def typed(text: str, schema: Any) -> Any:
    """A value from its text.

    Args:
        text: What stands between the tags.
        schema: Of the parameter; anything that names no type leaves JSON where the text is JSON.
    """
    allowed = _types(schema)
    try:
        value = parse(text)
    except NotJson:
        return text
    kinds = KINDS[type(value)] | ({"integer"} if isinstance(value, float) and value.is_integer() else set())
    if "string" in allowed and not kinds & allowed - {"string"}:
        return text
    return value


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    said = schema.get("type")
    types = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    choices = schema.get("enum", [])
    if not types and isinstance(choices, list):
        types |= {kind for choice in choices for kind in KINDS[type(choice)]}
    for key in ("anyOf", "oneOf"):
        for inner in schema.get(key, []):
            types |= _types(inner)
    return types


def _arguments(
    text: str, at: int, tags: tuple[re.Pattern[str], re.Pattern[str]], properties: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    key_tag, end_tag = tags
    made: dict[str, Any] = {}
    while (named := key_tag.match(text, at)) is not None:
        key = named[1].strip()
        ended = end_tag.search(text, named.end())
        if ended is None:
            raise Malformed("truncated")
        if key in made:
            raise Malformed("an argument is repeated")
        made[key] = typed(text[named.end() : ended.start()], properties.get(key))
        at = ended.end()
    return made, at


def _properties(schemas: Schemas, name: str) -> Mapping[str, Any]:
    found = schemas.get(name, {}).get("properties", {})
    return found if isinstance(found, Mapping) else {}


def _closed(text: str, at: int, leniency: Leniency) -> int:
    at = skip(text, at)
    if text.startswith(CLOSES, at):
        return at + len(CLOSES)
    leniency.repair("no end tag")
    return at


def read_glm(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """`<tool_call>NAME`, then pairs of `<arg_key>` and `<arg_value>`."""

    def one(text: str, at: int) -> tuple[list[Call], int]:
        named = GLM_NAME.match(text, at + len(OPENS))
        if named is None:
            raise Malformed("no name")
        arguments, at = _arguments(text, named.end(), (GLM_KEY, GLM_END), _properties(schemas, named[1]))
        return [Call(named[1], arguments)], expect(text, skip(text, at), CLOSES)  # no other tag ends the arguments

    reasoning, rest = split_reasoning(text)
    return walk(rest, (OPENS,), one, leniency, reasoning)


def read_qwen(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """`<function=NAME>`, then `<parameter=KEY>`, a line end around each value."""

    def one(text: str, at: int) -> tuple[list[Call], int]:
        if text.startswith("<function=", at):
            leniency.repair("no begin tag")
        else:
            at += len(OPENS)
        named = QWEN_NAME.match(text, at)
        if named is None:
            raise Malformed("no name")
        arguments, at = _arguments(text, named.end(), (QWEN_KEY, QWEN_END), _properties(schemas, named[1]))
        at = expect(text, skip(text, at), "</function>")
        return [Call(named[1], arguments)], _closed(text, at, leniency)

    reasoning, rest = split_reasoning(text)
    return walk(rest, (OPENS, "<function="), one, leniency, reasoning)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


def write_glm(calls: Sequence[Call]) -> str:
    """Strings as they are, all else as JSON."""
    return "\n".join(
        f"{OPENS}{c.name}\n"
        + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{_text(v)}</arg_value>\n" for k, v in c.arguments.items())
        + CLOSES
        for c in calls
    )


def write_qwen(calls: Sequence[Call]) -> str:
    """Strings as they are, all else as JSON, on lines of their own."""
    return "\n".join(
        f"{OPENS}\n<function={c.name}>\n"
        + "".join(f"<parameter={k}>\n{_text(v)}\n</parameter>\n" for k, v in c.arguments.items())
        + f"</function>\n{CLOSES}"
        for c in calls
    )


GLM = CallFormat("glm", ("<arg_key>",), (("<arg_key>",),), read_glm, write_glm)
QWEN_CODER = CallFormat("qwen3_coder", ("<function=",), (("<function=", "<parameter="),), read_qwen, write_qwen)
