"""The public IFEval set: all of it mapped, and scored as IFEval's own checkers score it."""

import json
from pathlib import Path
from random import Random

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.case import FormatCase, followed
from evalsvc.suites.formats.ifeval import MAPPED, constraint_of, import_ifeval
from evalsvc.suites.formats.validate import validate

DATA = Path(__file__).parents[5] / "shared" / "data" / "ifeval" / "input_data.jsonl"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs shared/data/ifeval")
# Counted by rules of our own, or drawn at random by the reference (the letters `#` and `!`).
NOT_COMPARED = {"length_constraints:number_sentences"}


def rows():
    return [json.loads(line) for line in DATA.read_text().splitlines()]


def verdict(instruction, arguments, text, reading="strict"):
    case = {"id": "a", "prompt": "p", "constraints": [constraint_of(instruction, arguments)]}
    (error,) = getattr(followed(text, FormatCase.model_validate(case)), reading)
    return error is None


@needs_data
def test_the_whole_set_is_mapped(tmp_path):
    made = import_ifeval(DATA)
    assert len(made.cases) == 541
    assert made.left_out == {}
    path = tmp_path / "ifeval.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in made.cases))
    assert len(FormatSuite("ifeval", path).items()) == 541
    found = validate(path)
    assert (found.faults, found.problems) == (["ifeval-30: the constraint quoted is there twice"], [])


@needs_data
def test_if07_rows_whose_prompt_and_constraint_differ_are_noted_and_kept():
    made = import_ifeval(DATA)
    assert made.notes["337"] == "the prompt says 400 words, the constraint at least 336"
    assert 4 <= len(made.notes) <= 6
    assert "ifeval-337" in {case["id"] for case in made.cases}


@pytest.fixture(scope="module")
def reference():
    """lm-eval's checkers, kept from fetching a tokenizer's data; words are cut by the tokenizer that needs none."""
    pytest.importorskip("immutabledict")
    pytest.importorskip("langdetect")
    nltk = pytest.importorskip("nltk")
    patch = pytest.MonkeyPatch()
    patch.setattr(nltk, "download", lambda *args, **kwargs: False)
    patch.setattr(nltk, "word_tokenize", nltk.NLTKWordTokenizer().tokenize)
    from langdetect import DetectorFactory
    from lm_eval.tasks.ifeval import instructions_util, utils

    patch.setattr(DetectorFactory, "seed", 0)
    patch.setattr(instructions_util, "count_sentences", lambda text: 0)  # not compared
    yield utils
    patch.undo()


PIECES = [
    "* item", "*", "- item", "** two **", "*high light*", "**strong**", "***", "******", "[name]", "[a", "]",
    "<<title>>", "<<>>", "<<<x>>", "P.S. bye", "P.P.S. more", "p. s.", "SECTION 1", "Section 2", "PARAGRAPH 3",
    "Day 4", "\n\n", "\n", "\n\n\n", " ", '"', "'", '{"a": 1}', "```json", "```", '```\n{"a": 1}\n```', "NaN",
    "My answer is yes.", "HELLO", "My answer is no", "U.S.", "DON'T", "UP-TO-DATE", "Mr. Smith went.", "Wow!",
    "a, b", "1. First", "你好。", "नमस्ते दुनिया", "Ein schöner Tag im Wald.",
    "Is there anything else I can help with?", "\t", "\x0b", "\u2028", "...", "😀", "I AM THE KING.", "hello world",
    "summary, of", "  - x", " * y", "*\n* a", "\n*\n", "^", "(", "+",
]  # fmt: skip


def answer_to(prompt, rng):
    """The prompt again in some dress, or pieces of it among marks that the checkers look for."""
    whole = [prompt, prompt.upper(), prompt.lower(), f'"{prompt}"', f"{prompt}\n\n{rng.choice(PIECES) * 3}"]
    pieces = [rng.choice(PIECES + prompt.split() + prompt.split("\n")) for _ in range(rng.randint(0, 30))]
    return rng.choice([*whole, *[rng.choice([" ", "\n", "", "\n\n"]).join(pieces)] * 12])


def compared(row, reference, text):
    """Instruction, reading, their verdict and ours, for what is compared."""
    given = [dict(arguments) for arguments in row["kwargs"]]
    asked = reference.InputExample(row["key"], row["instruction_id_list"], row["prompt"], given)
    constraints = [constraint_of(name, a) for name, a in zip(row["instruction_id_list"], given, strict=True)]
    ours = followed(text, FormatCase.model_validate({"id": "a", "prompt": "p", "constraints": constraints}))
    for reading in ("strict", "loose"):
        judge = getattr(reference, f"test_instruction_following_{reading}")
        theirs = judge(asked, text).follow_instruction_list
        for name, arguments, right, error in zip(
            row["instruction_id_list"], given, theirs, getattr(ours, reading), strict=True
        ):
            if name not in NOT_COMPARED and arguments.get("letter") not in ("#", "!"):
                yield name, reading, bool(right), error is None


@needs_data
def test_every_verdict_is_that_of_the_published_checkers(reference):
    rng = Random(11)
    seen = {}
    for row in rows():
        if NOT_COMPARED.issuperset(row["instruction_id_list"]):
            continue
        for _ in range(2):
            text = answer_to(row["prompt"], rng)
            for name, reading, theirs, ours in compared(row, reference, text):
                assert ours == theirs, (row["key"], name, reading, text)
                seen.setdefault(name, set()).add(theirs)
    assert set(seen) | NOT_COMPARED == set(MAPPED)
    assert sum(verdicts == {True, False} for verdicts in seen.values()) >= 22


def test_if01_less_than_is_a_bound_below_the_number():
    arguments = {"relation": "less than", "num_words": 3}
    texts = ["one two", "one two three", "one two three four"]
    assert [verdict("length_constraints:number_words", arguments, text) for text in texts] == [True, False, False]


@pytest.mark.parametrize("relation", ["at most", "more than", "", None, 3])
@pytest.mark.parametrize(
    ("instruction", "count", "key"),
    [
        ("length_constraints:number_words", "num_words", "relation"),
        ("length_constraints:number_sentences", "num_sentences", "relation"),
        ("keywords:frequency", "frequency", "relation"),
        ("keywords:letter_frequency", "let_frequency", "let_relation"),
        ("change_case:capital_word_frequency", "capital_frequency", "capital_relation"),
    ],
)
def test_if01_a_relation_that_is_not_known_is_never_met(instruction, count, key, relation):
    with pytest.raises(ValueError, match=r"not known|missing"):
        constraint_of(instruction, {count: 3, key: relation, "keyword": "a", "letter": "a"})


def test_if03_an_instruction_that_is_not_known_is_left_out_by_name(tmp_path):
    row = {"key": 1, "prompt": "p", "instruction_id_list": ["detectable_format:not_a_rule"], "kwargs": [{}]}
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(row))
    assert import_ifeval(path).left_out == {"1": "the instruction detectable_format:not_a_rule is not known"}
    assert not verdict("detectable_format:number_bullet_lists", {"num_bullets": 3}, "no bullets at all")


@pytest.mark.parametrize("instruction", MAPPED)
def test_if03_an_argument_that_is_missing_is_never_made_up(instruction, tmp_path):
    """The published checkers draw a missing argument at random."""
    row = {"key": 1, "prompt": "p", "instruction_id_list": [instruction], "kwargs": [{}]}
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(row))
    made = import_ifeval(path)
    fixed = instruction in {
        "detectable_format:constrained_response", "detectable_format:json_format", "detectable_format:title",
        "combination:two_responses", "startend:quotation", "change_case:english_capital",
        "change_case:english_lowercase", "punctuation:no_comma",
    }  # fmt: skip
    assert bool(made.cases) is fixed
    assert fixed or "wrong or missing argument" in made.left_out["1"]


def test_if05_keywords_are_looked_for_as_the_public_set_does():
    text = "Art starts with a smart part."
    assert not verdict("keywords:frequency", {"keyword": "art", "relation": "less than", "frequency": 2}, text)
    assert verdict("keywords:frequency", {"keyword": "C++", "relation": "at least", "frequency": 1}, "in C++.")
    assert verdict("keywords:existence", {"keywords": ["C++", "(a"]}, "c++ (A")
    assert verdict("keywords:forbidden_words", {"forbidden_words": ["art", "[x"]}, "a smart part")


def test_if07_the_constraints_number_counts_and_not_the_prompts():
    words = " ".join(["bees"] * 350)
    assert verdict("length_constraints:number_words", {"relation": "at least", "num_words": 336}, words)


WORDLESS = ["...", "😀", "---", "*", "\u200b", "\u2028", "!?", "***\n***", "\ufffd", '""', "<>"]
CONSTRAINTS = [
    {"kind": "stop_words", "max_percent": 50},
    {"kind": "stop_words", "max_percent": 0},
    {"kind": "no_commas"},
    {"kind": "words", "max": 3},
    {"kind": "sentences", "max": 3},
    {"kind": "capital_words", "max": 3},
    {"kind": "paragraph_start", "paragraph": 1, "of": 1, "word": "a"},
    {"kind": "language", "language": "en"},
    {"kind": "casing", "case": "lower", "language": "en"},
    {"kind": "letter", "letter": "a", "max": 3},
    {"kind": "frequency", "word": "a", "max": 3},
]


@pytest.mark.parametrize("text", WORDLESS)
def test_if09_an_answer_without_a_word_breaks_what_counts_words_and_nothing_else(text):
    """No quotient of nothing: a share of stop words is not followed, and all other verdicts are kept."""
    case = FormatCase.model_validate({"id": "a", "prompt": "p", "constraints": CONSTRAINTS})
    for found in (followed(text, case), followed(f"{text}\nIt is the one.\n{text}", case)):
        assert len(found.strict) == len(found.loose) == len(CONSTRAINTS)
    strict = followed(text, case).strict
    blank = not text.strip()
    assert strict[:4] == (("empty",) * 4 if blank else ("stop_words.no_words", "stop_words.no_words", None, None))


@pytest.mark.parametrize("instruction", MAPPED)
@pytest.mark.parametrize("text", WORDLESS)
def test_if09_no_constraint_of_the_set_fails_on_an_answer_without_a_word(instruction, text):
    given = {
        "keywords": ["a"], "forbidden_words": ["a"], "keyword": "a", "letter": "a", "language": "en",
        "first_word": "a", "postscript_marker": "P.S.", "section_spliter": "Section", "prompt_to_repeat": "p",
        "end_phrase": "x", "relation": "at least", "let_relation": "at least", "capital_relation": "at least",
        **dict.fromkeys(
            ("frequency", "let_frequency", "num_words", "num_sentences", "num_paragraphs", "nth_paragraph",
             "num_placeholders", "num_bullets", "num_highlights", "num_sections", "capital_frequency"), 1,
        ),
    }  # fmt: skip
    assert verdict(instruction, given, text) in (True, False)
    assert verdict(instruction, given, text, "loose") in (True, False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no prompts"),
        ("{", ":1: is no JSON: .*; each line holds one object"),
        ('{"key": 1, "prompt": "p", "instruction_id_list": ["a"], "kwargs": [{"n": NaN}]}', ":1: NaN is no number"),
        ("[]", ":1: not a prompt of IFEval"),
        ('{"key": 1, "prompt": "p", "instruction_id_list": ["a"], "kwargs": []}', "two lists of one length"),
        ('{"key": 1, "prompt": 3, "instruction_id_list": [], "kwargs": []}', ":1: "),
    ],
)
def test_another_file_is_refused(tmp_path, text, complaint):
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        import_ifeval(path)
