"""Formats: the form and the content are judged apart, and every hostile answer has a score."""

import json

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.check import Check, errors_of

PERSON = Check(json_equals={"name": "Leo", "age": 55})
KEYS = Check(json_keys={"name": "string", "age": "number"})
MARKER = Check(text_equals="bell rope END", marker="END")
TEXT = Check(text_equals="bell rope")
SHORT = Check(regex="[a-z]{2,4}")
RIGHT = '{"name": "Leo", "age": 55}'


@pytest.mark.parametrize(
    ("check", "text", "form", "answer"),
    [
        (PERSON, f" {RIGHT}\n", None, None),
        (PERSON, '{"age": 55, "name": "Leo"}', None, None),
        (PERSON, '{"name": "Leo", "age": 55.0}', None, "wrong_value"),
        (PERSON, '{"name": "Leo", "age": "55"}', None, "wrong_value"),
        (PERSON, '{"name": "Lea", "age": 55}', None, "wrong_value"),
        (PERSON, '{"name": "Leo"}', "wrong_keys", "wrong_keys"),
        (PERSON, '{"name": "Leo", "age": 55, "job": "baker"}', "wrong_keys", "wrong_keys"),
        (PERSON, '{"name": "Leo", "age": 55, "age": 55}', "not_json", "not_json"),
        (PERSON, '{"name": "Leo", "age": NaN}', "not_json", "not_json"),
        (PERSON, f"{RIGHT} is the answer", "extra_text", "extra_text"),
        (PERSON, f"{RIGHT}{RIGHT}", "extra_text", "extra_text"),
        (PERSON, f"[{RIGHT}]", "not_an_object", "not_an_object"),
        (PERSON, "", "not_json", "not_json"),
        (PERSON, "[" * 100_000, "not_json", "not_json"),
        (PERSON, '{"name":' * 100_000, "not_json", "not_json"),
        (PERSON, "x" * 1_000_000, "not_json", "not_json"),
        (PERSON, '{"name": "\\ud800", "age": 55}', None, "wrong_value"),
        (PERSON, "\ud800", "not_json", "not_json"),
        (KEYS, '{"name": "x", "age": 1.5}', None, None),
        (KEYS, '{"name": "x", "age": 1}', None, None),
        (KEYS, '{"name": "x", "age": true}', "wrong_type", "wrong_type"),
        (KEYS, '{"name": null, "age": 1}', "wrong_type", "wrong_type"),
        (MARKER, " bell rope END", None, None),
        (MARKER, "bell coin END", None, "wrong_value"),
        (MARKER, "bell rope", "marker_missing", "marker_missing"),
        (MARKER, "bell rope END.", "extra_text", "extra_text"),
        (MARKER, "bell rope END END", "extra_text", "extra_text"),
        (TEXT, "bell rope ", None, None),
        (TEXT, "bell", None, "wrong_value"),
        (TEXT, " ", "empty", "empty"),
        (SHORT, "abc", None, None),
        (SHORT, "abcde", "no_match", "no_match"),
        (SHORT, "abc\nd", "no_match", "no_match"),
    ],
)
def test_how_an_answer_is_wrong(check, text, form, answer):
    assert errors_of(text, check) == (form, answer)


def test_a_pattern_that_backtracks_forever_is_stopped():
    assert errors_of("a" * 5_000 + "!", Check(regex="(a|aa)+(a|a?)+b")) == ("pattern_timeout", "pattern_timeout")


def write(tmp_path, *cases):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cases))
    return path


def test_the_form_is_a_second_metric(tmp_path, answer):
    suite = FormatSuite("f", write(tmp_path, {"id": "a", "prompt": "p", "check": {"json_equals": {"a": 1}}}))
    (item,) = suite.items()
    scores = suite.score(item, [answer('{"a": 2}')])
    assert [(s.metric, s.value, s.error_class) for s in scores] == [
        ("correct", 0.0, "wrong_value"),
        ("constraints", 0.0, None),
        ("correct_loose", 0.0, "wrong_value"),
        ("constraints_loose", 0.0, None),
        ("valid", 1.0, None),
    ]
    assert item.metric == scores[0].metric


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        ({}, "exactly one"),
        ({"text_equals": "a", "regex": "a"}, "exactly one"),
        ({"text_equals": "a ", "marker": "a"}, "begins or ends with spaces"),
        ({"text_equals": "a b", "marker": "END"}, "`marker` is the end"),
        ({"regex": "("}, "not a pattern"),
        ({"json_keys": {"a": "int"}}, "json_keys"),
        ({"json": {}}, "unknown key 'check.json'"),
    ],
)
def test_a_wrong_check_is_named_with_its_line(tmp_path, check, complaint):
    path = write(tmp_path, {"id": "a", "prompt": "p", "check": check})
    with pytest.raises(ConfigError, match=complaint) as caught:
        FormatSuite("f", path)
    assert str(caught.value).startswith(f"{path}:1: ")
