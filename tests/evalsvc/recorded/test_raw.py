"""Raw answers: scored by the cases that they answer, as a run would have scored them; what is none is an error."""

import json

import pytest

from evalsvc.errors import ConfigError
from evalsvc.recorded.load import Sources, load
from evalsvc.recorded.raw import read_answers
from evalsvc.suites.load import case_suite

TOOLS = [{"name": "set_timer", "arguments": {"minutes": "integer"}}]
RIGHT = [{"id": "c1", "type": "function", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}]
OTHER = [{"id": "c1", "type": "function", "function": {"name": "set_timer", "arguments": '{"minutes": 6}'}}]


def case(name, **more):
    said = {"id": name, "messages": [{"role": "user", "content": "Five minutes."}], "tools": TOOLS}
    return said | {"expect": {"calls": [{"name": "set_timer", "arguments": {"minutes": 5}}]}} | more


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def cases(write):
    more = {"expect": {"no_call": True}}, {"turns": [{"results": ["ok"], "expect": {"no_call": True}}]}
    return write("cases.jsonl", lines([case("a"), case("b"), case("c"), case("d", **more[0]), case("e", **more[1])]))


@pytest.fixture
def answered(write, cases):
    """`answered(rows, form)`: the samples by item, of one file of answers."""

    def call(rows, form="native"):
        path = write("answers.jsonl", rows if isinstance(rows, str) else lines(rows))
        return {s.item_id: s for s in read_answers([path], case_suite("calls", cases, form=form))}

    return call


def told(sample):
    own = [s for s in sample.scores if s.metric == sample.metric]
    return (sample.status, *((s.value, s.error_class) for s in own))


def test_an_endpoints_own_list_is_scored_with_its_finish_reason(answered):
    found = answered(
        [
            {"item": "a", "answer": None, "tool_calls": RIGHT, "finish_reason": "tool_calls"},
            {"item": "b", "answer": None, "tool_calls": OTHER, "finish_reason": "tool_calls"},
            {"item": "c", "tool_calls": RIGHT, "finish_reason": "stop"},
            {"item": "d", "answer": "Done.", "tool_calls": [], "finish_reason": "stop"},
            {"item": "e", "answer": "No.", "finish_reason": "stop"},
        ]
    )
    assert {name: told(sample) for name, sample in found.items()} == {
        "a": ("scored", (1.0, None)),
        "b": ("scored", (0.0, "wrong_value")),
        "c": ("scored", (0.0, "wrong_finish_reason")),
        "d": ("scored", (1.0, None)),
        "e": ("scored", (0.0, "not_triggered")),
    }
    assert found["a"].filter == "native" and found["a"].suite == "calls" and found["a"].finish_reason == "tool_calls"
    assert json.loads(found["a"].answer) == {"content": "", "tool_calls": RIGHT}
    assert {s.metric for s in found["a"].scores} >= {"triggered", "schema_valid", "failure.any"}
    assert "failure.empty" not in {s.metric for s in found["a"].scores}


def test_what_is_no_answer_is_an_error_and_no_case_is_left_out(answered):
    found = answered(
        [
            {"item": "a", "error": "HTTP 429"},
            {"item": "b", "answer": "", "finish_reason": "content_filter"},
            {"item": "e", "tool_calls": RIGHT, "finish_reason": "tool_calls"},
        ]
    )
    assert set(found) == set("abcde") and {s.status for s in found.values()} == {"error"}
    said = {name: sample.error_message for name, sample in found.items()}
    assert said["a"] == "HTTP 429" and "finish reason 'content_filter'" in said["b"]
    assert said["c"] == said["d"] == "no row answers it" and "conversation goes on" in said["e"]
    assert [s.scores for s in found.values()] == [()] * 5


def test_calls_in_a_text_are_read_in_the_format_that_is_named(answered):
    text = '<tool_call>\n{"name": "set_timer", "arguments": {"minutes": 5}}\n</tool_call>'
    rows = [{"item": name, "answer": text, "finish_reason": "stop"} for name in "ad"]
    found = answered(rows, form="hermes")
    assert told(found["a"]) == ("scored", (1.0, None)) and found["a"].answer == text
    assert told(found["d"]) == ("scored", (0.0, "called_when_should_refrain"))


def test_a_csv_holds_lists_as_json_and_repeats(write, cases):
    cell = json.dumps(RIGHT).replace('"', '""')
    path = write("a.csv", f'item,repeat,answer,tool_calls,finish_reason\na,0,,"{cell}",tool_calls\na,1,Well.,,stop\n')
    found = [s for s in read_answers([path], case_suite("calls", cases, form="native")) if s.item_id == "a"]
    assert [(s.repeat, told(s)) for s in found] == [
        (0, ("scored", (1.0, None))),
        (1, ("scored", (0.0, "not_triggered"))),
    ]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"item": "z", "answer": "x", "finish_reason": "stop"}], "no case is called 'z'"),
        ([{"item": "a", "answer": "x", "finish_reason": "stop"}] * 2, ":2: item 'a' of suite 'calls' stands already"),
        ([{"item": "a", "answer": "x"}], "need a column 'finish_reason'; the file has item, answer; it says how an"),
        ([{"item": "a", "finish": "stop"}], "column 'finish_reason'; the file has item, finish; is it 'finish'"),
        ([{"id": "a", "finish_reason": "stop"}], "need a column 'item'; the file has id, finish_reason$"),
        ([{"item": "a", "finish_reason": "stop"}], ":1: has neither `answer` nor `tool_calls`"),
        ([{"item": "a", "tool_calls": {"a": 1}, "finish_reason": "stop"}], ":1: tool_calls is no list of objects"),
        ([{"item": "a", "tool_calls": "[", "finish_reason": "stop"}], ":1: tool_calls is no JSON"),
        ([{"item": "a", "correct": 1, "finish_reason": "stop"}], "unknown column 'correct'.*the cases say what is"),
        ([{"item": "a", "anwser": "x", "finish_reason": "stop"}], "unknown column 'anwser'"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_its_place(answered, rows, says):
    with pytest.raises(ConfigError, match=says):
        answered(rows)


@pytest.mark.parametrize("entry", [{}, {"function": None}, {"function": {"name": 3}}, {"function": {"name": "x"}}])
def test_a_hostile_list_has_a_score(answered, entry):
    found = answered([{"item": "a", "tool_calls": [entry], "finish_reason": "tool_calls"}])
    assert told(found["a"])[:2] == ("scored", (0.0, "unparsable"))


def sources(cases, **more):
    given = {"name": "calls", "baseline": "a", "arms": {}, "plans": {}, "cases": cases}
    return Sources(**given | more)


def test_all_arms_are_read_in_one_format_and_what_is_missing_is_said(write, cases):
    listed = write("a.jsonl", lines([{"item": n, "tool_calls": RIGHT, "finish_reason": "tool_calls"} for n in "abc"]))
    texts = write("b.jsonl", lines([{"item": n, "answer": "No.", "finish_reason": "stop"} for n in "abcd"]))
    found = load(sources(cases, arms={"a": [listed], "b": [texts]}))
    assert {s.filter for arm in found.arms for s in arm.samples} == {"native"}
    assert found.notes[0] == "a: 2 of 5 cases have no score, first d: no row answers it"
    assert not any("INVALID" in note for note in found.notes), "both arms were asked the same"
    for wrong, says in (
        ({"table": listed}, "--cases scores answers"),
        ({"arms": {"a": [listed]}, "scored_by": "generation"}, "--scored-by belongs to tables"),
        ({"arms": {"a": [listed]}, "metric": "acc"}, "--metric belongs to lm-eval"),
        ({"arms": {"a": [listed]}, "cases": None, "format": "native"}, "--format and --allow-code belong to raw"),
        ({"arms": {"a": [listed]}, "cases": None}, "raw answers are scored by the cases that they answer: --cases"),
    ):
        with pytest.raises(ConfigError, match=says):
            load(sources(**{"cases": cases} | wrong))


def test_formats_and_own_prompts_are_scored_too(write):
    shapes = write("shapes.jsonl", lines([{"id": "a", "prompt": "p", "check": {"regex": "yes"}}]))
    own = write("own.jsonl", lines([{"id": "a", "prompt": "p"}]))
    answers = write("a.jsonl", lines([{"item": "a", "answer": "yes", "finish_reason": "stop"}]))
    (one,) = read_answers([answers], case_suite("s", shapes))
    assert told(one) == ("scored", (1.0, None)) and one.prompt == "p"
    (free,) = read_answers([answers], case_suite("s", own))
    assert (free.status, free.metric, [s.metric for s in free.scores]) == ("scored", "", ["failure.any"])
    with pytest.raises(ConfigError, match="its cases have none"):
        case_suite("s", shapes, form="hermes")
    checked = write("c.jsonl", lines([{"id": "a", "prompt": "p", "check": {"command": ["true"]}}]))
    with pytest.raises(ConfigError, match="--allow-code"):
        case_suite("s", checked)
