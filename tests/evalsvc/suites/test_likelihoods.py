"""Log-likelihoods that no model can give are errors, and those that one can are not."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc.engine.requests import RollingRequest, ScoreRequest, ScoreResult
from evalsvc.suites.likelihoods import impossible, impossible_answer

ASKED = ScoreRequest(context="Q: 1+1?\nA:", continuations=(" 2", " 3", " 11", " 111"))


def result(*logprobs, tokens=None, scored=None):
    tokens = tuple(1 for _ in logprobs) if tokens is None else tokens
    return ScoreResult(
        id="",
        logprobs=logprobs,
        greedy=tuple(False for _ in logprobs),
        continuation_tokens=tokens,
        prompt_tokens=9,
        prompt_sha256="",
        stage_tokens={"prefill": sum(tokens) if scored is None else scored, "decode": 0},
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (result(0.0, 0.0, 0.0, 0.0), "all 4 log-likelihoods are 0"),
        (result(0.0, 0.0, 0.0, 0.0, tokens=(1, 1, 2, 2), scored=1), "log-probabilities of 1 tokens came, and 6 were"),
        (result(-1.0, -2.0, -3.0), "3 log-likelihoods came of 4"),
        (result(-1.0, -2.0, 3.5, -1.0), "is 3.5, above 0"),
        (result(-0.1, -0.1, -0.2, -0.2), "probabilities of 3 choices that exclude each other sum to 2.63"),
    ],
)
def test_lm22_what_no_model_can_answer_is_named(answer, says):
    """The fourth choice begins with the third, so that both may be likely."""
    assert says in str(impossible_answer(ASKED, answer))


@pytest.mark.parametrize(
    "answer",
    [
        result(-1.0, -2.0, -1.5, -1.5),
        result(0.0, -20.0, -30.0, -40.0),
        result(-2.0, -2.0, -2.0, -2.0),
        result(float("-inf"), float("-inf"), -1.0, -1.0),
        result(float("nan"), -1.0, -2.0, -3.0),
        replace(result(-1.0, -2.0, -1.5, -1.5), continuation_tokens=()),
    ],
)
def test_what_a_model_can_answer_is_left_to_the_metric(answer):
    """Ties at any likelihood but certainty, one choice that is certain, and answers that are read back."""
    assert impossible_answer(ASKED, answer) is None


def test_one_text_may_be_certain_and_choices_after_contexts_of_their_own_may_all_be_likely():
    assert impossible_answer(replace(ASKED, continuations=(" 2",)), result(0.0)) is None
    assert impossible_answer(RollingRequest(text="a"), result(-7.0, tokens=(3,))) is None
    assert "came of 1" in str(impossible_answer(RollingRequest(text="a"), result(-7.0, -1.0)))
    asked = replace(ASKED, contexts=("a", "b", "c", "d"))
    assert impossible_answer(asked, result(-0.1, -0.1, -0.1, -0.1)) is None


@given(
    logits=st.lists(st.floats(-40, 40), min_size=2, max_size=12),
    texts=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=12),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_chain_of_distributions_gives_is_possible(logits, texts):
    """Each text is written letter by letter from one distribution over two letters."""
    top = max(logits[:2])
    total = top + math.log(sum(math.exp(value - top) for value in logits[:2]))
    letters = {letter: logits[n] - total for n, letter in enumerate("ab")}
    logprobs = [sum(letters[letter] for letter in text) for text in texts]
    said = impossible(["c"] * len(texts), texts, logprobs)
    assert said is None or "are 0" in said  # of letters that are certain to the last bit
