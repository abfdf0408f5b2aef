"""Faults that others reported of tool calls and JSON Schema: the right value, and the fault's whole kind.

The cases are read from the public list beside the project; each test names its report.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc.errors import ConfigError
from evalsvc.suites.schema import problems, validator_of
from evalsvc.suites.strict_json import NotJson, parse
from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.parsers.native import join, read
from evalsvc.suites.toolcall.scoring import error_of, fits

from .conftest import SHARED

REPORTS = SHARED / "reference" / "reports.jsonl"
pytestmark = pytest.mark.skipif(not REPORTS.is_file(), reason="no public list of reports beside the project")
NAMES = {
    "llama pythonic": "pythonic",
    "lfm2 / pythonic": "pythonic",
    "hermes + think": "hermes",
    "glm4.7": "glm",
    "llama3_json": "llama_json",
}


def report(name):
    rows = (json.loads(line) for line in REPORTS.read_text(encoding="utf-8").splitlines())
    return next(row["input"] for row in rows if row["id"] == name)


def parsed(said, text=None):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in said.get("tools", [])}
    name = NAMES.get(said["format"], said["format"])
    return FORMATS[name].parse(said["text"] if text is None else text, schemas)


def calls(found):
    assert found.problems == ()
    return [(call.name, call.arguments) for call in found.calls]


CALLS = {
    "TC01": [("pin", {"lat": -33.9, "lon": 18.4})],
    "TC03": [("save", {"name": "n.txt", "body": 'one, two, "three"'})],
    "TC05": [("q", {"sql": "SELECT 1; SELECT 2"}), ("r", {})],
    "TC07": [("w", {"t": "ends with </tool_call> ok"})],
    "TC09": [("go", {"n": 2})],
    "TC11": [("post", {"zip": "20095", "days": 3})],
    "TC13": [("log", {"day": "2027-03-09"})],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_reported_text_has_these_calls_and_nothing_left(name):
    found = parsed(report(name))
    assert calls(found) == CALLS[name]
    assert found.text == ""


@given(number=st.integers() | st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=100, deadline=None)
def test_tc01_every_number_is_read_in_python(number):
    (call,) = FORMATS["pythonic"].parse(f"[pin(x={number!r}, y=[- {abs(number)!r}])]").calls
    assert call.arguments == {"x": number, "y": [-abs(number)]}
    assert type(call.arguments["x"]) is type(number)


@given(text=st.text(alphabet="'\",;()[]{}=\\\n a</tool_call>_|{}#é") | st.text())
@settings(max_examples=200, deadline=None)
def test_tc03_tc05_tc07_marks_inside_strings_are_data_in_every_format(text):
    schemas = {"f": {"properties": {"s": {"type": "string"}}}}
    wanted = [("f", {"s": text}), ("g", {})]
    for form in FORMATS.values():
        assert calls(form.parse(form.write([Call(*call) for call in wanted]), schemas)) == wanted, form.name


def test_tc08_joined_pieces_are_read_as_the_whole():
    said = report("TC08")
    assert calls(parsed(said, "".join(said["chunks"]))) == [("del", {"id": 73})]


@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "deepseek_v3", "deepseek_v31", "glm", "mistral", "llama_json"])
def test_tc09_a_draft_in_thought_is_no_call_whatever_its_marks(name):
    form = FORMATS[name]
    draft, real = (form.write([Call("go", {"n": n})]) for n in (1, 2))
    schemas = {"go": {"properties": {"n": {"type": "integer"}}}}
    found = form.parse(f"<think>maybe {draft} or not</think>\n{real}", schemas)
    assert calls(found) == [("go", {"n": 2})]
    assert found.reasoning == f"maybe {draft} or not"


@pytest.mark.parametrize("value", ["00501", "1e5", "true", "null", "3.0", "[1]", '"quoted"', " spaced "])
@pytest.mark.parametrize("name", ["glm", "qwen3_coder"])
def test_tc11_a_text_that_looks_like_json_stays_a_text_where_the_schema_says_so(name, value):
    schemas = {"post": {"properties": {"zip": {"type": "string"}}}}
    (call,) = FORMATS[name].parse(FORMATS[name].write([Call("post", {"zip": value})]), schemas).calls
    assert call == Call("post", {"zip": value})


def test_tc13_a_value_of_the_wrong_type_is_a_wrong_argument_and_not_a_missing_call():
    said = report("TC13")
    schemas = {"log": said["tools"][0]["function"]["parameters"]}
    found = parsed(said)
    assert not fits(found, schemas)
    expect = Expect.model_validate({"calls": [{"name": "log", "arguments": {"day": 9}}]})
    assert error_of(found, expect, schemas) == "wrong_type"


def test_tc15_both_wire_forms_of_mistral():
    said = report("TC15")
    found = [calls(parsed(said, text)) for text in said["texts"]]
    assert found == [
        [("calc", {"e": "2+3"})],
        [("calc", {"e": "[1]"}), ("calc", {"e": "{}"})],
        [("calc", {"e": "2+3"})],
        [("calc", {"e": {"f": {"g": 1}}})],
    ]


def test_tc17_a_marker_without_a_call_is_malformed_and_its_text_is_kept():
    said = report("TC17")
    empty, whole = (parsed(said, text) for text in said["texts"])
    assert (empty.calls, empty.text, empty.attempted) == ((), said["texts"][0], True)
    expect = Expect.model_validate({"calls": [{"name": "get", "arguments": {"k": "v"}}]})
    assert error_of(empty, expect, {"get": {}}) == "unparsable"
    assert calls(whole) == [("get", {"k": "v"})]


@pytest.mark.parametrize("form", [form for form in FORMATS.values() if form.marks], ids=lambda form: form.name)
def test_tc17_no_opening_mark_alone_is_a_call(form):
    for mark in form.marks:
        for text in (mark, f"{mark}sorry, I stop here", f"Well. {mark}\n"):
            found = form.parse(text)
            assert found.calls == () and text.strip() in (found.text, f"{found.text}{mark.strip()}")


def test_tc19_a_mistyped_header_keeps_the_raw_text():
    said = report("TC19")
    for text in said["texts"]:
        found = parsed(said, text)
        assert found.problems and found.text == text
        for expect in ({"no_call": True}, {"calls": [{"name": "get"}]}):
            assert error_of(found, Expect.model_validate(expect), {"get": {}}) == "unparsable"


def test_tc21_pieces_of_parallel_calls_with_one_index_are_told_apart():
    pieces = report("TC21")["sse_deltas"]
    wanted = [("put", {"f": "a"}), ("put", {"f": "b"})]
    unnumbered = [{key: value for key, value in piece.items() if key != "index"} for piece in pieces]
    nameless = [{key: value for key, value in piece.items() if key != "id"} for piece in pieces]
    for made in (pieces, unnumbered, nameless):
        assert calls(read(join(made), "")) == wanted


def test_tc23_a_call_that_the_limit_cut_is_truncated_and_never_completed():
    said = report("TC23")
    expect = Expect.model_validate({"calls": [{"name": "buy", "arguments": {"n": 2}}]})
    for lenient in (False, True):
        found = FORMATS["hermes"].parse(said["text"], lenient=lenient)
        assert found.calls == ()
        assert error_of(found, expect, {"buy": {}}, said["finish_reason"]) == "truncated"


def test_tc25_invented_arguments_and_other_values_are_wrong_and_order_is_free():
    said = report("TC25")
    schemas = {"area": {"type": "object", **said["tool_schema"]}}
    exact = {"name": "area", "arguments": said["expected"]["arguments"]}
    allowed = {"name": "area", "arguments": {**exact["arguments"], "unit": {"any": True, "optional": True}}}
    form = FORMATS["json"]

    def errors(wanted, *given):
        expect = Expect.model_validate({"calls": [wanted]})
        answers = [form.parse(form.write([Call(call["name"], call["arguments"])])) for call in given]
        return [error_of(answer, expect, schemas) for answer in answers]

    assert errors(exact, *said["calls"]) == ["extra_argument", "wrong_value", None]
    with_unit = {"name": "area", "arguments": {"base": 10, "height": 4, "unit": "px"}}
    assert errors(exact, with_unit) == ["extra_argument"]
    assert errors(allowed, with_unit) == [None]


def valid(schema, value, **options):
    return not list(problems(validator_of(schema, "here", **options), value))


def test_js01_a_whole_float_is_an_integer_of_this_draft_unless_asked_strictly():
    said = report("JS01")
    values = [parse(text) for text in said["instances"]]
    assert [valid(said["schema"], value) for value in values] == [True, False, False, True]
    assert [valid(said["schema"], value, strict_integers=True) for value in values] == [False] * 4
    with pytest.raises(ConfigError, match="only draft 2020-12"):
        validator_of({"$schema": "http://json-schema.org/draft-04/schema#", **said["schema"]}, "here")


def test_js03_additional_properties_are_those_not_named_beside_them():
    said = report("JS03")
    assert not valid(said["schema"], said["instance"])
    open_ = {"allOf": said["schema"]["allOf"], "unevaluatedProperties": False}
    assert valid(open_, {"a": 1, "b": 2}) and not valid(open_, {"a": 1, "c": 2})


def test_js05_large_numbers_are_exact_from_text_to_verdict():
    said = report("JS05")
    value = parse(said["instance"])
    assert [valid(schema, value) for schema in said["schemas"]] == [True, True]
    assert [valid(schema, value + 1) for schema in said["schemas"]] == [False, False]
    large = said["also"]["instance"]
    assert valid(said["also"]["schema"], parse(large)) and str(parse(large)) == large
    for form in FORMATS.values():
        (call,) = form.parse(form.write([Call("f", {"n": int(large)})])).calls
        assert call.arguments == {"n": int(large)}


def test_js07_a_repeated_key_is_no_json_and_no_call():
    said = report("JS07")
    with pytest.raises(NotJson, match="repeated"):
        parse(said["text"])
    found = FORMATS["hermes"].parse(f'<tool_call>{{"name": "f", "arguments": {said["text"]}}}</tool_call>')
    assert found.calls == () and "repeated" in found.problems[0]
    assert FORMATS["pythonic"].parse("[f(price=-5, price=5)]").problems == ("an argument is repeated",)


def test_js09_a_fence_inside_a_string_is_data_and_one_around_is_forgiven_leniently_alone():
    said = report("JS09")
    arguments = parse(said["text"])
    for form in FORMATS.values():
        if form.name not in ("glm", "qwen3_coder"):
            assert calls(form.parse(form.write([Call("f", arguments)]))) == [("f", arguments)]
    body = FORMATS["json"].write([Call("f", {"doc": "x"})])
    for text in (f"```json\n{body}\n```", f"```JSON\n{body}```", f"Sure:\n```json\n{body}\n```"):
        assert FORMATS["json"].parse(text).problems
    for text in (f"```json\n{body}\n```", f"```JSON\n{body}```"):
        assert calls(FORMATS["json"].parse(text, lenient=True)) == [("f", {"doc": "x"})]
