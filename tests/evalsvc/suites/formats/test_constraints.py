"""Every kind of constraint: texts that meet it, texts that break it in a named way, and hostile text quickly."""

import json
import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from evalsvc.errors import ConfigError
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.case import AnyConstraint, FormatCase, followed, variants

READER = TypeAdapter(AnyConstraint)
KINDS = [get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(AnyConstraint)[0])]
ONE = '{"id": 7, "name": "Leo"}'
IDS = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
CSV = {"kind": "csv", "columns": ["a", "b"], "max_rows": 2}
TABLE = {"kind": "table", "columns": ["a", "b"]}
GRID = "| a | b |\n|---|:-:|\n| 1 | x \\| y |"
PYTHON = {"kind": "code", "language": "python"}
TEN = {"kind": "numbered_list", "n": 2}

CASES = [
    ({"kind": "json"}, ONE, None),
    ({"kind": "json"}, " [1, 2]\n", None),
    ({"kind": "json"}, "7", None),
    ({"kind": "json"}, "{'id': 7}", "json.not_json"),
    ({"kind": "json"}, '{"id": 7,}', "json.not_json"),
    ({"kind": "json"}, '{"id": NaN}', "json.not_json"),
    ({"kind": "json"}, '{"id": 7, "id": 8}', "json.repeated_key"),
    ({"kind": "json", "loose_reader": True}, '{"id": 7, "id": NaN}', None),
    ({"kind": "json"}, f"Sure: {ONE}", "json.not_json"),
    ({"kind": "json"}, f"{ONE} there", "json.extra_text"),
    ({"kind": "json"}, f"```json\n{ONE}\n```", "json.extra_text"),
    ({"kind": "json", "around": "fence"}, f"```json\n{ONE}\n```", None),
    ({"kind": "json", "around": "fence"}, f"```JSON\n{ONE}```", None),
    ({"kind": "json", "around": "fence"}, f"Sure:\n```json\n{ONE}\n```", "json.extra_text"),
    ({"kind": "json", "around": "text"}, f"Sure:\n```json\n{ONE}\n```\nDone.", None),
    ({"kind": "json", "around": "fence"}, json.dumps({"doc": 'use ```json {"a": 1} ``` here'}), None),
    ({"kind": "json", "around": "text"}, json.dumps({"doc": 'use ```json\n{"a": 1} ``` here'}), None),
    ({"kind": "json", "schema": {"required": ["doc"]}, "around": "text"}, json.dumps({"doc": "```\n{}\n```"}), None),
    ({"kind": "json", "schema": IDS}, ONE, None),
    ({"kind": "json", "schema": IDS}, '{"name": "Leo"}', "json.schema"),
    ({"kind": "json", "schema": IDS}, '{"id": 7.0}', None),
    ({"kind": "json", "schema": IDS, "strict_integers": True}, '{"id": 7.0}', "json.schema"),
    ({"kind": "json", "schema": {"const": 10**23 + 1}}, "100000000000000000000001", None),
    ({"kind": "json", "keys": ["id", "name"]}, ONE, None),
    ({"kind": "json", "keys": ["name", "id"]}, ONE, "json.wrong_keys"),
    ({"kind": "json", "keys": ["id"]}, ONE, "json.wrong_keys"),
    ({"kind": "json", "keys": ["id"]}, "[1]", "json.wrong_keys"),
    ({"kind": "yaml", "keys": ["a", "b"]}, "a: 1\nb:\n  - x\n  - y", None),
    ({"kind": "yaml"}, "just words", "yaml.not_a_document"),
    ({"kind": "yaml"}, "a: [1", "yaml.not_yaml"),
    ({"kind": "yaml"}, "a: 1\n---\nb: 2", "yaml.not_yaml"),
    ({"kind": "yaml"}, "a: 1\na: 2", "yaml.repeated_key"),
    ({"kind": "yaml"}, "a: &x [1]\nb: *x", "yaml.alias"),
    ({"kind": "yaml"}, "a: !!python/object/apply:os.system ['true']", "yaml.tag"),
    ({"kind": "yaml"}, "? [1, 2]\n: 3", "yaml.not_yaml"),
    ({"kind": "yaml"}, "```yaml\na: 1\n```", "yaml.not_yaml"),
    ({"kind": "yaml", "around": "fence", "schema": IDS}, "```yaml\nid: 1\n```", None),
    ({"kind": "yaml", "schema": IDS}, "id: one", "yaml.schema"),
    ({"kind": "xml", "root": "a", "elements": ["b"]}, '<?xml version="1.0"?>\n<a><b x="1">&lt;</b></a>', None),
    ({"kind": "xml", "root": "b"}, "<a/>", "xml.wrong_root"),
    ({"kind": "xml", "elements": ["a"]}, "<a/>", "xml.missing_element"),
    ({"kind": "xml"}, "<a><b></a>", "xml.not_xml"),
    ({"kind": "xml"}, "<a/> and more", "xml.not_xml"),
    ({"kind": "xml"}, "```xml\n<a/>\n```", "xml.extra_text"),
    ({"kind": "xml", "around": "fence"}, "```xml\n<a/>\n```", None),
    ({"kind": "xml"}, '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "xml.doctype"),
    ({"kind": "xml"}, '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "xml.doctype"),
    (CSV, 'a,b\n1,"x, y"\n2,z', None),
    (CSV, "a,c\n1,2", "csv.wrong_columns"),
    (CSV, "a,b\n1,2,3", "csv.ragged"),
    (CSV, "a,b", "csv.too_few"),
    (CSV, "a,b\n1,2\n1,2\n1,2", "csv.too_many"),
    (CSV, 'a,b\n1,"x" y', "csv.not_csv"),
    (CSV, "a,b\n\n1,2", "csv.not_csv"),
    (CSV, "a;b\n1;2", "csv.wrong_columns"),
    (CSV | {"delimiter": ";"}, "a;b\n1;2", None),
    (CSV, "```csv\na,b\n1,2\n```", "csv.wrong_columns"),
    (CSV | {"fence": True}, "```csv\na,b\n1,2\n```", None),
    ({"kind": "csv", "width": 3}, "a,b\n1,2", "csv.wrong_columns"),
    (TABLE, GRID, None),
    (TABLE, "a | b\n--|--\n1 | 2", None),
    (TABLE, f"See:\n\n{GRID}", "table.extra_text"),
    (TABLE | {"around": True}, f"See:\n\n{GRID}\n\nDone.", None),
    (TABLE, "a, b\n1, 2", "table.no_table"),
    (TABLE, "| a | c |\n|---|---|\n| 1 | 2 |", "table.wrong_columns"),
    (TABLE, "| a | b |\n|---|---|\n| 1 |", "table.ragged"),
    (TABLE, "| a | b |\n|---|\n| 1 | 2 |", "table.ragged"),
    (TABLE | {"min_rows": 2}, GRID, "table.too_few"),
    (PYTHON, "So:\n```python\nx = 1\n```", None),
    (PYTHON, "x = 1", "code.no_code"),
    (PYTHON, "```python\nx = \n```", "code.does_not_parse"),
    (PYTHON, "```js\nx = 1\n```", "code.wrong_language"),
    (PYTHON, "```python\nx = 1", "code.unclosed"),
    (PYTHON, "```python\nx = 1\n```\n```python\ny = 1\n```", "code.too_many"),
    (PYTHON | {"blocks": 2}, "```python\nx = 1\n```\n```python\ny = 1\n```", None),
    (PYTHON | {"only": True}, "So:\n```python\nx = 1\n```", "code.extra_text"),
    (PYTHON, "~~~~python\nx = '''\n```\n'''\n~~~~", None),
    (PYTHON, "```python\n" + "x\n" * 60_000 + "```", "code.too_long"),
    ({"kind": "code", "language": "json"}, f"```json\n{ONE}\n```", None),
    ({"kind": "code", "language": "yaml"}, "```yaml\na: [1\n```", "code.does_not_parse"),
    ({"kind": "code", "language": "xml"}, "```xml\n<a/>\n```", None),
    ({"kind": "code", "language": "toml"}, '```toml\na = "b"\n```', None),
    ({"kind": "code", "language": "toml"}, "```toml\na = b\n```", "code.does_not_parse"),
    ({"kind": "words", "min": 2, "max": 3}, "one two", None),
    ({"kind": "words", "max": 2}, "one two three", "words.too_many"),
    ({"kind": "words", "min": 2}, "one", "words.too_few"),
    ({"kind": "words", "max": 2}, "नमस्ते दुनिया", None),
    ({"kind": "sentences", "min": 2, "max": 2}, "It is 3.5 m. Dr. Who saw J. Doe, e.g. here, today.", None),
    ({"kind": "sentences", "max": 2}, "One! Two? Three.", "sentences.too_many"),
    ({"kind": "sentences", "min": 2}, "1. A list's entry", "sentences.too_few"),
    ({"kind": "sentences", "min": 2, "max": 2}, "你好。再见。", None),
    ({"kind": "sentences", "max": 1}, "Well... then no", None),
    ({"kind": "characters", "max": 3}, " abc ", None),
    ({"kind": "characters", "max": 2}, "abc", "characters.too_many"),
    ({"kind": "lines", "min": 2, "max": 2}, "a\n\nb\n", None),
    ({"kind": "lines", "min": 3}, "a\n\nb\n", "lines.too_few"),
    ({"kind": "paragraphs", "min": 2, "max": 2}, "a\nb\n \n\nc", None),
    ({"kind": "paragraphs", "min": 2}, "a\nb", "paragraphs.too_few"),
    ({"kind": "paragraphs", "min": 2, "max": 2, "divider": "***"}, "a\n***\nb\n***", None),
    ({"kind": "paragraphs", "min": 2, "divider": "***"}, "a\n***\n***\nb", "paragraphs.empty_paragraph"),
    ({"kind": "paragraph_start", "paragraph": 2, "of": 2, "word": "Sun"}, "a\n\n\"sun's up", None),
    ({"kind": "paragraph_start", "paragraph": 2, "of": 2, "word": "Sun"}, "a\n\nsunny", "paragraph_start.other_word"),
    ({"kind": "paragraph_start", "paragraph": 1, "of": 2, "word": "sun"}, "sun", "paragraph_start.too_few"),
    ({"kind": "paragraph_start", "paragraph": 1, "of": 1, "word": "sun"}, "sun\n\nb", "paragraph_start.too_many"),
    ({"kind": "paragraph_start", "paragraph": 1, "of": 1, "word": "a"}, "\n\na", "paragraph_start.other_word"),
    ({"kind": "stop_words", "max_percent": 50}, "the red house", None),
    ({"kind": "stop_words", "max_percent": 50}, "the house of the king", "stop_words.too_many"),
    *(({"kind": "stop_words", "max_percent": 50}, text, "stop_words.no_words") for text in ("...", "😀", "---")),
    *(({"kind": "no_commas"}, text, None) for text in ("...", "😀", "---")),
    ({"kind": "no_commas"}, "a, b", "no_commas"),
    ({"kind": "bullets", "min": 2, "max": 2}, "* a\n - b\n** c", None),
    ({"kind": "bullets", "min": 3, "max": 3}, "no bullets at all", "bullets.too_few"),
    ({"kind": "bullets", "max": 1}, "- a\n- b", "bullets.too_many"),
    (TEN, "List:\n1. a\n 2) b", None),
    (TEN, "1. a", "numbered_list.too_few"),
    (TEN, "1. a\n2. b\n3. c", "numbered_list.too_many"),
    (TEN, "1. a\n1. b", "numbered_list.wrong_order"),
    (TEN | {"only": True}, "List:\n1. a\n2. b", "numbered_list.extra_text"),
    ({"kind": "highlights", "min": 2}, "*a* and **b**", None),
    ({"kind": "highlights", "min": 1}, "* a\n** **", "highlights.too_few"),
    ({"kind": "highlights", "min": 1}, "* * and ** **", "highlights.too_few"),
    ({"kind": "sections", "word": "Part", "min": 2}, "Part 1\nx\nPart2\ny", None),
    ({"kind": "sections", "word": "Part", "min": 2}, "part 1\nx\nPart2\ny", "sections.too_few"),
    ({"kind": "placeholders", "min": 2}, "[a] to [b c]", None),
    ({"kind": "placeholders", "min": 1}, "[a\n]", "placeholders.too_few"),
    ({"kind": "title"}, "text <<A title>> text", None),
    ({"kind": "title"}, "<<>> and << and <a>", "title"),
    ({"kind": "title"}, "<<\n>>", "title"),
    ({"kind": "quoted"}, ' "a" ', None),
    ({"kind": "quoted"}, '"', "quoted"),
    ({"kind": "quoted"}, '"a" b', "quoted"),
    ({"kind": "postscript"}, "a\np. s. b", None),
    ({"kind": "postscript", "marker": "P.P.S"}, "P.S. b", "postscript"),
    ({"kind": "postscript", "marker": "N.B."}, "a\nn.b. c", None),
    ({"kind": "two_responses"}, "a\n******\nb", None),
    ({"kind": "two_responses"}, "a\n******\na", "two_responses.same"),
    ({"kind": "two_responses"}, "a", "two_responses.too_few"),
    ({"kind": "two_responses"}, "a******b******c", "two_responses.too_many"),
    ({"kind": "two_responses"}, "a************b", "two_responses.empty_part"),
    ({"kind": "include", "words": ["art", "C++"]}, "Art with C++, smart", None),
    ({"kind": "include", "words": ["art"]}, "a smart part", "include.missing"),
    ({"kind": "include", "words": ["art"], "match": "substring"}, "a smart part", None),
    ({"kind": "include", "words": ["art"], "times": 2}, "art", "include.missing"),
    ({"kind": "exclude", "words": ["art", "(x"]}, "a smart part", None),
    ({"kind": "exclude", "words": ["art"]}, "ART.", "exclude.present"),
    ({"kind": "frequency", "word": "art", "max": 1}, "Art starts with a smart part.", None),
    (
        {"kind": "frequency", "word": "art", "max": 1, "match": "substring"},
        "Art starts with a smart part.",
        "frequency.too_many",
    ),
    ({"kind": "frequency", "word": "C++", "min": 2}, "C++ or c++", None),
    ({"kind": "letter", "letter": "#", "min": 2}, "#a #b", None),
    ({"kind": "letter", "letter": "A", "max": 1}, "a A", "letter.too_many"),
    ({"kind": "choice", "options": ["yes", "no"]}, " no\n", None),
    ({"kind": "choice", "options": ["yes", "no"]}, "no.", "choice"),
    ({"kind": "choice", "options": ["no"], "within": True}, "I say no.", None),
    ({"kind": "regex", "pattern": "[a-z]+"}, "abc ", None),
    ({"kind": "regex", "pattern": "[a-z]+"}, "abc 1", "regex.no_match"),
    ({"kind": "regex", "pattern": "[a-z]+", "within": True}, "abc 1", None),
    ({"kind": "regex", "pattern": "(a|aa)+(a|a?)+b"}, "a" * 5_000 + "!", "regex.pattern_timeout"),
    ({"kind": "starts_with", "text": "Dear"}, "  Dear you", None),
    ({"kind": "starts_with", "text": "Dear"}, "dear you", "starts_with"),
    ({"kind": "starts_with", "text": "Dear", "any_case": True}, "dear you", None),
    ({"kind": "ends_with", "text": "Bye."}, '"So long. Bye."', None),
    ({"kind": "ends_with", "text": "Bye."}, "Bye. And", "ends_with"),
    ({"kind": "repeats", "text": "Say it."}, "say it. It", None),
    ({"kind": "repeats", "text": "Say it."}, "I say it.", "repeats"),
    ({"kind": "stops_at", "marker": "END"}, "a END\n", None),
    ({"kind": "stops_at", "marker": "END"}, "a", "stops_at.marker_missing"),
    ({"kind": "stops_at", "marker": "END"}, "END a END", "stops_at.repeated"),
    ({"kind": "stops_at", "marker": "END"}, "a END.", "stops_at.extra_text"),
    ({"kind": "nothing_after", "marker": "</a>"}, "<a></a><a></a> ", None),
    ({"kind": "nothing_after", "marker": "</a>"}, "<a></a> so", "nothing_after.extra_text"),
    ({"kind": "nothing_after", "marker": "</a>"}, "<a>", "nothing_after.marker_missing"),
    ({"kind": "language", "language": "de"}, "Das ist ein schöner Tag im Wald, und wir gehen spazieren.", None),
    ({"kind": "language", "language": "de"}, "This is a fine day in the forest.", "language.other_language"),
    ({"kind": "language", "language": "de"}, "123", None),
    ({"kind": "casing", "case": "upper"}, "ALL OF 3.", None),
    ({"kind": "casing", "case": "lower"}, "not All", "casing.wrong_case"),
    ({"kind": "casing", "case": "lower", "language": "en"}, "this is quite a fine day in the forest", None),
    ({"kind": "casing", "case": "lower", "language": "en"}, "das ist ein guter tag im wald", "casing.other_language"),
    ({"kind": "capital_words", "min": 4, "max": 4}, "I DON'T go UP-TO-DATE", None),
    ({"kind": "capital_words", "max": 1}, "A B", "capital_words.too_many"),
]


def case_of(*constraints):
    return FormatCase.model_validate({"id": "a", "prompt": "p", "constraints": list(constraints)})


def test_every_kind_is_tried_both_ways():
    assert {c["kind"] for c, _, error in CASES if error is None} == set(KINDS)
    assert {c["kind"] for c, _, error in CASES if error is not None} == set(KINDS)


@pytest.mark.parametrize(("constraint", "text", "error"), CASES)
def test_met_or_broken_by_name(constraint, text, error):
    assert followed(text, case_of(constraint)).strict == (error,)


EXAMPLES = list({json.dumps(c, sort_keys=True): c for c, _, _ in CASES}.values())


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_blank_answer_breaks_every_constraint(text):
    found = followed(text, case_of(*EXAMPLES))
    assert set(found.strict) == set(found.loose) == {"empty"}


HOSTILE = {
    "letters": "a",
    "spaces": " ",
    "newlines": "\n",
    "stars": "*",
    "starred lines": "*\n",
    "brackets": "[",
    "braces": '{"a":',
    "angles": "<",
    "titles": "<<a>",
    "elements": "<a>",
    "fences": "```json\n",
    "ticks": "`",
    "bars": "|",
    "rules": "|-",
    "dots": ".",
    "initials": "A. ",
    "quotes": '"',
    "digits": "1",
    "numbers": "1. a\n",
    "commas": ",",
    "surrogates": "\ud800",
    "nulls": "\0",
    "mail": "a@",
    "marks": "\u0301",
    "postscripts": "p. ",
}
ONE_OF_EACH = list({(c["kind"], c.get("around")): c for c in EXAMPLES if c["kind"] != "regex"}.values())


def read_all(text, limit):
    for constraint in ONE_OF_EACH:
        verifier = READER.validate_python(constraint)
        began = time.process_time()
        verifier.broken(text)
        assert time.process_time() - began < limit, constraint


@pytest.mark.parametrize("name", HOSTILE)
def test_long_hostile_text_is_read_quickly(name):
    """With quadratic work it would take minutes."""
    read_all("a" + HOSTILE[name] * (100_000 // len(HOSTILE[name])) + "b", limit=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_is_read_in_seconds(name):
    read_all("a" + HOSTILE[name] * (1_000_000 // len(HOSTILE[name])) + "b", limit=30)


PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"', ":", ",", "*", "- ", "\n", " ", "<a>", "</a>", "<<", ">>", "```", "json", "|", "---",
     "a", "1", ". ", "!", "&b;", "<!DOCTYPE a [", "é", "\u0301", "\ud800", "\0", "P.S.", "Ａ", "END", "~~~", "? ", "%"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200))
def test_any_text_has_scores(text):
    case = case_of(*(c for c in EXAMPLES if c["kind"] not in ("regex", "language")))
    found = followed(text, case)
    for strict, loose, constraint in zip(found.strict, found.loose, case.constraints, strict=True):
        assert strict is None or strict == "empty" or strict.split(".")[0] == constraint.kind
        assert loose in (None, strict)


@pytest.mark.parametrize(
    ("source", "parses"),
    [
        ("(" * 5_000, False),
        ("-" * 50_000 + "1", False),
        ("+".join(["1"] * 30_000), False),
        ("x" + ".a" * 40_000, False),
        ("\0", False),
        ('x = "\\d"', True),
        ("[" * 5_000 + "]" * 5_000, False),
    ],
)
def test_code_that_strains_the_parser_has_a_score(source, parses):
    (error,) = followed(f"```python\n{source}\n```", case_of(PYTHON)).strict
    assert error == (None if parses else "code.does_not_parse")


def test_loosely_a_first_and_a_last_line_and_asterisks_may_be_there():
    case = case_of({"kind": "json"}, {"kind": "choice", "options": ["{}"]}, {"kind": "no_commas"})
    found = followed("Here, you are:\n*{}*\nBye", case)
    assert found.strict == ("json.not_json", "choice", "no_commas")
    assert found.loose == (None, None, None)
    assert variants("a\nb\nc") == ["a\nb\nc", "b\nc", "a\nb", "b"]
    assert variants("") == [""]


def test_the_metrics_and_the_first_constraint_that_broke(tmp_path, answer):
    constraints = [{"kind": "words", "max": 3}, {"kind": "no_commas"}, {"kind": "quoted"}]
    constraints.append({"kind": "letter", "letter": "a", "min": 1})
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "p", "constraints": constraints}))
    suite = FormatSuite("f", path)
    (item,) = suite.items()
    scores = suite.score(item, [answer("Well, then:\na b c")])
    assert [(s.metric, s.value, s.error_class) for s in scores] == [
        ("correct", 0.0, "words.too_many"),
        ("constraints", 0.25, None),
        ("correct_loose", 0.0, "quoted"),
        ("constraints_loose", 0.75, None),
    ]
    assert item.metric == "correct"


@pytest.mark.parametrize(
    ("constraint", "complaint"),
    [
        ({"kind": "not_a_rule"}, "not_a_rule"),
        ({"kind": "words"}, "`min`, `max` or both"),
        ({"kind": "words", "min": 3, "max": 2}, "`min` is above `max`"),
        ({"kind": "words", "relation": "less than", "max": 2}, "unknown key"),
        ({"kind": "words", "min": -1}, "min"),
        ({"kind": "code", "language": "cobol"}, "'cobol' cannot be parsed here, only python"),
        ({"kind": "language", "language": "xx"}, "language 'xx' is not among"),
        ({"kind": "casing", "case": "lower", "language": "xx"}, "language 'xx' is not among"),
        ({"kind": "json", "schema": {"type": "int"}}, "not a JSON Schema"),
        ({"kind": "json", "schema": {"$ref": "http://127.0.0.1:9/a"}}, "leads out of the schema"),
        ({"kind": "regex", "pattern": "("}, "not a pattern"),
        ({"kind": "choice", "options": ["a "]}, "begins or ends with spaces"),
        ({"kind": "include", "words": [" "]}, "a word is blank"),
        ({"kind": "paragraph_start", "paragraph": 3, "of": 2, "word": "a"}, "beyond `of`"),
        ({"kind": "paragraph_start", "paragraph": 1, "of": 2, "word": "a b"}, "one word"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_its_line(tmp_path, constraint, complaint):
    path = tmp_path / "cases.jsonl"
    path.write_text("\n" + json.dumps({"id": "a", "prompt": "p", "constraints": [constraint]}))
    with pytest.raises(ConfigError, match=complaint) as caught:
        FormatSuite("f", path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "constraints.0" in str(caught.value)


def test_a_case_verifies_something():
    with pytest.raises(ValidationError, match="`constraints` or a `check`"):
        case_of()


def test_every_kind_is_read_by_its_name():
    with pytest.raises(ValidationError):
        READER.validate_python({"min": 1})
    assert len(KINDS) == len(set(KINDS)) == 37
