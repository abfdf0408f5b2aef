"""Own prompts: with a check as in format cases, without one only asked."""

import json

import pytest

from evalsvc.engine.requests import GenerateResult
from evalsvc.errors import ConfigError
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.validate import kind_of, validate
from evalsvc.suites.own import PromptSuite

CHECKED = {"id": "c", "prompt": "JSON:", "check": {"json_keys": {"a": "integer"}}}
SCHEMA = {"kind": "json", "schema": {"type": "object", "required": ["a"]}}


@pytest.fixture
def suite(tmp_path):
    def make(*cases, kind=PromptSuite):
        (tmp_path / "p.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
        return kind("own", tmp_path / "p.jsonl")

    return make


def said(text):
    return [
        GenerateResult(
            id="x", text=text, token_ids=(), prompt_tokens=1, prompt_sha256="", finish_reason="stop", stage_tokens={}
        )
    ]


def test_a_prompt_without_anything_to_verify_is_asked_and_has_no_metric(suite):
    made = suite({"id": "a", "prompt": "Why?"}, {"id": "b", "messages": [{"role": "user", "content": "Hi"}]})
    first, second = made.items()
    assert (first.metric, first.family, first.scored_by) == ("", "own", "generation")
    assert made.score(first, said("anything")) == []
    asked = made.next_request(first, ())
    assert (asked.prompt, asked.max_tokens, tuple(asked.stop)) == ("Why?", 256, ())
    asked = made.next_request(second, ())
    assert [dict(m) for m in asked.prompt] == [{"role": "user", "content": "Hi"}] and asked.max_tokens == 512


@pytest.mark.parametrize("case", [CHECKED, {"id": "s", "prompt": "JSON:", "constraints": [SCHEMA]}])
@pytest.mark.parametrize("text", ['{"a": 1}', '{"b": 1}', "no", ""])
def test_a_prompt_with_a_check_is_scored_as_a_format_case(suite, case, text):
    made, formats = suite(case), suite(case, kind=FormatSuite)
    (item,), (other,) = made.items(), formats.items()
    assert item.metric == "correct" and made.score(item, said(text)) == formats.score(other, said(text))


def test_prefixes_make_clusters(suite, tmp_path):
    (tmp_path / "p.prefixes.jsonl").write_text('{"id": "p0", "text": "Before. "}\n')
    made = suite({"id": "a", "prefix": "p0", "input": "Why?"})
    (item,) = made.items()
    assert item.cluster == "p0" and made.next_request(item, ()).prompt == "Before. Why?"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"id": "a"}, "either `prompt` or `input` or `messages`"),
        ({"id": "a", "prompt": "x", "chek": {}}, "unknown key 'chek'"),
        ({"id": "a", "prompt": "x", "check": {}}, "exactly one of"),
        ({"id": "a", "prompt": "x", "check": {"regex": "("}}, "p.jsonl:1"),
        ({"id": "a", "prompt": "x", "constraints": [{"kind": "nothing"}]}, "constraints"),
    ],
)
def test_mistakes_are_named_with_their_line(suite, case, words):
    with pytest.raises(ConfigError, match=r"p\.jsonl:1") as refused:
        suite(case)
    assert words in str(refused.value)


def test_a_file_of_own_prompts_is_validated(suite, tmp_path):
    suite({"id": "a", "prompt": "Why?"}, CHECKED, {"id": "b", "prompt": "Why?"})
    path = tmp_path / "p.jsonl"
    assert kind_of(path) == "prompts"
    found = validate(path)
    assert (found.cases, found.problems) == (3, ["a: asks the same as b"]) and found.unproven >= 2
