"""JSON Schema: the published suite as the library has it, exact numbers, and no value that cannot be judged."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY

from evalsvc.errors import ConfigError
from evalsvc.suites.schema import problems, validator_of

SUITE = Path(__file__).parents[4] / "shared" / "data" / "json_schema_test_suite" / "draft2020-12"


def valid(schema, value, **options):
    return not list(problems(validator_of(schema, "here", **options), value))


def groups():
    return [(path.name, group) for path in sorted(SUITE.glob("*.json")) for group in json.loads(path.read_text())]


@pytest.mark.skipif(not SUITE.exists(), reason="needs shared/data/json_schema_test_suite")
def test_the_published_suite_passes_as_through_the_library():
    """Where the library fails on a reference to a schema elsewhere, the schema is refused before any value is seen."""
    seen, not_as_published = Counter(), Counter()
    for name, group in groups():
        try:
            validator = validator_of(group["schema"], "here")
        except ConfigError:
            validator = None
        for test in group["tests"]:
            try:
                theirs = Draft202012Validator(group["schema"], registry=REGISTRY).is_valid(test["data"])
            except Exception:
                theirs = None
            ours = None if validator is None else not list(problems(validator, test["data"]))
            better = theirs is None and ours == test["valid"]  # a pattern that only `regex` reads
            assert ours == theirs or better, (name, group["description"], test["description"])
            seen["refused" if ours is None else "judged"] += 1
            not_as_published[name] += ours is not None and ours != test["valid"]
    assert seen.total() > 1_200
    assert seen["refused"] < 60
    assert +not_as_published == Counter({"vocabulary.json": 1})  # a meta-schema of its own that forbids `minimum`


@pytest.mark.parametrize(
    ("schema", "text", "wanted"),
    [
        ({"type": "integer"}, "12.0", True),
        ({"type": "integer"}, "12.5", False),
        ({"type": "integer"}, "true", False),
        ({"type": "integer"}, "1e2", True),
        ({"type": "integer"}, "1e400", False),
        ({"multipleOf": 11}, "9007199254740995", True),
        ({"multipleOf": 11.0}, "9007199254740995", True),
        ({"multipleOf": 11.0}, "9007199254740996", False),
        ({"multipleOf": 0.01}, "19.99", True),
        ({"multipleOf": 0.1}, "1e308", True),
        ({"multipleOf": 0.5}, "1e400", False),
        ({"multipleOf": 3}, "true", True),
        ({"const": 10**23 + 1}, "100000000000000000000001", True),
        ({"const": 10**23 + 1}, "100000000000000000000000", False),
        ({"enum": [10**23 + 1]}, "100000000000000000000001", True),
        ({"maximum": 9007199254740992}, "9007199254740993", False),
        ({"uniqueItems": True}, "[1, true, \"1\", [1], {\"a\": 1}]", True),
        ({"uniqueItems": True}, "[1, 1.0]", False),
        ({"uniqueItems": True}, "[{\"a\": 1, \"b\": 2}, {\"b\": 2, \"a\": 1}]", False),
        ({"pattern": "^\\p{Letter}+$"}, "\"añb\"", True),
        ({"pattern": "^(a|aa)+(a|a?)+b$"}, json.dumps("a" * 5_000 + "!"), False),
    ],
)  # fmt: skip
def test_numbers_are_exact_and_patterns_end(schema, text, wanted):
    assert valid(schema, json.loads(text)) is wanted


def test_integers_can_be_had_strictly():
    for value, plain, strict in [(12, True, True), (12.0, True, False), (True, False, False), (1e2, True, False)]:
        assert valid({"type": "integer"}, value) is plain
        assert valid({"type": "integer"}, value, strict_integers=True) is strict


def test_additional_properties_are_those_that_are_not_named_beside_them():
    inner = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert not valid(inner | {"additionalProperties": False}, {"a": 1, "b": 2})
    assert valid(inner | {"unevaluatedProperties": False}, {"a": 1, "b": 2})
    assert not valid(inner | {"unevaluatedProperties": False}, {"a": 1, "c": 2})


def test_a_problem_names_keyword_and_place():
    schema = {"properties": {"rows": {"items": {"required": ["id"]}}}}
    (found,) = problems(validator_of(schema, "here"), {"rows": [{"id": 1}, {}]})
    assert (found.keyword, found.path) == ("required", ("rows", 1))
    assert "id" in found.message


def test_a_recursive_schema_meets_deep_and_large_values():
    schema = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    assert [p.keyword for p in problems(validator_of(schema, "here"), deep)] == ["depth"]
    began = time.process_time()
    assert valid({"uniqueItems": True}, [{"a": n} for n in range(50_000)])
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "int"}, "not a JSON Schema of draft 2020-12 at type"),
        ([], "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:9/away.json"}, "leads out of the schema"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "leads out of the schema"),
        ({"pattern": "("}, "pattern: not a pattern"),
        ({"patternProperties": {"(": {}}}, "patternProperties"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "only draft 2020-12"),
        ({"multipleOf": 0}, "multipleOf"),
    ],
)
def test_what_is_no_schema_is_refused(schema, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        validator_of(schema, "cases.jsonl:3")
    assert str(caught.value).startswith("cases.jsonl:3: ")
