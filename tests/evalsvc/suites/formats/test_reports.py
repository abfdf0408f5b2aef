"""Faults that others reported of JSON and IFEval checks: the right value in format cases, and the whole kind."""

import json
from pathlib import Path

import pytest

from evalsvc.suites.formats.case import FormatCase, followed

REPORTS = Path(__file__).parents[5] / "shared" / "reference" / "reports.jsonl"
needs_reports = pytest.mark.skipif(not REPORTS.is_file(), reason="no public list of reports beside the project")


def report(name):
    rows = (json.loads(line) for line in REPORTS.read_text(encoding="utf-8").split("\n") if line.strip())
    return next(row["input"] for row in rows if row["id"] == name)


def error(text, **constraint):
    case = FormatCase.model_validate({"id": "a", "prompt": "p", "constraints": [constraint]})
    (found,) = followed(text, case).strict
    return found


@needs_reports
def test_js09_a_whole_document_goes_before_a_fence_inside_it():
    said = report("JS09")
    for around in ("nothing", "fence", "text"):
        assert error(said["text"], kind="json", schema=said["schema"], around=around) is None
    fenced, capital, told = said["also"]
    for text in (fenced, capital):
        assert error(text, kind="json", schema=said["schema"], around="fence") is None
        assert error(text, kind="json", schema=said["schema"]) == "json.extra_text"
    assert error(told, kind="json", schema=said["schema"], around="fence") == "json.extra_text"
    assert error(told, kind="json", schema=said["schema"], around="text") is None


@needs_reports
def test_js07_a_repeated_key_is_flagged_by_name_whatever_its_last_value():
    said = report("JS07")
    assert json.loads(said["text"]) == {"price": 5}, "the usual reader keeps the last"
    for around in ("nothing", "fence"):
        assert error(said["text"], kind="json", schema=said["schema"], around=around) == "json.repeated_key"
    assert error('{"a": {"b": [{"c": 1, "c": 1}]}}', kind="json") == "json.repeated_key"
    assert error('{"price": 5}', kind="json", schema=said["schema"]) is None


@needs_reports
def test_js01_js03_js05_schemas_of_answers_are_those_of_the_draft():
    values = {text: error(text, kind="json", schema=report("JS01")["schema"]) for text in report("JS01")["instances"]}
    assert values == {"12.0": None, "12.5": "json.schema", "true": "json.schema", "1e2": None}
    said = report("JS03")
    assert error(json.dumps(said["instance"]), kind="json", schema=said["schema"]) == "json.schema"
    said = report("JS05")
    for schema in said["schemas"]:
        assert error(said["instance"], kind="json", schema=schema) is None
    also = said["also"]
    assert error(also["instance"], kind="json", schema=also["schema"]) is None
    assert error("1e23", kind="json", schema=also["schema"]) == "json.schema"


@needs_reports
@pytest.mark.parametrize(("match", "count"), [("word", 1), ("substring", 4)])
def test_if05_a_word_counts_as_a_word_and_as_letters_where_the_case_says_so(match, count):
    """Our own constraint reads whole words; what is imported from IFEval reads as IFEval does."""
    text = report("IF05")["response"]
    met = {"kind": "frequency", "word": "art", "match": match, "min": count, "max": count}
    assert error(text, **met) is None
    assert error(text, kind="frequency", word="art", max=1) is None, "whole words where nothing is said"
    for word in ("C++", "(a", "[x", ".", "a|b", "\\d"):
        assert error(f"{word} and {word}", kind="frequency", word=word, match=match, min=2, max=2) is None
