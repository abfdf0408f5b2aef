"""Whether an answer calls what it should, and if not, how it fails."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsvc.suites.toolcall.arguments import argument_error, misfits
from evalsvc.suites.toolcall.calls import Call, Parsed
from evalsvc.suites.toolcall.cases import Expect, WantedCall
from evalsvc.suites.toolcall.matchers import object_problems
from evalsvc.suites.toolcall.parsers import holds_call

Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One answer, or one turn's.

    Attributes:
        error: How the strictly read answer is wrong; None when it is right.
        correct_lenient: Whether it is right when read leniently.
        triggered: Whether a call was begun.
        trigger_right: Whether it was where one is right, and was not where none is.
        schema_valid: Whether every call names a tool on offer and its arguments fit the schema; None without a call.
        function_right: Whether the right functions were called; None where no call is right.
        arguments_right: Whether all their arguments are right too; None where no call is right.
        order: For each expected call the place of the call that answers it; None unless all are answered.
    """

    error: str | None
    correct_lenient: bool
    triggered: bool
    trigger_right: bool
    schema_valid: bool | None
    function_right: bool | None
    arguments_right: bool | None
    order: Sequence[int] | None


def judge(strict: Parsed, lenient: Parsed, expect: Expect, schemas: Schemas, finish: str, *, native: bool) -> Judged:
    """Scores one answer.

    Args:
        strict: The answer as its format reads it without repairs.
        lenient: The same with repairs.
        expect: What is right.
        schemas: Of the arguments, by tool.
        finish: Why the answer ended.
        native: Whether the calls are the endpoint's own list, which a finish reason of its own goes with.
    """
    wanted = expect.wanted
    order = None if strict.problems else pairing(strict.calls, wanted)
    return Judged(
        error=error_of(strict, expect, schemas, finish, native=native),
        correct_lenient=error_of(lenient, expect, schemas, finish, native=native) is None,
        triggered=strict.attempted,
        trigger_right=strict.attempted == bool(wanted),
        schema_valid=fits(strict, schemas) if strict.attempted else None,
        function_right=not strict.problems and _names(strict.calls) == _names(wanted) if wanted else None,
        arguments_right=order is not None if wanted else None,
        order=order,
    )


def error_of(
    parsed: Parsed, expect: Expect, schemas: Schemas, finish: str = "stop", *, native: bool = False
) -> str | None:
    """The error class of an answer; None when it is right.

    Returns:
        Where calls are right: `truncated` (cut by the limit inside a call or a thought), `unparsable`, `call_in_text`
        (a call that stands where none is read), `not_triggered`, `hallucinated_tool`, `wrong_count`, `wrong_tool`,
        `missing_required`, `extra_argument`, `wrong_type`, `wrong_value`, `wrong_order`, `wrong_finish_reason`.
        Where none is: `should_ask_back`, `called_when_should_refrain`, `call_in_text`, `unparsable`, `truncated`,
        `empty`, `other_text` (not the agreed words), `wrong_finish_reason`.
    """
    cut = finish == "length"
    if not expect.wanted:
        return _refrained(parsed, expect, schemas, cut) or _finish_problem(parsed, finish, native)
    if parsed.problems:
        return "truncated" if cut else "unparsable"
    if not parsed.calls:
        if holds_call(parsed.text, schemas):
            return "call_in_text"
        return "truncated" if cut and not parsed.text else "not_triggered"
    return calls_error(parsed.calls, expect, schemas) or _finish_problem(parsed, finish, native)


def _refrained(parsed: Parsed, expect: Expect, schemas: Schemas, cut: bool) -> str | None:
    asks = expect.ask_back
    if parsed.attempted:
        return "called_when_should_refrain" if asks is None else "should_ask_back"
    if parsed.problems:
        return "truncated" if cut else "unparsable"
    if holds_call(parsed.text, schemas):
        return "call_in_text"
    if isinstance(expect.no_call, str):
        return None if parsed.text == expect.no_call else "other_text"
    if not parsed.text:
        return "truncated" if cut else "empty"
    if asks is None:
        return None
    said = parsed.text.casefold()
    questioned = "?" in said or "？" in said
    named = asks is True or any(word.casefold() in said for word in asks)
    return None if questioned and named else "should_ask_back"


def _finish_problem(parsed: Parsed, finish: str, native: bool) -> str | None:
    """An endpoint ends with `tool_calls` where its list has calls, and only there."""
    return "wrong_finish_reason" if native and (finish == "tool_calls") != bool(parsed.calls) else None


def calls_error(calls: Sequence[Call], expect: Expect, schemas: Schemas) -> str | None:
    """How well-formed calls are wrong; None when they are the expected ones."""
    wanted = expect.wanted
    if any(call.name not in schemas for call in calls):
        return "hallucinated_tool"
    if len(calls) != len(wanted):
        return "wrong_count"
    if _names(calls) != _names(wanted):
        return "wrong_tool"
    order = pairing(calls, wanted)
    if order is not None and expect.order == "free":
        return None
    in_place = [_right(call, one) for call, one in zip(calls, wanted, strict=True)]
    if all(in_place):
        return None
    if order is not None or any(call.name != one.name for call, one in zip(calls, wanted, strict=True)):
        found = None if order is not None else _first_wrong(calls, wanted, schemas)
        return found or "wrong_order"
    at = in_place.index(False)
    if expect.order == "fixed":
        return argument_error(calls[at], wanted[at], schemas[calls[at].name])
    return _first_wrong(calls, wanted, schemas)


def _first_wrong(calls: Sequence[Call], wanted: Sequence[WantedCall], schemas: Schemas) -> str | None:
    """The error of the first call that answers nothing, beside the first expected call of its name left over."""
    pairs = matching(calls, wanted)
    left = [one for place, one in enumerate(wanted) if place not in pairs]
    used = set(pairs.values())
    for place, call in enumerate(calls):
        one = next((one for one in left if one.name == call.name), None)
        if place not in used and one is not None:
            return argument_error(call, one, schemas[call.name])
    return None


def fits(parsed: Parsed, schemas: Schemas) -> bool:
    """Whether there are calls, all well-formed, of tools on offer, with arguments that their schemas allow."""
    if parsed.problems or not parsed.calls:
        return False
    return all(call.name in schemas and not misfits(call, schemas[call.name]) for call in parsed.calls)


def pairing(calls: Sequence[Call], wanted: Sequence[WantedCall]) -> list[int] | None:
    """For each expected call the place of the call that answers it, each used once; None where there is no such way."""
    if len(calls) != len(wanted):
        return None
    pairs = matching(calls, wanted)
    return [pairs[place] for place in range(len(wanted))] if len(pairs) == len(wanted) else None


def matching(calls: Sequence[Call], wanted: Sequence[WantedCall]) -> dict[int, int]:
    """A largest matching of expected calls to calls, by augmenting paths; the same place is tried first."""
    fit = [[place for place, call in enumerate(calls) if _right(call, one)] for one in wanted]
    taken: dict[int, int] = {}

    def place_(one: int, tried: set[int]) -> bool:
        for place in sorted(fit[one], key=lambda p: p != one):
            if place not in tried:
                tried.add(place)
                if place not in taken or place_(taken[place], tried):
                    taken[place] = one
                    return True
        return False

    for one in range(len(wanted)):
        place_(one, set())
    return {one: place for place, one in taken.items()}


def _right(call: Call, wanted: WantedCall) -> bool:
    return call.name == wanted.name and not object_problems(call.arguments, wanted.arguments)


def _names(calls: Sequence[Call] | Sequence[WantedCall]) -> Counter[str]:
    return Counter(call.name for call in calls)
