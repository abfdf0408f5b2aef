"""The public function-calling set as cases, and what `validate` finds in it and in broken cases."""

import json
from math import inf, nan
from pathlib import Path

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.prompts import read_rows
from evalsvc.suites.toolcall.bfcl import import_bfcl, to_schema
from evalsvc.suites.toolcall.cases import ToolCase
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.validate import gold, validate


@pytest.fixture(scope="module")
def imported(shared, tmp_path_factory):
    path = tmp_path_factory.mktemp("bfcl") / "bfcl.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in import_bfcl(shared / "data" / "bfcl")))
    return path


def test_all_1498_cases_load(imported):
    cases = [case for _, case in read_rows(imported, ToolCase)]
    assert len(cases) == 1498
    families = [case.family for case in cases]
    assert {family: families.count(family) for family in set(families)} == {
        "irrelevance": 240,
        "live_simple": 258,
        "multiple": 200,
        "parallel": 200,
        "parallel_multiple": 200,
        "simple_python": 400,
    }
    assert sum(not case.expect.wanted for case in cases) == 240
    first = next(case for case in cases if case.id == "simple_python_0")
    assert gold(first, "pythonic") == ["[calculate_triangle_area(base=10, height=5)]"]


@pytest.mark.parametrize(
    "form", [name if name == "hermes" else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]
)
def test_right_answers_score_1_and_empty_and_wrong_ones_less(imported, form):
    """What remains is known of the set itself: its answers that its own schemas refuse, in ten cases."""
    found = validate(imported, form)
    assert (found.cases, found.unproven, found.problems) == (1498, 0, [])
    assert len(found.faults) == 20 and len({fault.partition(":")[0] for fault in found.faults}) == 10
    assert all("the schema refuses the right arguments" in fault for fault in found.faults)


def test_types_of_bfcl_become_types_of_json_schema():
    said = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "optional": True},
            "optional": {"type": "tuple", "items": {"type": "dict", "properties": {"x": {"type": "any"}}}},
        },
        "required": ["type"],
    }
    assert to_schema(said) == {
        "type": "object",
        "properties": {
            "type": {"type": "number"},
            "optional": {"type": "array", "items": {"type": "object", "properties": {"x": {}}}},
        },
        "required": ["type"],
    }


ROW = {
    "id": "a",
    "question": [[{"role": "user", "content": "hi"}]],
    "function": [{"name": "f", "parameters": {"type": "dict", "properties": {"x": {"type": "integer"}}}}],
}


def write(folder: Path, row, answer) -> Path:
    (folder / "possible_answer").mkdir(exist_ok=True)
    path = folder / "BFCL_v4_simple.json"
    path.write_text(json.dumps(row) + "\n")
    if answer is not None:
        (folder / "possible_answer" / path.name).write_text(json.dumps(answer) + "\n")
    return path


@pytest.mark.parametrize(
    ("row", "answer", "complaint"),
    [
        (ROW, None, "its answers are missing; BFCL has them in .*possible_answer"),
        (ROW, {"id": "b", "ground_truth": []}, "BFCL_v4_simple.json:1: no answer for 'a'"),
        (ROW, {"id": "a", "ground_truth": [{"g": {}}]}, "BFCL_v4_simple.json:1: .*'g' is not among the tools"),
        (ROW | {"question": ROW["question"] * 2}, {"id": "a", "ground_truth": []}, "2 turns"),
        ({"id": "a"}, {"id": "a", "ground_truth": []}, "not a single-turn BFCL case"),
        ([1], {"id": "a", "ground_truth": []}, "BFCL_v4_simple.json:1: not a JSON object"),
        (ROW, {"id": "a", "ground_truth": [{"f": {"x": [inf]}}]}, "answer/BFCL_v4_simple.json:1: Infinity is no "),
        (ROW | {"note": nan}, {"id": "a", "ground_truth": []}, "simple.json:1: NaN is no number of JSON; write a"),
    ],
)
def test_what_is_not_the_set_is_refused_with_its_line(tmp_path, row, answer, complaint):
    with pytest.raises(ConfigError, match=complaint):
        import_bfcl(write(tmp_path, row, answer))


def case(**changes):
    return {
        "id": "a",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "arguments": {"x": "integer"}}],
        "expect": {"calls": [{"name": "f", "arguments": {"x": 1}}]},
    } | changes


def called(**arguments):
    return {"calls": [{"name": "f", "arguments": arguments}]}


REFUSED = "f: the schema refuses the right arguments: x: '1' is not of type 'integer'"


def test_a_fault_that_a_case_names_is_no_problem_and_a_named_one_that_it_has_not_is(tmp_path):
    made = import_bfcl(write(tmp_path, ROW, {"id": "a", "ground_truth": [{"f": {"x": ["1"]}}]}))
    assert [one["faults"] for one in made] == [[REFUSED]]
    path = tmp_path / "cases.jsonl"
    right = case(id="b", faults=[REFUSED], messages=[{"role": "user", "content": "Hello."}])
    path.write_text("".join(json.dumps(one) + "\n" for one in (*made, right)))
    found = validate(path, "hermes")
    assert found.faults == [f"a: {REFUSED}"]
    assert found.problems == [f"b: names a fault that it has not: {REFUSED}"]


@pytest.mark.parametrize(
    ("cases", "problem"),
    [
        ([case(), case(id="b")], "a: asks the same as b"),
        ([case(expect=called(x={"any": True}))], "takes any value"),
        ([case(expect=called(x={"one_of": [1, 1]}))], "names a value twice"),
        ([case(expect=called(x="1"))], "schema refuses the right arguments: x: '1' is not of type 'integer'"),
        ([case(expect=called())], "'x' is a required property"),
        ([case(expect={"no_call": "None of these tools fits."})], None),
        ([case()], None),
    ],
)
def test_doubtful_cases_are_named(tmp_path, cases, problem):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in cases))
    found = validate(path, "hermes").problems
    assert found == [] if problem is None else any(problem in one for one in found)


def test_a_pattern_has_no_right_answer_to_try(tmp_path):
    path = tmp_path / "cases.jsonl"
    tools = [{"name": "f", "arguments": {"x": "string"}}]
    path.write_text(json.dumps(case(tools=tools, expect=called(x={"regex": "a+"}))))
    found = validate(path, "json")
    assert (found.unproven, found.problems) == (1, [])
