"""Pythonic: `[name(key=value), ...]` as Llama 3.2, Llama 4 and LFM2 write it, the last two between tags."""

import re
from collections.abc import Sequence

from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import CallFormat, Schemas, call_of, json_value, skip, split_reasoning
from evalsvc.suites.toolcall.parsers.literal import JSON_WORDS, WORDS, Reader

TAGS = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}
BEGUN = re.compile(r"\[\s*+[^\W\d][\w.\-]*+\s*+\(")


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """A list of calls. Strictly nothing stands around it where it has no tags."""
    reasoning, rest = split_reasoning(text)
    begun = BEGUN.search(rest)
    bare = [("", begun.start())] if begun is not None else []
    tagged = [(tag, place) for tag in TAGS if (place := rest.find(tag)) >= 0]
    if not tagged and not bare:
        return Parsed(text=rest.strip(), reasoning=reasoning)
    tag, start = min(tagged + bare, key=lambda found: found[1])  # a tag further on is data
    end = start + len(tag)
    calls: list[Call] = []
    try:
        if not tag and rest[:start].strip():
            leniency.repair("text before the call")
        if tag and rest.startswith("{", skip(rest, skip(rest, end) + 1)):
            return _objects(rest, start, end, tag, reasoning, leniency)
        reader = Reader(rest, end, WORDS | JSON_WORDS if leniency.on else WORDS)
        reader.need("[")
        while not reader.mark("]"):
            calls.append(_call(reader, schemas, leniency))
            if not reader.mark(","):
                reader.need("]")
                break
        end = _closed(rest, reader.at, TAGS.get(tag), leniency)
    except Malformed as error:
        problem = (str(error),)
        return Parsed(text=rest.strip(), reasoning=reasoning, problems=problem, attempted=True)
    around = (rest[:start] + rest[end:]).strip()
    return Parsed(calls=tuple(calls), text=around, reasoning=reasoning, repairs=tuple(leniency.done), attempted=True)


def _objects(rest: str, start: int, at: int, tag: str, reasoning: str, leniency: Leniency) -> Parsed:
    """A list of JSON objects between the tags, which LFM2's template shows, too."""
    value, end = json_value(rest, at, leniency)
    if not isinstance(value, list):
        raise Malformed("not a list of calls")
    calls = tuple(call_of(entry, "arguments", leniency, frozenset({"id"})) for entry in value)
    end = _closed(rest, end, TAGS[tag], leniency)
    around = (rest[:start] + rest[end:]).strip()
    return Parsed(calls=calls, text=around, reasoning=reasoning, repairs=tuple(leniency.done), attempted=True)


def _closed(text: str, at: int, closes: str | None, leniency: Leniency) -> int:
    at = skip(text, at)
    if closes is None:
        if at < len(text):
            leniency.repair("text after the call")
        return at
    if text.startswith(closes, at):
        return at + len(closes)
    leniency.repair("no end tag")
    return at


def _call(reader: Reader, schemas: Schemas, leniency: Leniency) -> Call:
    kind, name, reader.at = reader.peek()
    if kind != "word":
        raise Malformed("no name" if name else "truncated")
    reader.need("(")
    arguments: dict[str, object] = {}
    names = iter(schemas.get(name, {}).get("properties", {}))
    while not reader.mark(")"):
        kind, key, end = reader.peek()
        after = skip(reader.text, end)
        if kind == "word" and reader.text.startswith("=", after):
            reader.at = after + 1
        else:
            leniency.repair("an argument without a name")
            key = next(names, "")
        if not key or key in arguments:
            raise Malformed("an argument is repeated" if key else "an argument too many")
        arguments[key] = reader.value()
        if not reader.mark(","):
            reader.need(")")
            break
    return Call(name, arguments)


def write(calls: Sequence[Call]) -> str:
    """A list of calls, values as Python writes them."""
    bodies = (f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})" for call in calls)
    return f"[{', '.join(bodies)}]"


PYTHONIC = CallFormat(
    "pythonic", tuple(TAGS), (("<|python_start|>",), ("<|tool_call_start|>",), ("[func_name1(",)), read, write
)
