"""The endpoint's own list `tool_calls`, and the list that the pieces of a stream make."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalsvc.suites.strict_json import NotJson, parse
from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import json_value

NATIVE = "native"


def read(listed: Sequence[Mapping[str, Any]] | None, text: str, *, lenient: bool = False) -> Parsed:
    """What the endpoint says was called.

    Args:
        listed: Its list, or None.
        text: Its content.
        lenient: Whether arguments that are no JSON text of an object may be read with repairs.
    """
    leniency = Leniency(lenient)
    calls: list[Call] = []
    problems: tuple[str, ...] = ()
    for entry in listed or ():
        try:
            calls.append(_call(entry, leniency))
        except Malformed as error:
            problems = (str(error),)
            break
    return Parsed(
        calls=tuple(calls),
        text=(text or "").strip(),
        problems=problems,
        repairs=tuple(leniency.done),
        attempted=bool(listed),
    )


def _call(entry: Any, leniency: Leniency) -> Call:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Malformed("no function name")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        leniency.repair("arguments are not a text")
    elif not isinstance(arguments, str) or not arguments.strip():
        leniency.repair("no arguments")
        arguments = {}
    else:
        text = arguments
        arguments, end = json_value(text, 0, leniency)
        if text[end:].strip():
            leniency.repair("text after the arguments")
    if not isinstance(arguments, Mapping):
        raise Malformed("arguments are not an object")
    return Call(function["name"], dict(arguments), entry.get("id") if isinstance(entry.get("id"), str) else None)


def join(pieces: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The list that a stream's pieces make up.

    A piece goes to the call of its index, or without one to the last call. Servers that send every call with index 0
    are understood: another id, or a name after complete arguments, opens another call.
    """
    made: list[dict[str, Any]] = []
    last: dict[Any, int] = {}
    for piece in pieces:
        index, function = piece.get("index"), piece.get("function") or {}
        at = last.get(index, len(made) - 1 if index is None and made else None)
        if at is None or _opens(piece, function, made[at]):
            at = len(made)
            made.append({"id": None, "type": "function", "function": {"name": "", "arguments": []}})
        last[index] = at
        call = made[at]
        call["id"] = call["id"] or piece.get("id") or None
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"].append(function.get("arguments") or "")
    for call in made:
        call["function"]["arguments"] = "".join(call["function"]["arguments"])
    return made


def _opens(piece: Mapping[str, Any], function: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    if piece.get("id") and call["id"]:
        return piece["id"] != call["id"]
    return bool(function.get("name")) and _complete("".join(call["function"]["arguments"]))


def _complete(arguments: str) -> bool:
    try:
        return isinstance(parse(arguments), dict)
    except NotJson:
        return False
