"""Failure modes: each seen where it is, none in ordinary text, quickly in a megabyte, and never with a crash."""

import csv
import gzip
import json
import random
import string
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc import modes
from evalsvc.engine.requests import GenerateRequest, ScoreRequest
from evalsvc.suites.base import Item
from evalsvc.suites.degenerate import (
    bits_per_character,
    failure_scores,
    failures,
    prompt_text,
)
from evalsvc.suites.loops import loop_start
from evalsvc.suites.scripts import letters_by_script

SHARED = Path(__file__).parents[4] / "shared" / "data"
PROSE = (
    "The old mill stands where the river turns south, and its wheel has not moved for thirty years. In spring the "
    "children of the village come here to look for frogs; in autumn nobody comes, and the door bangs in the wind. "
)
RNG = random.Random(3)
NOISE = "".join(RNG.choice(string.printable[:94] + "äöüßñçéèêàøåłžš") for _ in range(600))
SALAD = "".join(chr(RNG.choice((97, 0x430, 0x3B1, 0x5D0, 0x627, 0x905, 0xE01)) + RNG.randrange(24)) for _ in range(600))
WORDS = [f"{word}{chr(97 + n % 26)}{chr(97 + n // 26)}" for n, word in enumerate(PROSE.split() * 8)]
CHINESE = "河边的老磨坊已经三十年没有转动了。春天孩子们来这里找青蛙，秋天没有人来，门在风中作响。"


@pytest.mark.parametrize(
    ("text", "finish", "prompt", "shown"),
    [
        ("yes", "stop", "Is it?", set()),
        (PROSE, "stop", "Tell me of the mill.", set()),
        ("", "stop", "Is it?", {"empty"}),
        (" \n\t", "length", "Is it?", {"empty", "truncated"}),
        ("The old", "length", "Tell me.", {"truncated"}),
        (PROSE + "and then " * 20, "length", "Tell me.", {"truncated", "repetition"}),
        (PROSE + PROSE.upper() + PROSE * 4, "stop", "Tell me.", {"repetition"}),
        ("the " * 30, "stop", "Tell me.", {"repetition"}),
        ("!" * 300, "stop", "Tell me.", {"repetition", "gibberish"}),
        ("-" * 80, "stop", "Tell me.", set()),
        ("好的" * 100, "stop", "你好吗", {"repetition", "gibberish"}),
        ("no, no, no, no!", "stop", "Tell me.", set()),
        (NOISE, "stop", "Tell me.", {"gibberish"}),
        (SALAD, "stop", "Tell me.", {"gibberish", "language_switch"}),
        ("a fine \ufffd day", "stop", "Tell me.", {"broken_text"}),
        ("a fine \ud83d day", "stop", "Tell me.", {"broken_text"}),
        ("a fine 😀 day", "stop", "Tell me.", set()),
        *((f"Well.{mark}", "stop", "Tell me.", {"special_tokens"}) for mark in (
            "<|im_end|>", "</s>", "<s>", "[/INST]", "[INST]", "<|eot_id|>", "<|endoftext|>", "<pad>", "<eos>",
            "<end_of_turn>", "<|im_start|>user", "<<SYS>>", "<｜end▁of▁sentence｜>",
        )),
        ("Use <s>old</s> text", "stop", "How is text struck out?", set()),
        ("</s> ends it", "stop", "What does </s> do in HTML?", set()),
        ("<|tool_calls_section_begin|>", "stop", "Call it.", set()),
        ("<｜tool▁calls▁begin｜>", "stop", "Call it.", set()),
        ("<|channel|>final<|message|>Yes.<|return|>", "stop", "Is it?", set()),
        ("Yes.<|end|>", "stop", "Is it?", {"special_tokens"}),
        ("a <| b |> c", "stop", "What is a pipe?", set()),
        ("<think>Let me see.", "length", "Tell me.", {"truncated", "endless_thinking"}),
        ("Let me see.", "length", "Tell me.<think>\n", {"truncated", "endless_thinking"}),
        ("Let me see.</think>It is.", "stop", "Tell me.<think>\n", set()),
        ("<think>Let me see.</think>It is.", "stop", "Tell me.", set()),
        ("<think>a</think>b<think>c", "stop", "Tell me.", {"endless_thinking"}),
        (CHINESE, "stop", "Tell me of the mill.", {"language_switch"}),
        (CHINESE, "stop", "Tell me of the mill in Chinese.", set()),
        (CHINESE, "stop", "讲讲磨坊", set()),
        (PROSE * 2 + CHINESE * 3, "stop", "Tell me of the mill.", {"language_switch"}),
        (" ".join(WORDS) + CHINESE * 3, "stop", "Tell me of the mill.", {"language_switch"}),
        (PROSE + "It is called 磨坊 there.", "stop", "Tell me of the mill.", set()),
        (PROSE, "stop", "讲讲磨坊", {"language_switch"}),
        ("磨坊叫做 old mill", "stop", "讲讲磨坊", set()),
        ("こんにちは、元気ですか。今日はいい天気です。", "stop", "日本のことばで", set()),
        ("こんにちは、元気ですか。今日はいい天気です。", "stop", "讲讲磨坊", {"language_switch"}),
        ("α + β = γ", "stop", "Name three angles.", set()),
        ("I'm sorry, but I can't help with that.", "stop", "Tell me.", {"refusal"}),
        ("As an AI language model, I do not eat.", "stop", "Tell me.", {"refusal"}),
        ("I cannot assist with that request.", "stop", "Tell me.", {"refusal"}),
        ("She said: yes. I can help.", "stop", "Tell me.", set()),
    ],
)  # fmt: skip
def test_each_mode_is_seen_where_it_is(text, finish, prompt, shown):
    assert {name for name in failures(text, finish, prompt) if "." not in name} == shown


def test_a_loop_is_found_with_its_first_character():
    for after in ("", PROSE):
        found = loop_start(PROSE + "so it goes. " * 10 + after)
        assert found == len(PROSE) - 2  # the ". " before the first "so" is that of the loop
    assert failures(PROSE + "x1 " * 60, "stop", "p")["repetition.start"] == len(PROSE) - 1
    assert loop_start("绿色" + "草地" * 100) == 2
    assert loop_start("\n".join(f"{n}. entry" for n in range(60))) is None
    assert loop_start("\n".join(f"| {n} | {n * n} |" for n in range(200))) is None
    long = " ".join(f"w{RNG.randrange(10_000)}" for _ in range(200)) + " "
    assert loop_start(long * 3) is None
    assert loop_start(long * 4) == 0


def gold_texts():
    for line in (SHARED / "gsm8k" / "test.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["question"], row["answer"]
    with gzip.open(SHARED / "humaneval" / "HumanEval.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            yield row["prompt"], row["prompt"] + row["canonical_solution"]
    for line in (SHARED / "ifeval" / "input_data.jsonl").read_text().splitlines():
        yield "Repeat it.", json.loads(line)["prompt"]
    for path in sorted((SHARED / "mmlu").glob("*_test.csv")):
        with path.open(newline="") as rows:
            yield from (("Repeat it.", row[0]) for row in csv.reader(rows))


@pytest.mark.skipif(not SHARED.exists(), reason="needs shared/data")
def test_people_and_their_code_fail_in_hardly_any_way():
    counts = dict.fromkeys(modes.MODES, 0)
    n = 0
    for prompt, text in gold_texts():
        n += 1
        for name in failures(text, "stop", prompt):
            counts[name] = counts.get(name, 0) + 1
    assert n > 2_500
    assert sum(counts.values()) <= n * 0.002, counts


HOSTILE = [
    "a", " ", "\n", "<", "<|", "<think>", "</s>", "[INST]", "i am sorry ", "好", "\ud800", "\0", "ab cd ", "<|aa",
    "1.", "｜",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_megabyte_is_looked_at_quickly(unit):
    text = "x" + unit * (1_000_000 // len(unit))
    began = time.process_time()
    assert failures(text, "stop", text[:1000])["repetition"] == 1.0
    assert time.process_time() - began < 30


def test_a_megabyte_without_a_loop_is_looked_at_quickly():
    words = [f"w{RNG.randrange(50_000)}" for _ in range(150_000)]
    began = time.process_time()
    assert failures(" ".join(words), "stop", "p") == {}
    assert time.process_time() - began < 30


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=400) | st.lists(st.sampled_from([*HOSTILE, "</think>", "."]), max_size=80).map("".join), st.text()
)
def test_any_text_can_be_looked_at(text, prompt):
    found = failures(text, None, prompt)
    assert {name for name in found if "." not in name} <= set(modes.MODES)
    assert ("repetition" in found) == ("repetition.start" in found)
    assert 0 <= found.get("repetition.start", 0) <= max(len(text) - 1, 0)
    assert ("empty" in found) == (not text.strip())


def test_entropy_is_that_of_the_formula_and_a_baseline_moves_what_is_ordinary():
    assert bits_per_character("") == 0
    assert bits_per_character("aaaa") == 0
    assert bits_per_character("abABcdcd") == pytest.approx(2)
    narrow = modes.ordinary([bits_per_character(PROSE[i:] + PROSE[:i]) for i in range(30)])
    assert narrow is not None and narrow.low < bits_per_character(PROSE) < narrow.high
    assert narrow.high - narrow.low == pytest.approx(1)
    assert modes.ordinary([4.0] * 19) is None
    code = "{}[]()<>;:=+-*/&|^%$#@!0123456789abcdefghijklmnopqrstuvwxyz" * 4
    assert "gibberish" in failures(code, "stop", "p", narrow)
    assert "gibberish" in failures(code, "stop", "p")
    assert "gibberish" not in failures(code, "stop", "p", modes.Span(2, 7))


def test_scripts_are_told_apart():
    text = "ab αβ АБ 漢字 かな 한글 שלום सब 1,2 😀"
    assert letters_by_script(text) == {
        "Latin": 2, "Greek": 2, "Cyrillic": 2, "Han": 2, "Kana": 2, "Hangul": 2, "Hebrew": 4, "Devanagari": 2,
    }  # fmt: skip


def test_a_prompt_of_messages_is_its_contents():
    parts = [{"type": "text", "text": "b"}, {"type": "image"}]
    assert prompt_text([{"role": "system", "content": "讲"}, {"role": "user", "content": parts}]) == "讲\nb"
    assert prompt_text([{"role": "assistant", "content": None}]) == ""
    assert prompt_text([1, 2]) == ""


def test_scores_of_an_answer_hold_what_is_shown_and_whether_anything_is(answer, ranking):
    item = Item(id="a", family="f", cluster="", sha256="h", metric="exact", filter="strip")
    request = GenerateRequest(prompt="Tell me.", max_tokens=9)

    def scored(*answers):
        return [(s.metric, s.value, s.filter, s.error_class) for s in failure_scores(item, request, answers)]

    assert scored(answer("Well.")) == [("failure.any", 0.0, "strip", None)]
    assert scored(answer("")) == [("failure.any", 1.0, "strip", "empty"), ("failure.empty", 1.0, "strip", None)]
    assert {m for m, *_ in scored(answer("<eos>"), answer("Well."))} == {"failure.any", "failure.special_tokens"}
    looping = {m: v for m, v, *_ in scored(answer("x " * 99))}
    assert looping["failure.repetition.start"] == 0
    assert failure_scores(item, ScoreRequest(context="c", continuations=["a"]), [ranking(-1.0)]) == []
    opposites = {metric.replace("failure.", "free_of.") for metric in modes.METRICS}
    assert set(modes.filled({"failure.any": 0.0, "acc": 1.0})) == {"acc", *modes.METRICS, *opposites}
    assert modes.filled({"acc": 1.0}) == {"acc": 1.0}


def test_entropies_of_long_answers_are_stored_and_those_of_short_ones_are_not(answer):
    item = Item(id="a", family="f", cluster="", sha256="h", metric="")
    request = GenerateRequest(prompt="Tell me.", max_tokens=200)

    def entropies(text, ids):
        found = {s.metric: s.value for s in failure_scores(item, request, [replace(answer(text), token_ids=ids)])}
        return [found.get(metric) for metric in modes.ENTROPIES]

    assert entropies("Well.", (1, 2)) == [None, None]
    assert entropies(PROSE[:300], tuple(range(128))) == [bits_per_character(PROSE[:300]), 6.0]
    assert entropies("Well.", (7,) * 64) == [None, 0.0]


def test_gibberish_beside_a_baseline_is_what_its_answers_are_not():
    """Text of letters only looks ordinary by itself; beside answers in prose it does not."""
    per_character, per_token = modes.ENTROPIES
    usual = [{"failure.any": 0.0, per_character: 4.1 + i / 100, per_token: 5.2 + i / 100} for i in range(20)]
    ranges = modes.spans(usual)
    assert ranges.keys() == set(modes.ENTROPIES) and modes.spans(usual[:19]) == {}
    for odd in ({per_character: 5.5}, {per_token: 2.0}):
        found = modes.beside_baseline({"failure.any": 0.0} | odd, ranges)
        assert (found["failure.gibberish"], found["failure.any"]) == (1.0, 1.0)
        assert modes.filled(found)["free_of.gibberish"] == 0.0
    assert all(modes.beside_baseline(scores, ranges) == scores for scores in usual)
    assert modes.beside_baseline({"acc": 1.0}, ranges) == {"acc": 1.0}
