"""Answers that are given up: cancelled, or past their deadline. Those beside them keep every bit."""

from collections import Counter
from dataclasses import replace

from evalsvc.engine import loop
from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure, ScoreRequest, TextPiece


def test_a_cancelled_answer_fails_with_what_it_had_and_the_others_are_untouched(
    engine, alone, mixed, nothing_held, kept
):
    victim = GenerateRequest(prompt=mixed(8)[0].prompt, max_tokens=60, id="victim")
    requests = [victim, *mixed(9)]
    stream = engine.stream([*requests[:3]])
    scores = engine.answer(requests[3:])
    found, given_up, failure = {}, 0, None
    for piece in stream:
        if isinstance(piece, TextPiece):
            if piece.id == "victim" and len(piece.token_ids) >= 5 and not given_up:
                given_up = engine.cancel("victim")
        elif isinstance(piece, RequestFailure):
            failure = piece
        else:
            found |= kept([piece])
    found |= kept(scores)
    assert given_up == 1 and engine.cancel("victim") == 0
    assert failure is not None and (failure.id, failure.error, failure.finish_reason) == (
        "victim",
        "cancelled",
        "abort",
    )
    whole = alone([victim])[("victim", "default", 0)][1]
    assert 5 <= len(failure.token_ids) < 60 and failure.token_ids == whole[: len(failure.token_ids)]
    assert found == alone(requests[1:])
    nothing_held(engine)


def test_every_answer_of_a_cancelled_request_is_given_up(group, ids, nothing_held, arms):
    """A comparison's other arms are cancelled too, and not said to have lost their reference."""
    request = ScoreRequest(
        context=ids(40), continuations=(ids(30, 1),), through="decode", compare_with="same", arms=tuple(arms), id="x"
    )
    keeper = group.stream([GenerateRequest(prompt=ids(9), max_tokens=40, arms=("kv",), id="keeper")])
    stream = group.answer([GenerateRequest(prompt=ids(5), max_tokens=1, arms=("kv",)), request])
    next(stream)
    for _ in range(4):
        next(keeper)
    assert group.cancel("x") == 3
    outcomes = list(stream)
    assert [(o.error, o.finish_reason) for o in outcomes] == [("cancelled", "abort")] * 3
    assert {o.arm for o in outcomes} == set(arms)
    assert isinstance(list(keeper)[-1], GenerateResult)
    for arm in arms:
        nothing_held(group, arm)


def test_what_has_ended_can_no_more_be_cancelled(group, ids, arms):
    """Through prefill, arm `kv` shares all with its reference; `other` ends when its last comparison is made."""
    keeper = group.stream([GenerateRequest(prompt=ids(9), max_tokens=30, arms=("kv",), id="keeper")])
    next(keeper)
    for through in ("prefill", "decode"):
        for reference in arms:
            request = ScoreRequest(
                context=ids(20, 3),
                continuations=([5, 6],),
                through=through,
                compare_with=reference,
                arms=("other", "kv", "same"),
                id="x",
            )
            assert len(list(group.answer([request]))) == 3
            assert group.cancel("x") == 0
    keeper.close()


def test_a_deadline_of_nothing_computes_nothing(engine, alone, mixed, kept):
    before = engine.arm().prefill.work.tokens
    late = [replace(request, deadline_s=0, id=f"late-{request.id}") for request in mixed(10)]
    outcomes = list(engine.answer(late))
    assert engine.arm().prefill.work.tokens == before
    assert [(o.error, o.finish_reason) for o in outcomes] == [("deadline", "abort")] * 5
    found, failed = {}, 0
    for outcome in engine.answer([*late, *mixed(11)]):
        if isinstance(outcome, RequestFailure):
            failed += 1
        else:
            found |= kept([outcome])
    assert failed == 5 and found == alone(mixed(11))


def test_what_is_overdue_is_given_up_with_what_it_had(engine, group, alone, ids, monkeypatch, nothing_held, kept):
    clock = loop.perf_counter
    ahead = 0.0
    monkeypatch.setattr(loop, "perf_counter", lambda: clock() + ahead)
    slow = GenerateRequest(prompt=ids(20, 1), max_tokens=60, deadline_s=500, id="slow")
    calm = GenerateRequest(prompt=ids(20, 2), max_tokens=20, id="calm")
    outcomes = []
    for piece in engine.stream([slow, calm]):
        if isinstance(piece, TextPiece):
            ahead = 501.0 * (len(piece.token_ids) > 6)
        else:
            outcomes.append(piece)
    failure, result = outcomes
    assert (failure.id, failure.error, failure.finish_reason) == ("slow", "deadline", "abort")
    assert failure.token_ids == alone([slow])["slow", "default", 0][1][: len(failure.token_ids)] != ()
    assert kept([result]) == alone([calm])
    nothing_held(engine)


def test_compared_arms_meet_their_deadline_together(group, ids, arms):
    request = ScoreRequest(
        context=ids(9), continuations=([5, 6],), compare_with="same", arms=tuple(arms), deadline_s=0, id="x"
    )
    assert [o.error for o in group.answer([request])] == ["deadline"] * 3


def test_a_prompt_cancelled_half_way_is_not_decoded(serve, alone, ids, nothing_held, answers, unequal):
    engine = serve("llama", unequal, chunk=16)
    long = GenerateRequest(prompt=ids(200, 1), max_tokens=4, id="long")
    keeper = engine.stream([GenerateRequest(prompt=ids(5), max_tokens=30, id="keeper")])
    next(keeper)
    stream = engine.answer([GenerateRequest(prompt=ids(4, 4), max_tokens=1), long])
    next(stream)
    next(keeper)
    assert 0 < engine.arm().prefill.work.tokens < 150
    decoded = engine.arm().decode.pool.peak
    engine.cancel("long")
    assert [(o.error, o.token_ids) for o in stream] == [("cancelled", ())]
    list(keeper)
    assert engine.arm().prefill.work.tokens < 150 and engine.arm().decode.pool.peak == max(decoded, 3)
    assert answers(engine, [long]) == alone([long])
    nothing_held(engine)


def test_pages_of_a_cancelled_answer_serve_the_next_one(serve, alone, ids, nothing_held, unequal, kept):
    """The pool holds one answer and a half: whoever comes next sits in pages that were given up half written."""
    engine = serve("llama", unequal, kv_tokens=96)
    requests = [GenerateRequest(prompt=ids(30, n), max_tokens=30, logprobs=0, id=str(n)) for n in range(6)]
    expected = alone(requests[1::2])
    found = {}
    pieces = Counter()
    for piece in engine.stream(requests):
        if isinstance(piece, TextPiece):
            pieces[piece.id] += 1
            if int(piece.id) % 2 == 0 and pieces[piece.id] == 4:
                assert engine.cancel(piece.id) == 1
        elif isinstance(piece, GenerateResult):
            found |= kept([piece])
    assert found == expected
    nothing_held(engine)
