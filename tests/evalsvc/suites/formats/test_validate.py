"""Looking a file of format cases over: right answers score 1, empty and wrong ones less, and doubts are named."""

import json

import pytest

from evalsvc.cli.main import main
from evalsvc.suites.formats import FormatCase
from evalsvc.suites.formats.validate import gold, kind_of, validate

GOOD = {"id": "a", "prompt": "p", "constraints": [{"kind": "words", "max": 3}], "example": "one two"}


def write(tmp_path, *cases):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def test_the_shipped_cases_are_sound(data):
    found = validate(data / "suites" / "formats.jsonl")
    assert (found.unproven, found.problems) == (0, [])
    assert found.cases == 56


def test_a_good_case_has_no_problem_and_one_without_an_example_is_unproven(tmp_path):
    bare = {"id": "b", "prompt": "q", "constraints": [{"kind": "quoted"}]}
    found = validate(write(tmp_path, GOOD, bare))
    assert (found.cases, found.unproven, found.problems) == (2, 1, [])


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ({**GOOD, "example": "one two three four"}, "the right answer scores 0 (words.too_many)"),
        ({**GOOD, "example": " "}, "the right answer scores 0 (empty)"),
        ({**GOOD, "constraints": [{"kind": "words", "min": 1}]}, "a wrong answer scores 1, be it short or long"),
        ({"id": "a", "prompt": "p", "check": {"regex": "[a-z]*"}}, "an empty answer scores 1"),
        ({**GOOD, "constraints": [*GOOD["constraints"] * 2]}, "the constraint words is there twice"),
        (
            {**GOOD, "constraints": [{"kind": "words", "max": 3}, {"kind": "words", "min": 4}]},
            "no answer meets both constraints words",
        ),
    ],
)
def test_what_is_wrong_with_a_case_is_named(tmp_path, case, problem):
    assert any(said.startswith(f"a: {problem}") for said in validate(write(tmp_path, case)).problems)


@pytest.mark.parametrize(
    "constraint",
    [
        {"kind": "exclude", "words": ["sea", "ship"]},
        {"kind": "frequency", "word": "sea", "max": 2},
        {"kind": "letter", "letter": "#", "max": 3},
    ],
)
def test_a_case_that_only_its_own_words_break_is_sound(tmp_path, constraint):
    assert validate(write(tmp_path, {**GOOD, "constraints": [constraint]})).problems == []


def test_a_fault_that_a_case_names_is_no_problem(tmp_path):
    twice = {**GOOD, "constraints": [*GOOD["constraints"] * 2], "faults": ["the constraint words is there twice"]}
    found = validate(write(tmp_path, twice, {**GOOD, "id": "b", "prompt": "q", "faults": ["it is odd"]}))
    assert found.faults == ["a: the constraint words is there twice"]
    assert found.problems == ["b: names a fault that it has not: it is odd"]


def test_counts_of_different_things_do_not_contradict(tmp_path):
    both = [{"kind": "letter", "letter": "a", "min": 2}, {"kind": "letter", "letter": "b", "max": 1}]
    assert validate(write(tmp_path, {**GOOD, "constraints": both, "example": "aa b"})).problems == []


def test_two_cases_that_ask_the_same_are_named(tmp_path):
    other = {**GOOD, "id": "c", "constraints": [{"kind": "words", "max": 2}]}
    found = validate(write(tmp_path, GOOD, {**GOOD, "id": "b"}, other))
    assert found.problems == ["a: asks the same as b"]


def test_a_right_answer_is_the_example_or_what_the_check_equals():
    assert gold(FormatCase.model_validate({"id": "a", "prompt": "p", "check": {"json_equals": {"a": 1}}})) == '{"a": 1}'
    assert gold(FormatCase.model_validate({"id": "a", "prompt": "p", "check": {"text_equals": "x"}})) == "x"
    assert gold(FormatCase.model_validate(GOOD)) == "one two"


def test_the_command_tells_the_kinds_of_files_apart(tmp_path, data, capsys):
    assert kind_of(data / "suites" / "formats.jsonl") == "formats"
    assert kind_of(data / "suites" / "tools.jsonl") == "toolcall"
    with pytest.raises(SystemExit) as left:
        main(["suite", "validate", str(write(tmp_path, GOOD))])
    assert left.value.code == 0
    assert "1 case of kind formats, 0 problems" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as left:
        main(["suite", "validate", str(write(tmp_path, {**GOOD, "example": "1 2 3 4"}))])
    assert left.value.code == 2
