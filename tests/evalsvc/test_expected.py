"""What was right: of the case that was asked and of no other, argument by argument and constraint by constraint."""

import json

import pytest

from evalsvc.errors import EvidenceError
from evalsvc.expected import case_of, compared, describe
from evalsvc.suites.formats.case import FormatSuite
from evalsvc.suites.toolcall.cases import ToolCase
from evalsvc.suites.toolcall.matchers import Matcher
from evalsvc.suites.toolcall.suite import ToolCallSuite

TOOL = {
    "name": "book",
    "description": "Books a table.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
}
CALL = {"id": "a", "prompt": "Book.", "tools": [TOOL]}
WANTED = {
    "name": "book",
    "arguments": {"city": "Oslo", "n": {"number": 2, "abs": 1}, "at": {"any": True, "optional": True}},
}


def tool_case(**keys):
    return ToolCase.model_validate({**CALL, "expect": {"calls": [WANTED]}, **keys})


def said(**arguments):
    return json.dumps({"name": "book", "arguments": arguments})


def rows(case, *answers, form="json"):
    return {row.what: (row.expected, row.said, row.right) for row in compared(case, form, [[a] for a in answers])}


def test_arguments_stand_one_by_one_beside_what_is_right():
    found = rows(tool_case(), said(city="Oslo", n=3), said(city="Rome", extra=None))
    assert found["call: function"] == ("book", ("book", "book"), (True, True))
    assert found["call: city"] == ('"Oslo"', ('"Oslo"', '"Rome"'), (True, False))
    assert found["call: n"] == ('{"number": 2, "abs": 1}', ("3", None), (True, False))
    assert found["call: at"][1:] == ((None, None), (True, True))
    assert found["call: extra"] == ("no such argument", (None, "null"), (True, False))


def test_an_answer_without_a_call_has_none_of_it():
    found = rows(tool_case(), said(city="Oslo", n=2), "I would rather not.")
    assert found["call: function"][1:] == (("book", None), (True, False))
    assert found["call: city"][2] == (True, None)


def test_no_call_is_right_where_none_is_wanted():
    found = rows(tool_case(expect={"no_call": True}), "No.", said(city="Oslo"))
    assert found["answer"] == ("no call", ("No.", "a call"), (True, False))
    found = rows(tool_case(expect={"ask_back": ["city"]}), "Which city?", said(city="Oslo"))
    assert found["question"][2] == (None, False)


def test_a_right_call_stands_for_what_it_answers_and_a_further_one_is_counted():
    case = tool_case(expect={"calls": [WANTED, {"name": "book", "arguments": {"city": "Rome"}}]})
    both = "[" + ", ".join((said(city="Rome"), said(city="Oslo", n=2))) + "]"
    three = "[" + ", ".join((said(city="Rome"), said(city="Oslo", n=2), said(city="Bonn"))) + "]"
    found = rows(case, both, three)
    assert all(right == (True, True) for what, (_, _, right) in found.items() if what != "further calls")
    assert found["further calls"] == ("none", (None, "1 more"), (True, False))


@pytest.fixture
def calls(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text(json.dumps({**CALL, "expect": {"calls": [WANTED]}}) + "\n")
    (item,) = ToolCallSuite("tools", path, form="json").items()
    resolved = {"folder": str(tmp_path), "suites": [{"name": "tools", "kind": "toolcall", "cases": "calls.jsonl"}]}
    return path, item, resolved


def test_the_case_is_the_one_that_was_asked(calls):
    _, item, resolved = calls
    assert case_of(resolved, "tools", item.id, item.sha256) == item.payload


def test_another_case_says_nothing_of_this_item(calls):
    path, item, resolved = calls
    path.write_text(path.read_text().replace("Oslo", "Rome"))
    with pytest.raises(EvidenceError, match=r"calls\.jsonl has changed since this item was asked"):
        case_of(resolved, "tools", item.id, item.sha256)
    with pytest.raises(EvidenceError, match=r"no longer has this item"):
        case_of(resolved, "tools", "b", item.sha256)
    path.unlink()
    with pytest.raises(EvidenceError, match=r"cannot be read: .*calls\.jsonl"):
        case_of(resolved, "tools", item.id, item.sha256)


def test_where_nothing_is_known_one_sentence_says_so(calls):
    _, item, resolved = calls
    with pytest.raises(EvidenceError, match="a new run stores it"):
        case_of({**resolved, "folder": None}, "tools", item.id, item.sha256)
    for strange in ({}, {"suites": [{"name": "tools", "kind": "lmeval"}]}, {"suites": ["x"]}):
        with pytest.raises(EvidenceError, match="was not stored"):
            case_of(strange, "tools", item.id, item.sha256)


def test_constraints_stand_one_by_one_and_agree_with_the_suite(tmp_path):
    path = tmp_path / "forms.jsonl"
    constraints = [{"kind": "words", "max": 3}, {"kind": "ends_with", "text": "done"}]
    path.write_text(json.dumps({"id": "f", "prompt": "Say.", "constraints": constraints}) + "\n")
    (item,) = FormatSuite("forms", path).items()
    found = rows(item.payload, "all is done", "all of it is not", form="none")
    assert [right for _, _, right in found.values()] == [(True, False), (True, False)]
    assert next(iter(found)) == "words" and found["words"][0] == '{"kind": "words", "max": 3}'
    assert found["words"][1] == (None, "words.too_many")


def test_a_plain_value_stands_for_itself():
    assert describe(Matcher.model_validate(5)) == "5"
    assert describe(Matcher.model_validate({"exact": 5, "optional": True})) == '{"exact": 5, "optional": true}'
