"""What is asked of every arm, and the hashes by which stored answers are paired."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from evalsvc.engine.requests import Answer, GenerateRequest, RollingRequest, ScoreRequest
from evalsvc.errors import ConfigError
from evalsvc.questions import WHAT_AND_WHOM, Question, questions, request_hash, seeded, settings_hash
from evalsvc.suites.base import Asked, Item, Score

GENERATE = GenerateRequest(prompt="abc", max_tokens=4, stop=("\n",))
SCORE = ScoreRequest(context="abc", continuations=("d", "e"))
HOW: dict[str, Any] = {
    "max_tokens": 5,
    "stop": ("\n", "x"),
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "n": 2,
    "logprobs": 0,
    "deadline_s": 1.0,
    "tools": ({"name": "look"},),
    "keep_special": True,
    "ignore_eos": True,
}
HOW_SCORED: dict[str, Any] = {"through": "decode", "top_logprobs": 2, "compare_with": "a", "deadline_s": 1.0}


def item(name: str, **given: Any) -> Item:
    return Item(**{"id": name, "family": "f", "cluster": "", "sha256": f"h-{name}", "metric": "correct"} | given)


class FakeSuite:
    """Asks `turns` times for each item."""

    scoring_version = "fake-1"

    def __init__(self, items: Sequence[Item], turns: int = 1, name: str = "fake") -> None:
        self.name, self.turns, self._items = name, turns, items

    def items(self) -> Sequence[Item]:
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Asked | None:
        return GENERATE if len(answers) < self.turns else None

    def score(self, item: Item, answers: Sequence[Answer]) -> Sequence[Score]:
        return []


def ask(count: int, throughs: Sequence[str]) -> list[Question]:
    return questions([FakeSuite([item(f"i{n:02}") for n in range(count)])], throughs)


def test_generations_are_asked_once_whatever_the_stages():
    assert [question.through for question in ask(2, throughs=("prefill", "decode"))] == ["", ""]


def test_hashes_are_those_of_every_database_written_so_far():
    assert request_hash(GENERATE) == "f174bef036403cf5995766a32241cbc1e1411e8dcfb124b6066c4f875df7c387"
    assert settings_hash(GENERATE) == "27727380c9ef39e70329170ae28472c54febd98920238f058e761b42cfc914f5"
    assert request_hash(SCORE) == "b5deb3547549052d6a378dffe241eaa4180f48106222be387a24f94b515813f9"
    assert settings_hash(SCORE) == "177a3a67c169409a62ce1bccd6dbf5e1f658c0c32c43e92148597f7cf56eefd2"
    decoded = replace(SCORE, through="decode")
    assert settings_hash(decoded) == "6edb60026965fad313d9936df4f1376b376cbbc3bb7faff5103c71616be46f1f"


@pytest.mark.parametrize(("request_", "how"), [(GENERATE, HOW), (SCORE, HOW_SCORED)], ids=["generate", "score"])
def test_whatever_could_change_an_answer_changes_the_settings_hash(request_, how):
    assert set(how) == {field.name for field in fields(request_)} - WHAT_AND_WHOM
    changed = {settings_hash(replace(request_, **{name: value})) for name, value in how.items()}
    assert len(changed | {settings_hash(request_)}) == len(how) + 1
    assert {request_hash(replace(request_, **{name: value})) for name, value in how.items()} == {request_hash(request_)}


def test_who_is_asked_and_what_is_no_setting_and_a_whole_number_is_one():
    same = replace(GENERATE, arms=("a",), id="other", prompt="x", temperature=0, stop=["\n"], top_p=1)
    assert settings_hash(same) == settings_hash(GENERATE)
    assert settings_hash(replace(SCORE, context="x", continuations=("y",), arms=("a",))) == settings_hash(SCORE)


def test_the_request_hash_holds_what_was_asked():
    assert request_hash(GENERATE) == request_hash(replace(GENERATE, arms=("a",), id="other"))
    assert request_hash(GENERATE) != request_hash(replace(GENERATE, prompt="abd"))
    assert request_hash(SCORE) == request_hash(replace(SCORE, arms=("a",), id="other"))
    assert request_hash(SCORE) != request_hash(replace(SCORE, continuations=("e", "d")))
    assert request_hash(SCORE) != request_hash(GENERATE)
    assert request_hash(replace(GENERATE, prompt=[1, 2])) != request_hash(replace(GENERATE, prompt="[1, 2]"))


@pytest.mark.parametrize("other", [item("same"), item("same", sha256="another document")])
def test_one_item_twice_is_refused(other):
    with pytest.raises(ConfigError, match="suite fake: item same stands in it twice"):
        questions([FakeSuite([item("first"), item("same"), other])], ("prefill",))


def test_contexts_of_their_own_are_part_of_what_was_asked():
    apart = replace(SCORE, contexts=("abc", "x"))
    assert request_hash(apart) not in (request_hash(SCORE), request_hash(replace(SCORE, contexts=("x", "abc"))))
    assert settings_hash(apart) == settings_hash(SCORE)


def test_a_whole_text_is_asked_through_each_stage():
    class Texts(FakeSuite):
        def next_request(self, item, answers):
            return RollingRequest(text=f"text of {item.id}")

    asked = questions([Texts([item("a"), item("b")])], ("prefill", "decode"))
    assert [(q.item.id, q.through, q.request.through) for q in asked] == [
        (name, through, through) for name in "ab" for through in ("prefill", "decode")
    ]
    assert len({q.key for q in asked}) == 4
    assert request_hash(RollingRequest(text="a")) != request_hash(RollingRequest(text="b"))


def test_repeats_of_a_sampled_item_have_seeds_of_their_own_that_only_item_repeat_and_turn_decide():
    class Sampled(FakeSuite):
        def next_request(self, item, answers):
            return replace(GENERATE, temperature=0.7)

    suite = Sampled([item("a", repeats=3), item("b", repeats=3)])
    asked = questions([suite], ("prefill",))
    assert [(q.item.id, q.repeat) for q in asked] == [(name, repeat) for name in "ab" for repeat in range(3)]
    assert len({q.request.seed for q in asked}) == 6 and len({q.key for q in asked}) == 6
    assert [q.key for q in questions([suite], ("prefill",))] == [q.key for q in asked]
    first = seeded(asked[0].request, suite, asked[0].item, 0)
    assert first == asked[0].request and first.seed != seeded(first, suite, asked[0].item, 0, turn=1).seed
    assert seeded(GENERATE, suite, asked[0].item, 2) is GENERATE, "a greedy answer has no seed"


def test_one_item_in_two_suites_is_two_questions():
    suites = [FakeSuite([item("same")], name=name) for name in ("one", "two")]
    assert len(questions(suites, ("prefill",))) == 2


def test_nothing_to_ask_is_refused():
    with pytest.raises(ConfigError, match="hold no item"):
        questions([FakeSuite([])], ("prefill",))
    with pytest.raises(ConfigError, match="item i asks nothing"):
        questions([FakeSuite([item("i")], turns=0)], ("prefill",))
