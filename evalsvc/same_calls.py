"""Whether two answers call the same tools with the same arguments, whatever stands around the calls."""

from collections.abc import Iterator, Sequence
from typing import Any

from evalsvc.listed import read_text
from evalsvc.store.records import StoredAnswer
from evalsvc.suites.strict_json import same
from evalsvc.suites.toolcall.calls import Call, Parsed
from evalsvc.suites.toolcall.parsers import FORMATS, native
from evalsvc.suites.toolcall.parsers.base import CallFormat

Called = Sequence[tuple[str, dict[str, Any]]]


def calls_of(answer: StoredAnswer) -> Called | None:
    """The well-formed calls of an answer, in order, without their ids; None where it has none.

    Calls are read from an endpoint's own list, in the format that the answer was scored in, or in the one whose marks
    stand in it.
    """
    text, listed = read_text(answer.answer)
    if listed:
        return _whole(native.read(listed, text))
    found = (_whole(form.parse(text)) for form in _forms(answer.filter, text))
    return next((calls for calls in found if calls is not None), None)


def same_calls(ours: StoredAnswer, theirs: StoredAnswer) -> bool | None:
    """Whether the calls are the same, and in the same order; None where the first answer has none."""
    wanted, said = calls_of(ours), calls_of(theirs)
    if wanted is None:
        return None
    return said is not None and same([list(call) for call in said], [list(call) for call in wanted])


def _forms(filter_: str, text: str) -> Iterator[CallFormat]:
    if filter_ in FORMATS:
        yield FORMATS[filter_]
        return
    yield from (form for form in FORMATS.values() if any(mark in text for mark in form.marks))
    yield FORMATS["json"]


def _whole(parsed: Parsed) -> Called | None:
    def told(call: Call) -> tuple[str, dict[str, Any]]:
        return call.name, call.arguments

    return None if parsed.problems or not parsed.calls else [told(call) for call in parsed.calls]
