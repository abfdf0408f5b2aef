"""Each way of being wrong has its name, in every format; right answers have none."""

import pytest

from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect
from evalsvc.suites.toolcall.figures import schema_accuracy, triggering
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.parsers.native import read
from evalsvc.suites.toolcall.scoring import error_of, judge

from .conftest import BOOK, SCHEMAS, TIME, TIMER

TABLE = {
    "name": "book.table",
    "arguments": {
        "people": 4,
        "where": {"same_text": "ROME "},
        "budget": {"number": 100, "rel": 0.01, "optional": True},
        "note": {"regex": "at \\d+", "optional": True},
    },
}
CALLS = {"calls": [TABLE, {"name": "set_timer", "arguments": {"minutes": {"one_of": [5, 6]}}}]}
FIXED = CALLS | {"order": "fixed"}


def table(**changes):
    arguments = {"people": 4, "where": "Rome", **changes}
    return Call("book.table", {key: value for key, value in arguments.items() if value is not ...})


WRONG = [
    (CALLS, [table(), TIMER], None),
    (CALLS, [TIMER, table()], None),
    (CALLS, [table(where="r o m e", budget=99.5, note="at 8"), Call("set_timer", {"minutes": 6})], None),
    (FIXED, [table(), TIMER], None),
    (FIXED, [TIMER, table()], "wrong_order"),
    (FIXED, [TIMER, table(people=5)], "wrong_value"),
    (CALLS, [table()], "wrong_count"),
    (CALLS, [table(), TIMER, TIMER], "wrong_count"),
    (CALLS, [table(), Call("book_table", {})], "hallucinated_tool"),
    (CALLS, [table(), TIME], "wrong_tool"),
    (CALLS, [table(where=...), TIMER], "missing_required"),
    (CALLS, [table(wishes=[]), TIMER], "extra_argument"),
    (CALLS, [table(made_up=1), TIMER], "extra_argument"),
    (CALLS, [table(people="four"), TIMER], "wrong_type"),
    (CALLS, [table(people=True), TIMER], "wrong_type"),
    (CALLS, [table(people=5), TIMER], "wrong_value"),
    (CALLS, [table(budget=102), TIMER], "wrong_value"),
    (CALLS, [table(note="at noon"), TIMER], "wrong_value"),
    (CALLS, [table(), Call("set_timer", {"minutes": 7})], "wrong_value"),
]


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in FORMATS.items()])
@pytest.mark.parametrize(("expect", "calls", "error"), WRONG)
def test_each_wrong_call_is_named(judged, form, expect, calls, error):
    found = judged(form.write(calls), expect, form.name)
    assert found.error == error
    assert found.correct_lenient == (error is None)
    assert found.triggered and found.trigger_right
    names = sorted(call.name for call in calls)
    assert found.function_right == (names == ["book.table", "set_timer"])
    assert found.arguments_right == (error in (None, "wrong_order"))


ONE = {"call": {"name": "set_timer", "arguments": {"minutes": 5}}}
TAGGED = FORMATS["hermes"].write([TIMER])


@pytest.mark.parametrize(
    ("expect", "text", "finish", "error"),
    [
        (ONE, TAGGED, "stop", None),
        (ONE, TAGGED, "length", None),
        (ONE, "I will set it.", "stop", "not_triggered"),
        (ONE, "", "stop", "not_triggered"),
        (ONE, "<think>hm", "length", "truncated"),
        (ONE, TAGGED[:-20], "length", "truncated"),
        (ONE, TAGGED[:-20], "stop", "unparsable"),
        (ONE, "<tool_call>set_timer(5)</tool_call>", "stop", "unparsable"),
        (ONE, FORMATS["json"].write([TIMER]), "stop", "call_in_text"),
        (ONE, FORMATS["mistral"].write([TIMER]), "stop", "call_in_text"),
        (ONE, FORMATS["pythonic"].write([TIMER]), "stop", "call_in_text"),
        ({"no_call": True}, "None fits.", "stop", None),
        ({"no_call": True}, "", "stop", "empty"),
        ({"no_call": True}, "", "length", "truncated"),
        ({"no_call": True}, TAGGED, "stop", "called_when_should_refrain"),
        ({"no_call": True}, TAGGED[:-20], "stop", "called_when_should_refrain"),
        ({"no_call": True}, FORMATS["kimi_k2"].write([TIMER]), "stop", "call_in_text"),
        ({"no_call": True}, "See [chapter one](a) or [fn(x)].", "stop", None),
        ({"no_call": "no tool"}, "no tool", "stop", None),
        ({"no_call": "no tool"}, "No tool", "stop", "other_text"),
        ({"ask_back": True}, "For how long?", "stop", None),
        ({"ask_back": ["minutes", "long"]}, "For how LONG?", "stop", None),
        ({"ask_back": ["minutes"]}, "For how long?", "stop", "should_ask_back"),
        ({"ask_back": True}, "Done.", "stop", "should_ask_back"),
        ({"ask_back": True}, TAGGED, "stop", "should_ask_back"),
        ({"ask_back": True}, "", "stop", "empty"),
    ],
)
def test_triggering_is_right_or_named(judged, expect, text, finish, error):
    assert judged(text, expect, finish=finish).error == error


LISTED = [{"id": "a", "type": "function", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}]


@pytest.mark.parametrize(
    ("expect", "listed", "text", "finish", "error"),
    [
        (ONE, LISTED, "", "tool_calls", None),
        (ONE, LISTED, "", "stop", "wrong_finish_reason"),
        (ONE, LISTED, "", "length", "wrong_finish_reason"),
        (ONE, [], "", "tool_calls", "not_triggered"),
        (ONE, [], TAGGED, "stop", "call_in_text"),
        (ONE, [], TAGGED, "tool_calls", "call_in_text"),
        ({"no_call": True}, [], "No.", "stop", None),
        ({"no_call": True}, [], "No.", "tool_calls", "wrong_finish_reason"),
        ({"no_call": True}, LISTED, "No.", "tool_calls", "called_when_should_refrain"),
    ],
)
def test_an_endpoints_list_goes_with_its_finish_reason(expect, listed, text, finish, error):
    assert error_of(read(listed, text), Expect.model_validate(expect), SCHEMAS, finish, native=True) == error


@pytest.mark.parametrize(
    ("calls", "valid"),
    [
        ([BOOK], True),
        ([table(people=4.0)], True),
        ([table(people="4")], False),
        ([table(where=...)], False),
        ([TIMER, Call("fly", {})], False),
        ([Call("get_time", {"zone": 1})], False),
    ],
)
def test_schemas_are_held_whatever_is_right(judged, calls, valid):
    assert judged(FORMATS["hermes"].write(calls), {"no_call": True}).schema_valid is valid


def test_without_a_call_there_is_nothing_to_validate(judged):
    assert judged("No.", ONE).schema_valid is None
    assert judged("<tool_call>", ONE).schema_valid is False


def test_equal_calls_are_paired_by_what_they_say(judged):
    """The first answer fits both expectations, the second the first alone: only one pairing is whole."""
    wide = {"name": "set_timer", "arguments": {"minutes": {"any": True}}}
    expect = {"calls": [wide, {"name": "set_timer", "arguments": {"minutes": 5}}]}
    answer = [TIMER, Call("set_timer", {"minutes": 9})]
    found = judged(FORMATS["hermes"].write(answer), expect)
    assert (found.error, list(found.order)) == (None, [1, 0])


def test_published_schema_accuracies():
    for valid, triggered, points in ((1856, 2128, 87.22), (1790, 1874, 95.52), (1602, 1893, 84.63)):
        share = schema_accuracy(valid, triggered)
        assert share is not None and round(100 * share, 2) == points
    assert schema_accuracy(0, 0) is None
    with pytest.raises(ValueError, match="3 valid of 2"):
        schema_accuracy(3, 2)


def test_f1_of_triggering():
    pairs = [(True, True)] * 6 + [(True, False)] * 2 + [(False, True)] * 1 + [(False, False)] * 5
    found = triggering(pairs)
    assert (found.both, found.ours, found.reference, found.neither) == (6, 2, 1, 5)
    assert found.precision == 6 / 8 and found.recall == 6 / 7
    assert found.f1 is not None
    assert found.f1 == pytest.approx(2 * found.precision * found.recall / (found.precision + found.recall))
    assert triggering([(False, False)]).f1 is None


def test_strict_and_lenient_are_kept_apart():
    text = "<tool_call>{'name': 'set_timer', 'arguments': {'minutes': 5}}</tool_call>"
    form = FORMATS["hermes"]
    strict, lenient = form.parse(text, SCHEMAS), form.parse(text, SCHEMAS, lenient=True)
    found = judge(strict, lenient, Expect.model_validate(ONE), SCHEMAS, "stop", native=False)
    assert (found.error, found.correct_lenient, found.schema_valid) == ("unparsable", True, False)
