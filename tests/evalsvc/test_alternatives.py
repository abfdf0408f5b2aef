"""The likeliest tokens at each generated token, as the database holds them."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.alternatives import Alternative, at, pack, unpack
from evalsvc.engine.requests import GenerateResult, TokenLogprobs

TOKENS = st.integers(0, 2**32 - 1)


def answer(*places, texts=None, logprobs=True) -> GenerateResult:
    """One whose tokens have these likeliest ones."""
    entries = tuple(TokenLogprobs(top[0][0], top[0][1], tuple(top)) for top in places)
    return GenerateResult(
        id="i",
        text="t",
        token_ids=tuple(entry.token for entry in entries),
        logprobs=entries if logprobs else None,
        texts=texts or {},
        prompt_tokens=1,
        prompt_sha256="p",
        finish_reason="stop",
        stage_tokens={"prefill": 1, "decode": 0},
    )


@given(st.data(), st.integers(1, 5), st.integers(1, 20))
def test_what_is_packed_comes_back_in_its_order(data, named, count):
    top = st.lists(st.tuples(TOKENS, st.floats(-40, 0)), min_size=named, max_size=named)
    places = data.draw(st.lists(top, min_size=count, max_size=count))
    known = {token: data.draw(st.text()) for token, _ in places[0]}
    found = unpack(pack([answer(*places, texts=known)]) or b"")
    assert [[one.token for one in place] for place in found] == [[token for token, _ in place] for place in places]
    for place, held in zip(places, found, strict=True):
        for (token, logprob), one in zip(place, held, strict=True):
            assert one.probability == pytest.approx(exp(logprob), abs=5.1e-5) and one.text == known.get(token)


def test_turns_follow_one_another_and_a_place_is_found_by_its_token():
    first = answer([(7, log(0.75)), (9, log(0.25))], texts={7: " a", 9: "\ufffd"})
    second = answer([(9, log(0.5)), (8, log(0.125))], texts={9: "\ufffd"})
    packed = pack([first, second])
    assert at(packed, 0) == (Alternative(7, 0.75, " a"), Alternative(9, 0.25, "\ufffd"))
    assert at(packed, 1) == (Alternative(9, 0.5, "\ufffd"), Alternative(8, 0.125, None))
    assert at(packed, 2) == at(None, 0) == ()


def test_nothing_is_packed_of_what_an_answer_does_not_say():
    said = answer([(7, -0.5)])
    assert pack([said, answer(logprobs=False)]) is None
    assert pack([answer()]) is None and pack([said, answer([(7, -0.5), (8, -1.0)])]) is None
