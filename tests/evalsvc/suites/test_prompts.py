"""Case files, limits and suite entries: what is wrong is said in one sentence with its line."""

import json

import pytest
from pydantic import ValidationError

from evalsvc.errors import ConfigError
from evalsvc.suites.base import Item
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.items import content_hash, take
from evalsvc.suites.load import load_suite
from evalsvc.suites.spec import SuiteSpec

GOOD = {"id": "a", "input": "x", "check": {"text_equals": "y"}}


def refused(path):
    with pytest.raises(ConfigError) as caught:
        FormatSuite("f", path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (json.dumps(GOOD) + "\n\n" + json.dumps(GOOD), 3, "the id 'a' is already used on line 1"),
        ("{", 1, "is no JSON: expecting property name enclosed in double quotes at character 2"),
        ("[" * 100_000, 1, "nested too deep"),
        ("[]", 1, "wants a mapping, such as `{id: ...}`, not a list"),
        *(
            ("\n" + json.dumps(GOOD).replace('"y"', number), 2, f"{number} is no number of JSON; write a finite one")
            for number in ("NaN", "-Infinity", "1e999")
        ),
        ('{"id": "a", "id": "b"}', 1, "key 'id' stands twice in one object"),
        (json.dumps(GOOD | {"max_token": 9}), 1, "unknown key 'max_token'; did you mean 'max_tokens'?"),
        (
            json.dumps(GOOD | {"check": {"text_equal": "y"}}),
            1,
            "unknown key 'check.text_equal'; did you mean 'text_equals'?",
        ),
        (json.dumps(GOOD | {"stop": "x"}), 1, "'stop': wants a list, not 'x'; write [x]"),
        (
            json.dumps(GOOD | {"constraints": [{"kind": "wrods"}]}),
            1,
            "kind 'wrods' is not known; did you mean 'words'?",
        ),
        (json.dumps(GOOD | {"constraints": [{"kind": "words", "max": "5"}]}), 1, "'constraints.0.max': wants a whole"),
        (json.dumps(GOOD | {"input": None}), 1, "either `prompt` or `input`"),
        (json.dumps(GOOD | {"id": ""}), 1, "id"),
        (json.dumps(GOOD | {"prompt": "p"}), 1, "either `prompt` or `input`"),
        (json.dumps(GOOD | {"input": ""}), 1, "empty"),
        (json.dumps(GOOD | {"stop": [""]}), 1, "a stop string is empty"),
        (json.dumps(GOOD | {"max_tokens": 0}), 1, "max_tokens"),
        (json.dumps(GOOD | {"max_tokens": "9"}), 1, "max_tokens"),
        (json.dumps(GOOD | {"prefix": "p9"}), 1, "the prefix 'p9' is not in"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, line, complaint):
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    message = refused(path)
    assert message.startswith(f"{path}:{line}: ")
    assert complaint in message


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (".nan", "'0.check.json_equals.0': .nan is no finite number"),
        ("12:30", "'0.check.json_equals.0': 12:30 is 750 to YAML; write it in digits alone"),
    ],
)
def test_a_list_of_cases_holds_numbers_as_they_are_written(tmp_path, number, says):
    path = tmp_path / "c.yaml"
    path.write_text(f"- id: a\n  input: x\n  check:\n    json_equals: [{number}]\n")
    assert refused(path).startswith(f"{path}:4: {says}")


def test_an_empty_a_missing_and_a_binary_file_are_refused(tmp_path):
    path = tmp_path / "c.jsonl"
    assert "cannot be read" in refused(path)
    path.write_text("\n \n")
    assert "holds no cases" in refused(path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text; save it as UTF-8" in refused(path)
    assert "cannot be read" in refused(tmp_path)


def test_a_prefix_goes_before_the_input(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(GOOD | {"prefix": "p1"}))
    (tmp_path / "c.prefixes.jsonl").write_text(json.dumps({"id": "p1", "text": "shots\n\n"}))
    suite = FormatSuite("f", path)
    (item,) = suite.items()
    request = suite.next_request(item, [])
    assert request is not None
    assert (request.prompt, item.cluster) == ("shots\n\nx", "p1")


def item(number, family, cluster):
    return Item(id=str(number), family=family, cluster=cluster, sha256="", metric="m")


def test_a_limit_takes_from_every_prefix_of_every_family_in_turn():
    items = [item(i, "f", f"p{i // 3}") for i in range(9)] + [item(9, "g", "")]
    assert [i.id for i in take(items, 4)] == ["0", "1", "3", "6", "9"]
    assert take(items, None) == take(items, 99) == take(items, 10**30) == items


def test_a_hash_takes_lone_surrogates_and_ignores_the_order_of_keys():
    assert content_hash({"a": "\ud800", "b": 1}) == content_hash({"b": 1, "a": "\ud800"})
    assert content_hash({"a": 1}) != content_hash({"a": 1.0})


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "lmeval"},
        {"kind": "lmeval", "tasks": ["a"], "cases": "b"},
        {"kind": "formats"},
        {"kind": "toolcall", "tasks": ["a"], "cases": "b"},
        {"kind": "chess", "cases": "b"},
        {"kind": "formats", "cases": "b", "limit": 0},
        {"kind": "formats", "cases": "b", "limits": 3},
    ],
)
def test_a_wrong_suite_entry_is_refused(entry):
    with pytest.raises(ValidationError):
        SuiteSpec.model_validate({"name": "s"} | entry)


def test_a_suite_is_loaded_relative_to_the_experiment(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(GOOD | {"id": i}) + "\n" for i in "abc"))
    suite = load_suite(SuiteSpec(name="s", kind="formats", cases="c.jsonl", limit=2), tmp_path)
    assert (suite.name, suite.scoring_version, len(suite.items())) == ("s", "formats-2", 2)
