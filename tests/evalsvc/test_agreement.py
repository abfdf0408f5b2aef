"""Answers side by side: what counts as the same, where they part, and what is left out."""

import json

import pytest

from evalsvc.agreement import compare
from evalsvc.store.records import StoredAnswer, Turn
from evalsvc.verdict.paired import wilson_interval


def answer(name, text, *, family="f", finish="stop", tokens=None, **changes):
    given = {
        "sample_id": 1,
        "suite": "own",
        "family": family,
        "item_id": name,
        "item_hash": "h",
        "metric": "",
        "filter": "none",
        "scored_by": "generation",
        "request_hash": "r",
        "rendered_hash": None,
        "through": "",
        "repeat": 0,
        "status": "scored",
        "prompt": "p",
        "answer": text,
        "finish_reason": finish,
        "prompt_tokens": 3,
        "answer_tokens": len(text.split()),
        "stage_tokens": {},
        "handed_over": True,
        "timings": {},
        "turns": () if tokens is None else (Turn(None, None, tokens),),
    }
    return StoredAnswer(**given | changes)


def of_two(ours, theirs, **fields):
    """The one compared answer."""
    _, (found,) = compare([answer("a", ours, **fields)], [answer("a", theirs, **fields)])
    return found


def test_shares_carry_their_wilson_interval():
    texts = [("same", "same")] * 7 + [("one two", "one three")] * 3
    ours, theirs = ([answer(str(i), pair[side]) for i, pair in enumerate(texts)] for side in (0, 1))
    (row,), compared = compare(ours, theirs)
    assert (row.same_text.count, row.same_text.n, row.same_text.share) == (7, 10, 0.7) and len(compared) == 10
    assert (row.same_text.low, row.same_text.high) == wilson_interval(7, 10, 0.95)
    assert row.parting == {"characters": 5.0, "words": 1.0, "tokens": None} and row.length_ratio == 1.0


@pytest.mark.parametrize(
    ("ours", "theirs", "characters", "words"),
    [
        ("one two", "one two three", 7, 2),
        ("one two three", "one two", 7, 2),
        ("", "x", 0, 0),
        ("a  b", "a b", 2, 2),
        ("naïve", "naive", 2, 0),
        ("😀a", "😀b", 1, 0),
    ],
)
def test_where_answers_part(ours, theirs, characters, words):
    parting = of_two(ours, theirs).parting
    assert (parting.characters, parting.words, parting.tokens) == (characters, words, None)


def test_tokens_are_compared_where_both_are_stored():
    ours, theirs = answer("a", "x y", tokens=(5, 6, 7)), answer("a", "x z", tokens=(5, 6, 8))
    assert compare([ours], [theirs])[1][0].parting.tokens == 2
    assert compare([ours], [answer("a", "x z")])[1][0].parting.tokens is None


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ('{"a": 1, "b": 2}', ' {"b": 2,\n "a": 1}', True),
        ('{"a": 1}', '{"a": 1.0}', False),
        ('{"a": 1}', '{"a": 1', False),
        ("no json", '{"a": 1}', None),
        ("42", "43", None),
        ('{"name": "f", "arguments": {"x": [1]}}', '{"name": "f", "arguments": {"x": [1, 2]}}', False),
    ],
)
def test_json_is_compared_by_its_value_where_the_baseline_has_some(ours, theirs, same):
    assert of_two(ours, theirs).same_json is same


def test_families_stand_under_their_suite_where_there_are_several():
    held = [answer("a", "x", family="one"), answer("b", "y", family="two"), answer("c", "z", suite="third")]
    rows, _ = compare(held, held)
    assert [(row.suite, row.family, row.same_text.n) for row in rows] == [
        ("own", None, 2),
        ("own", "one", 1),
        ("own", "two", 1),
        ("third", None, 1),
    ]


def test_errors_and_prompts_that_were_asked_otherwise_are_left_out_and_counted():
    ours = [answer(name, "x") for name in "abcd"]
    theirs = [answer("a", "x"), answer("b", "", status="error"), answer("c", "x", request_hash="other")]
    (row,), compared = compare(ours, theirs)
    assert (row.same_text.count, row.same_text.n, row.unanswered, row.unequal) == (1, 1, 2, 1) and len(compared) == 1


def test_choices_are_no_generated_answers():
    held = [answer("a", "{}", scored_by="loglikelihood")]
    assert compare(held, held) == ([], [])


def test_no_answer_at_all_has_no_share():
    (row,), _ = compare([answer("a", "x", status="error")], [answer("a", "x")])
    assert row.same_text.share is None and row.same_text.n == 0 and row.length_ratio is None


def test_repeats_are_compared_one_by_one():
    ours = [answer("a", "x", repeat=i) for i in range(3)]
    theirs = [answer("a", "xyx"[i], repeat=i) for i in range(3)]
    (row,), _ = compare(ours, theirs)
    assert (row.same_text.count, row.same_text.n) == (2, 3)


def test_ends_and_lengths():
    ours, theirs = answer("a", "one two", finish="stop"), answer("a", "one two three four", finish="length")
    (row,), _ = compare([ours], [theirs])
    assert row.same_finish.count == 0 and row.length_ratio == 2.0


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)


def listed(arguments, call_id="c1", name="f"):
    calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    return json.dumps({"content": "", "tool_calls": calls})


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (HERMES, HERMES.replace('"a": 1, "b": [2]', '"b": [2],  "a": 1'), True),
        (HERMES, f"Let me see. {HERMES}", True),
        (HERMES, HERMES.replace("1", "3"), False),
        (HERMES, HERMES.replace("1", "true"), False),
        (HERMES, HERMES * 2, False),
        (HERMES, HERMES[:-25], False),
        (HERMES, "Well.", False),
        ("Well.", HERMES, None),
        (HERMES[:-25], HERMES, None),
        (KIMI.format(0, '{"a": 1}'), KIMI.format(7, '{ "a" : 1 }'), True),
        ('{"name": "f", "arguments": {"a": 1}}', '{"arguments": {"a": 1}, "name": "f"}', True),
        ('{"name": "f", "arguments": {"a": 1}}', HERMES.replace(', "b": [2]', ""), True),
        ('{"a": 1}', '{"a": 1}', None),
        (listed('{"a": 1}'), listed('{"a":  1}', "other id"), True),
        (listed('{"a": 1}'), listed('{"a": 1}', name="g"), False),
        (listed('{"a": 1}'), listed('{"a": 1'), False),
    ],
)
def test_the_same_calls_are_known_by_what_they_call(ours, theirs, same):
    """Ids, spaces, the order of keys and the words around a call are no part of it."""
    assert of_two(ours, theirs).same_calls is same
    (row,), _ = compare([answer("a", ours)], [answer("a", theirs)])
    assert (row.same_calls.count, row.same_calls.n) == (int(same is True), int(same is not None))


def test_a_call_is_read_in_the_format_that_its_answer_was_scored_in():
    text = "[f(a=1)]"
    assert of_two(text, text, filter="pythonic").same_calls is True
    assert of_two(text, text, filter="hermes").same_calls is None
    assert of_two(text, text).same_calls is None, "without a mark nobody knows that it is a call"
