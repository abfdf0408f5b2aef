"""Tool calls are scored strictly, and every hostile answer has a score."""

import json

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.toolcall import ToolCallSuite
from evalsvc.suites.toolcall.cases import Expect
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.scoring import error_of as error_of_parsed

SCHEMAS = {"set_timer": {"type": "object", "properties": {"minutes": {"type": "integer"}}}, "get_weather": {}}
CALL = Expect.model_validate({"call": {"name": "set_timer", "arguments": {"minutes": 5}}})
REFUSE = Expect.model_validate({"no_call": "no tool"})


def error_of(text, expect):
    return error_of_parsed(FORMATS["json"].parse(text, SCHEMAS), expect, SCHEMAS)


def call(name="set_timer", **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (call(minutes=5), None),
        (f"  {call(minutes=5)}\n", None),
        ('{"arguments": {"minutes": 5}, "name": "set_timer"}', None),
        (call(minutes=6), "wrong_value"),
        (call(minutes=5.0), "wrong_type"),
        (call(minutes="5"), "wrong_type"),
        (call(minutes=True), "wrong_type"),
        (call(), "missing_required"),
        (call(minutes=5, unit="s"), "extra_argument"),
        (call("get_weather", minutes=5), "wrong_tool"),
        ('{"name": 5, "arguments": {}}', "unparsable"),
        ('{"name": "set_timer"}', "unparsable"),
        ('{"name": "set_timer", "arguments": [5]}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": 5}, "id": 1}', "unparsable"),
        (f"[{call(minutes=5)}]", "unparsable"),
        ("5", "not_triggered"),
        ("", "not_triggered"),
        ("Sure!", "not_triggered"),
        (call(minutes=5) + call(minutes=5), "unparsable"),
        (f"Call: {call(minutes=5)}", "unparsable"),
        ("no tool", "not_triggered"),
        ('{"name": "set_timer", "name": "set_timer", "arguments": {"minutes": 5}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": NaN}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": -Infinity}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": 1e999}}', "wrong_type"),
        ('{"name": "set_timer", "arguments": {"minutes": ' + "9" * 6000 + "}}", "unparsable"),
        ('{"name": "\\ud800", "arguments": {}}', "hallucinated_tool"),
        ("\ud800", "not_triggered"),
        ("[" * 100_000, "unparsable"),
        ('{"name":' * 100_000, "unparsable"),
        ("x" * 1_000_000, "not_triggered"),
        (call(minutes=5) + " " * 1_000_000, None),
        ('"' + "x" * 1_000_000 + '"', "not_triggered"),
    ],
)
def test_an_answer_where_a_call_is_right(text, error):
    assert error_of(text, CALL) == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (" no tool ", None),
        ("No tool", "other_text"),
        ("no tool fits", "other_text"),
        ("", "other_text"),
        ("[" * 100_000, "called_when_should_refrain"),
        (call(minutes=5), "called_when_should_refrain"),
        ('{"name": "set_tim', "called_when_should_refrain"),
    ],
)
def test_an_answer_where_a_refusal_is_right(text, error):
    assert error_of(text, REFUSE) == error


def test_deep_arguments_are_compared_without_following_the_answer(tmp_path):
    deep = "[" * 900 + "]" * 900
    assert error_of('{"name": "set_timer", "arguments": {"minutes": ' + deep + "}}", CALL) == "wrong_type"


def case(**changes):
    made = {
        "id": "a",
        "input": "User: hi\nCall:",
        "tools": [{"name": "set_timer", "arguments": {"minutes": "integer"}}],
        "expect": {"call": {"name": "set_timer", "arguments": {"minutes": 5}}},
    }
    return made | changes


def write(tmp_path, *cases):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cases))
    return path


def test_a_users_own_case_needs_no_prefix_and_is_scored(tmp_path, answer):
    whole = case(prompt="Say it.", input=None, family="mine")
    suite = ToolCallSuite("own", write(tmp_path, whole, case(id="b")))
    mine, other = suite.items()
    assert (mine.family, mine.cluster, other.family) == ("mine", "", "own")
    request = suite.next_request(mine, [])
    assert request is not None
    assert (request.prompt, request.stop) == ("Say it.", ("\n",))
    assert suite.next_request(mine, [answer("x")]) is None
    right, *_ = suite.score(mine, [answer(call(minutes=5))])
    wrong, *_ = suite.score(mine, [answer("five")])
    assert (right.metric, right.value, right.error_class) == (mine.metric, 1.0, None)
    assert (wrong.value, wrong.error_class) == (0.0, "not_triggered")


def test_the_item_hash_follows_what_is_right_and_not_the_limits(tmp_path):
    def hash_of(**changes):
        return ToolCallSuite("s", write(tmp_path, case(**changes))).items()[0].sha256

    assert hash_of() == hash_of(max_tokens=9, stop=["\n\n"])
    assert hash_of() != hash_of(expect={"no_call": "no tool"})
    assert hash_of() != hash_of(tools=[{"name": "set_timer", "arguments": {"minutes": "number"}}])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"expect": {}}, "either `call` or `no_call`"),
        ({"expect": {"no_call": "x", "call": {"name": "set_timer", "arguments": {}}}}, "either `call` or `no_call`"),
        ({"expect": {"call": {"name": "fly", "arguments": {}}}}, "'fly' is not among the tools"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "x"}, {"name": "x"}]}, "same name"),
        ({"tool": []}, "unknown key 'tool'"),
    ],
)
def test_a_wrong_case_is_named_with_its_line(tmp_path, changes, complaint):
    path = write(tmp_path, case(), case(id="b", **changes))
    with pytest.raises(ConfigError, match=complaint) as caught:
        ToolCallSuite("s", path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)
