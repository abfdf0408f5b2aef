"""Prompts that begin with a beginning-of-sequence token too many or too few are counted and named (LM07)."""

import pytest

from evalsvc.beginnings import beginnings, flaws, in_words
from evalsvc.engine.requests import GenerateRequest, RollingRequest, ScoreRequest


class Tokens:
    """A prompt begins with as many tokens as it has letters b at its start."""

    def __init__(self, adds=True):
        self.adds_bos = adds

    def begins(self, prompt, tools=()):
        return None if prompt == "refused" else len(prompt) - len(prompt.lstrip("b"))


ASKED = [
    *[GenerateRequest(prompt=prompt, max_tokens=1) for prompt in ("b one", "bb two", "none", "refused")],
    ScoreRequest(context="b three", continuations=("x", "y")),
    ScoreRequest(context="", contexts=("b four", "bb five"), continuations=("x", "y")),
    ScoreRequest(context="", continuations=("x",)),
    RollingRequest(text="b six"),
]


def test_every_prompt_is_counted_by_how_it_begins():
    found = beginnings(Tokens(), ASKED)
    assert found == {"tokenizer_adds": True, "prompts": {"0": 1, "1": 4, "2": 2}}
    assert flaws(found) == [
        "2 of 7 prompts begin with more than one beginning-of-sequence token",
        "1 of 7 prompts begin without the beginning-of-sequence token that the tokenizer adds to plain text",
    ]
    assert in_words(found) == (
        "1 with no beginning-of-sequence token, 4 with one, 2 with 2 (the tokenizer adds one to plain text)"
    )


@pytest.mark.parametrize(
    ("adds", "prompts", "count"), [(True, "b", 0), (False, "", 0), (False, "b", 0), (False, "bb", 1), (True, "", 1)]
)
def test_one_is_right_and_none_where_the_tokenizer_adds_none(adds, prompts, count):
    found = beginnings(Tokens(adds), [GenerateRequest(prompt=f"{prompts} x", max_tokens=1)] * 3)
    assert len(flaws(found)) == count


def test_nothing_is_said_of_a_tokenizer_without_such_a_token():
    assert beginnings(Tokens(None), ASKED) is None and flaws(None) == [] and in_words(None) is None
