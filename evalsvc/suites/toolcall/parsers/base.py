"""What the parsers share: the form of a format, reading a value, and the walk from one opening mark to the next.

Every walk stops at the first call that cannot be read: what follows is left as text. So a text is read once, and the
time it takes grows with its length and no faster.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evalsvc.suites.strict_json import NotJson, value_at
from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers import literal

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]  # of the parameters, by function
ReadCalls: TypeAlias = Callable[[str, int], tuple[Sequence[Call], int]]

SPACE = re.compile(r"\s*")
FENCE = re.compile(r"```[a-zA-Z]*\s*")
THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))  # what stands around one; the second is Mistral's


@dataclass(frozen=True)
class CallFormat:
    """One way in which models write calls.

    Attributes:
        name: What suites call it.
        marks: Strings that begin a call in an answer and stand nowhere else; empty where calls have no mark.
        templates: What a chat template of this format holds: all strings of one of these groups.
        read: Text, parameter schemas and leniency to what the answer holds.
        write: Calls as this format writes them.
    """

    name: str
    marks: tuple[str, ...]
    templates: tuple[tuple[str, ...], ...]
    read: Callable[[str, Schemas, Leniency], Parsed]
    write: Callable[[Sequence[Call]], str]

    def parse(self, text: str, schemas: Schemas | None = None, *, lenient: bool = False) -> Parsed:
        """Takes an answer apart. Raises nothing, whatever the text is.

        An answer that is calls and nothing else holds no thought, whatever stands in their arguments.

        Args:
            text: The answer, special tokens kept where the format has any.
            schemas: Of the parameters; formats that write values without types take the type from them.
            lenient: Whether to forgive what `repairs` then lists. A call that was cut off is never completed.
        """
        schemas = schemas or {}
        for opens, closes in THOUGHTS:
            if closes in text and not text.startswith(opens, skip(text, 0)):
                whole = self.read(f"{opens}{closes}{text}", schemas, Leniency())  # a thought, and an empty one
                if whole.calls and not (whole.problems or whole.text or whole.reasoning):
                    return whole
        return self.read(text, schemas, Leniency(lenient))


def skip(text: str, at: int) -> int:
    """Where the white space from `at` on ends."""
    found = SPACE.match(text, at)
    return at if found is None else found.end()


def expect(text: str, at: int, mark: str) -> int:
    """Where `mark`, which stands at `at`, ends.

    Raises:
        Malformed: Something else stands there.
    """
    if not text.startswith(mark, at):
        raise Malformed("truncated" if at >= len(text) else f"no {mark}")
    return at + len(mark)


def json_value(text: str, at: int, leniency: Leniency) -> tuple[Any, int]:
    """The JSON value at `at`, white space before it aside, and where it ends.

    Leniently also inside a code fence, and as a Python literal (single quotes, `True`, `None`).

    Raises:
        Malformed: There is none, or it was cut off.
    """
    at = skip(text, at)
    fence = FENCE.match(text, at)
    if fence is not None:
        leniency.repair("code fence")
        value, end = json_value(text, fence.end(), leniency) if not FENCE.match(text, fence.end()) else (None, -1)
        return value, expect(text, skip(text, max(end, fence.end())), "```")
    try:
        return value_at(text, at)
    except NotJson as error:
        if leniency.on:
            try:
                value, end = literal.value_at(text, at)
            except Malformed:
                pass
            else:
                leniency.repair("Python literal")
                return value, end
        raise Malformed(f"not JSON: {error}") from error


def call_of(value: Any, key: str, leniency: Leniency, extra: frozenset[str] = frozenset()) -> Call:
    """A call from its JSON object.

    Args:
        value: `{"name": ..., KEY: {...}}`.
        key: Name of the arguments' key.
        leniency: Also allows `arguments`, `parameters` or none in place of `key`, and arguments as a JSON text.
        extra: Keys that may stand beside them.

    Raises:
        Malformed: Any other form.
    """
    if not isinstance(value, dict):
        raise Malformed("not an object")
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise Malformed("no name")
    if key not in value:
        other = next((k for k in ("arguments", "parameters") if k in value), None)
        leniency.repair(f"no key {key!r}")
        key = key if other is None else other
    if unknown := value.keys() - {"name", key} - extra:
        leniency.repair(f"unknown key {min(unknown)!r}")
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        leniency.repair("arguments as text")
        arguments, _ = json_value(arguments, 0, leniency)
    if not isinstance(arguments, dict):
        raise Malformed("arguments are not an object")
    written = value.get("id")
    return Call(value["name"], arguments, written if isinstance(written, str) else None)


def walk(text: str, marks: Sequence[str], read: ReadCalls, leniency: Leniency, reasoning: str = "") -> Parsed:
    """Reads calls from one opening mark to the next.

    Args:
        text: The answer without its reasoning.
        marks: What opens a call, or a section of calls.
        read: From the text and the place of a mark to the calls there and where they end.
        leniency: Whose repairs are taken over.
        reasoning: Passed on.
    """
    opening = re.compile("|".join(map(re.escape, marks)))
    calls: list[Call] = []
    left: list[str] = []
    at, problem, attempted = 0, (), False
    while (found := opening.search(text, at)) is not None:
        attempted = True
        left.append(text[at : found.start()])
        at = found.start()
        try:
            new, at = read(text, at)
        except Malformed as error:
            problem = (str(error),)
            break
        calls += new
    left.append(text[at:])
    return Parsed(
        calls=tuple(calls),
        text="".join(left).strip(),
        reasoning=reasoning,
        problems=problem,
        repairs=tuple(leniency.done),
        attempted=attempted,
    )


def split_reasoning(
    text: str, marks: Sequence[str] = (), opens: str = "<think>", closes: str = "</think>"
) -> tuple[str, str]:
    """Reasoning and the rest of an answer.

    A template may have opened the reasoning already, so a lone closing tag ends it too, unless the tag is data: inside
    the JSON value that the first call holds. Reasoning that never ends is all there is.

    Returns:
        The two texts; the first is empty where there is no reasoning.
    """
    begin = skip(text, 0)
    if text.startswith(opens, begin):
        thought, found, rest = text[begin + len(opens) :].partition(closes)
        return thought, rest if found else ""
    at = text.find(closes)
    if at < 0 or _is_data(text, at, marks):
        return "", text
    return text[:at], text[at + len(closes) :]


def _is_data(text: str, at: int, marks: Sequence[str]) -> bool:
    starts = [found for mark in marks if (found := text.find(mark, 0, at)) >= 0]
    brace = text.find("{", min(starts), at) if starts else -1
    if brace < 0:
        return False
    try:
        return value_at(text, brace)[1] > at
    except NotJson:
        return False


def compact(value: Any) -> str:
    """A value's JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)
