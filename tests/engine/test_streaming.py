"""Streams: the pieces of an answer are the answer, as soon as they are sure, and none is ever taken back."""

from collections import Counter, defaultdict

import pytest

from evalsvc.engine.kv.pages import PAGE
from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure, ScoreRequest, TextPiece
from evalsvc.errors import ConfigError


@pytest.fixture(scope="module")
def requests(ids) -> list[GenerateRequest]:
    """Answers of random bytes: half characters, characters of two tokens, and special tokens among them."""
    drawn = [
        GenerateRequest(prompt=ids(5 + n, n), max_tokens=40, temperature=1.3, seed=n, n=2, id=f"drawn{n}")
        for n in range(6)
    ]
    greedy = [GenerateRequest(prompt=ids(9, n), max_tokens=30, id=f"greedy{n}") for n in range(6)]
    return [*drawn, *greedy, GenerateRequest(prompt=ids(9, 3), max_tokens=1, id="one")]


def streamed(engine, requests) -> tuple[dict[tuple, list[TextPiece]], dict[tuple, GenerateResult]]:
    """Pieces and results by id, arm and sample; no piece comes after its result."""
    pieces: dict[tuple, list[TextPiece]] = defaultdict(list)
    results: dict[tuple, GenerateResult] = {}
    for outcome in engine.stream(requests):
        name = outcome.id, outcome.arm, outcome.sample
        assert name not in results and not isinstance(outcome, RequestFailure)
        if isinstance(outcome, TextPiece):
            pieces[name].append(outcome)
        else:
            results[name] = outcome
    return pieces, results


def check(pieces: dict[tuple, list[TextPiece]], results: dict[tuple, GenerateResult]) -> None:
    for name, result in results.items():
        mine = pieces[name]
        assert "".join(piece.text for piece in mine) == result.text
        assert all(piece.text for piece in mine)
        lengths = [len(piece.token_ids) for piece in mine]
        assert lengths == sorted(set(lengths))
        assert all(result.token_ids[: len(piece.token_ids)] == piece.token_ids for piece in mine)


def test_pieces_join_to_the_text_of_the_result(engine, requests):
    pieces, results = streamed(engine, requests)
    assert len(results) == 6 * 2 + 6 + 1
    check(pieces, results)
    assert max(len(mine) for mine in pieces.values()) > 15
    assert any("\ufffd" in result.text for result in results.values())  # there were half characters


def test_streaming_changes_no_answer(engine, requests, answers, kept):
    _, results = streamed(engine, requests)
    assert kept(results.values()) == answers(engine, requests)


def test_pieces_come_while_the_answer_is_written(engine, ids):
    """Of plain characters each is shown as soon as it is there."""
    seen = []
    for outcome in engine.stream([GenerateRequest(prompt=ids(5, n), max_tokens=12, id=str(n)) for n in range(8)]):
        if isinstance(outcome, TextPiece):
            decoded = engine.arm().decode.work.tokens
            seen.append((outcome.id, len(outcome.token_ids), decoded))
    firsts = [entry for entry in seen if entry[1] == 1]
    assert firsts and all(decoded == firsts[0][2] for _, _, decoded in firsts)  # before any of them was decoded
    assert len({decoded for _, _, decoded in seen}) > 8


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_what_could_become_a_stop_string_is_held_back(engine, requests, width):
    """Every answer is cut at a piece of its own, and its beginnings occur before: `stop` occurs as often as it can."""
    _, free = streamed(engine, requests)
    stops = sorted({r.text[len(r.text) // 2 :][:width] for r in free.values() if len(r.text) > 2 * width})
    cut = [GenerateRequest(**{**vars(request), "stop": (*stops, stops[0] + "x", "never")}) for request in requests]
    pieces, results = streamed(engine, cut)
    check(pieces, results)
    assert Counter(result.finish_reason for result in results.values())["stop"] >= len(results) // 2
    for name, result in results.items():
        assert not any(stop in result.text for stop in stops)
        assert free[name].text.startswith(result.text)


def test_an_end_of_sequence_shows_what_was_held_back(serve, unequal, ids, monkeypatch):
    engine = serve("llama", unequal)
    free = next(a for n in range(40) if len((a := next(engine.generate([one(ids, n)]))).text) > 8)
    monkeypatch.setattr(engine.text, "eos_ids", frozenset({free.token_ids[6]}))
    end = free.token_ids.index(free.token_ids[6])
    text = engine.text.decode(ids(5, int(free.id))[-1], free.token_ids[:end])
    pieces, results = streamed(
        engine, [GenerateRequest(**{**vars(one(ids, int(free.id))), "stop": (text[-1] + "never",)})]
    )
    check(pieces, results)
    (result,) = results.values()
    assert (result.finish_reason, result.text) == ("stop", text)


def one(ids, n: int) -> GenerateRequest:
    return GenerateRequest(prompt=ids(5, n), max_tokens=12, id=str(n))


def test_preempted_answers_repeat_no_piece(serve, unequal, requests, kept, answers, engine):
    small = serve("llama", unequal, kv_tokens=6 * PAGE, max_batch=8)
    pieces, results = streamed(small, requests)
    assert small.stats()["preemptions"] > 0
    check(pieces, results)
    assert kept(results.values()) == answers(engine, requests)


def test_arms_and_samples_stream_side_by_side(serve, arms, ids):
    engine = serve("llama", plans=arms)
    request = GenerateRequest(prompt=ids(9), max_tokens=20, temperature=1.0, n=2, arms=tuple(arms), id="x")
    pieces, results = streamed(engine, [request])
    assert set(results) == {("x", arm, sample) for arm in arms for sample in (0, 1)}
    check(pieces, results)


def test_a_failure_keeps_what_was_shown(engine, ids):
    shown = ""
    for outcome in engine.stream([GenerateRequest(prompt=ids(9, 1), max_tokens=40, id="x")]):
        if isinstance(outcome, TextPiece):
            shown += outcome.text
            if len(outcome.token_ids) > 8:
                engine.cancel("x")
    assert isinstance(outcome, RequestFailure) and len(outcome.token_ids) > 8
    assert engine.text.decode(ids(9, 1)[-1], outcome.token_ids).startswith(shown)


def test_scores_are_not_streamed(engine):
    with pytest.raises(ConfigError, match="ask `answer`"):
        list(engine.stream([ScoreRequest(context="x", continuations=("y",))]))
