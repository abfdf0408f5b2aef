"""The loop under strain: iterators side by side, errors, NaN, threads.

What an answer must be is what the same request gets alone from an engine that knows nothing yet, to the last bit.
"""

import threading
from dataclasses import replace

import pytest
import torch

from evalsvc.engine import generation, loop
from evalsvc.engine.kv import handoff, pages, prefix
from evalsvc.engine.kv.pages import PoolFull
from evalsvc.engine.prompts import Lane
from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure, ScoreRequest, TextPiece
from evalsvc.engine.stage import DecodeStage, PrefillStage
from evalsvc.errors import ConfigError

IDLE = {"waiting": 0, "prefilling": 0, "decoding": 0}


def under_way(engine) -> dict[str, int]:
    return {name: count for name, count in engine.stats().items() if name in IDLE}


# -- iterators side by side --------------------------------------------------------------------------------------------


def test_two_iterators_in_turns_give_each_its_own_answers(engine, alone, mixed, nothing_held, kept):
    requests = mixed(1), mixed(2)
    streams = [engine.answer(some) for some in requests]
    found: list[dict] = [{}, {}]
    live = {0, 1}
    while live:
        for which in list(live):
            outcome = next(streams[which], None)
            if outcome is None:
                live.discard(which)
            else:
                found[which] |= kept([outcome])
    assert found == [alone(some) for some in requests]
    nothing_held(engine)


def test_an_iterator_inside_of_another_drives_both(engine, alone, mixed, answers, kept):
    outer, inner = mixed(3), mixed(4)
    found, nested = {}, {}
    for outcome in engine.answer(outer):
        if not nested:
            nested = answers(engine, inner)
        found |= kept([outcome])
    assert (found, nested) == (alone(outer), alone(inner))


@pytest.mark.parametrize("pieces", [1, 3, 8])
def test_who_stops_listening_gives_every_page_back_and_harms_nobody(engine, alone, mixed, nothing_held, pieces, kept):
    stream = engine.stream([replace(mixed(5)[0], max_tokens=60), replace(mixed(5)[1], max_tokens=60)])
    others = engine.answer(mixed(6))
    for _ in range(pieces):
        assert isinstance(next(stream), TextPiece)
    found = kept([next(others)])
    held = engine.stats()["decoding"]
    stream.close()
    assert engine.stats()["decoding"] <= held - 3
    found |= kept(others)
    assert found == alone(mixed(6))
    assert under_way(engine) == IDLE
    nothing_held(engine)


def test_an_iterator_that_is_never_begun_asks_nothing(engine):
    before = engine.arm().prefill.work.copy()
    engine.generate([GenerateRequest(prompt="abc", max_tokens=3)])
    assert engine.stats()["waiting"] == 0 and engine.arm().prefill.work == before


def test_no_request_is_no_answer(engine):
    assert list(engine.answer([])) == list(engine.stream([])) == []


def test_requests_may_come_from_a_generator(engine, alone, mixed, answers):
    assert answers(engine, (request for request in mixed(7))) == alone(mixed(7))


def test_one_id_may_be_asked_twice(engine, ids):
    outcomes = list(engine.answer([GenerateRequest(prompt=ids(9, n), max_tokens=4, id="one") for n in (1, 2)]))
    assert [outcome.id for outcome in outcomes] == ["one", "one"]
    assert {o.prompt_sha256 for o in outcomes} == {
        next(engine.answer([GenerateRequest(prompt=ids(9, n), max_tokens=1)])).prompt_sha256 for n in (1, 2)
    }


# -- errors ------------------------------------------------------------------------------------------------------------


PLACES = {
    "prefill": (PrefillStage, "run"),
    "decode": (DecodeStage, "run"),
    "taking": (loop, "take_tokens"),
    "hand-off": (handoff, "convert"),
    "fork": (pages.Pages, "fork"),
    "cache": (prefix.PrefixCache, "put"),
    "draw": (generation, "choose"),
}


def breaking(place: str, error: BaseException, monkeypatch, after: int) -> None:
    """Makes one place of a step raise when it has worked `after` more times."""
    owner, name = PLACES[place]
    real, left = getattr(owner, name), after

    def broken(*args, **kwargs):
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken, raising=False)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), KeyboardInterrupt(), PoolFull("no page")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("place", PLACES)
def test_an_error_in_a_step_fails_all_that_was_under_way_and_nothing_after_it(
    engine, alone, mixed, ids, monkeypatch, nothing_held, place, error, answers
):
    """Who waits in another iterator gets a failure by name: with nothing under way he would wait for ever."""
    other = engine.stream([GenerateRequest(prompt=ids(20, 8), max_tokens=40, id="other")])
    scores = engine.answer([GenerateRequest(prompt=ids(6), max_tokens=1), *mixed(12)[2:]])
    next(scores)
    for _ in range(3):
        next(other)
    with monkeypatch.context() as patched:
        breaking(place, error, patched, after=0 if place == "decode" else 1)
        with pytest.raises(type(error)):
            list(engine.answer([*mixed(13), replace(mixed(13)[0], prompt=ids(50, 5))]))
    *_, failure = other
    assert isinstance(failure, RequestFailure) and (failure.error, failure.finish_reason) == ("engine", "error")
    assert type(error).__name__ in failure.message and len(failure.token_ids) >= 2
    rest = list(scores)
    assert {outcome.id for outcome in rest} == {"p12", "d12"}
    assert any(isinstance(outcome, RequestFailure) and outcome.error == "engine" for outcome in rest) or place == "fork"
    assert under_way(engine) == IDLE
    for stage in (engine.arm().prefill, engine.arm().decode):
        stage.pool.check()
        assert stage.pool.available == stage.pool.n_pages
    assert answers(engine, mixed(13)) == alone(mixed(13))
    nothing_held(engine)


def test_an_arm_that_nobody_knows_stops_its_own_call_alone(engine, alone, mixed, nothing_held, kept):
    others = engine.answer(mixed(14))
    found = kept([next(others)])
    with pytest.raises(ConfigError, match="unknown arm 'nobody'; known: default"):
        list(engine.answer([mixed(15)[0], replace(mixed(15)[1], arms=("nobody",))]))
    with pytest.raises(ConfigError, match="list of names"):
        list(engine.answer([replace(mixed(15)[1], arms="default")]))
    assert found | kept(others) == alone(mixed(14))
    nothing_held(engine)


def test_several_arms_want_a_name(group, ids):
    with pytest.raises(ConfigError, match="name one of the arms same, kv, other"):
        list(group.answer([GenerateRequest(prompt=ids(3), max_tokens=1)]))


# -- not a number ------------------------------------------------------------------------------------------------------


def spoil(stage, monkeypatch, when) -> None:
    """Makes the logits of chunks for which `when` is true NaN."""
    run = stage.run

    def spoiled(chunks):
        (rows, faults), at = run(chunks), 0
        rows = rows.clone()
        for chunk in chunks:
            if when(chunk):
                rows[at : at + chunk.logits] = torch.nan
            at += chunk.logits
        return rows, faults

    monkeypatch.setattr(stage, "run", spoiled)


def spoil_rows(monkeypatch, request_id: str, stage: str) -> None:
    """Makes the logits that one stage gives to one request NaN."""
    take = loop.Loop._take

    def spoiled(self, rows, takers):
        rows = rows.clone()
        for row, of, _ in takers:
            served = {job.request.id for job in loop._jobs_of(of)}
            if request_id in served and isinstance(of, Lane) == (stage == "decode"):
                rows[row] = torch.inf if stage == "decode" else torch.nan
        take(self, rows, takers)

    monkeypatch.setattr(loop.Loop, "_take", spoiled)


@pytest.mark.parametrize(
    ("stage", "kind"), [("prefill", 0), ("prefill", 1), ("prefill", 2), ("decode", 0), ("decode", 1), ("decode", 3)]
)
def test_a_bad_row_fails_its_request_alone_and_its_pages_leave_the_cache(
    engine, alone, mixed, ids, monkeypatch, nothing_held, answers, kept, stage, kind
):
    bad, good = mixed(16)[kind], mixed(17)
    prompt = ids(40, 55)
    bad = replace(bad, **{"prompt" if kind < 2 else "context": prompt})
    arm = engine.arm()
    with monkeypatch.context() as patched:
        spoil_rows(patched, bad.id, stage)
        outcomes = list(engine.answer([*good[:2], bad, *good[2:]]))
    failed = [o for o in outcomes if isinstance(o, RequestFailure)]
    assert len(failed) == (bad.n if isinstance(bad, GenerateRequest) else 1)
    assert {(o.id, o.error, o.finish_reason) for o in failed} == {(bad.id, "non_finite_logits", "error")}
    assert {len(o.token_ids) for o in failed} == {int(stage == "decode" and kind < 2)}
    assert kept(o for o in outcomes if o.id != bad.id) == alone(good)
    assert arm.prefill.cache.peek(prompt, len(prompt)) == (0, 0)
    assert arm.decode.cache.peek(prompt, len(prompt), arm.prefill.key) == (0, 0)
    assert arm.prefill.cache.peek(good[0].prompt, 32)[0] == 2  # others' stay
    assert answers(engine, [bad]) == alone([bad])
    nothing_held(engine)


def test_an_arm_that_fails_fails_alone(group, alone, ids, monkeypatch, nothing_held, arms, kept):
    request = GenerateRequest(prompt=ids(20, 1), max_tokens=12, arms=tuple(arms), id="x")
    expected = alone([request])
    with monkeypatch.context() as patched:
        spoil(group.arm("kv").decode, patched, lambda chunk: chunk.sequence.length > 25)
        outcomes = {o.arm: o for o in group.answer([request])}
    failure = outcomes.pop("kv")
    assert failure.error == "non_finite_logits"
    assert failure.token_ids == expected["x", "kv", 0][1][: len(failure.token_ids)] != ()
    assert kept(outcomes.values()) == {k: v for k, v in expected.items() if k[1] != "kv"}
    for arm in arms:
        nothing_held(group, arm)


@pytest.mark.parametrize("reference", ["same", "kv", "other"])
def test_without_its_reference_an_arm_is_not_compared(
    group, ids, monkeypatch, nothing_held, reference, answers, arms, kept
):
    """The other decode stages have lanes of the same request in the very step in which the reference fails."""
    request = ScoreRequest(
        context=ids(20, 1),
        continuations=(ids(30, 2), ids(4, 3)),
        through="decode",
        compare_with=reference,
        arms=(reference, *(arm for arm in arms if arm != reference)),
        id="x",
    )
    bystander = GenerateRequest(prompt=ids(11, 3), max_tokens=30, arms=tuple(arms), id="by")
    expected = answers(group, [bystander])
    with monkeypatch.context() as patched:
        spoil(group.arm(reference).decode, patched, lambda chunk: chunk.sequence.length == 45)
        outcomes = list(group.answer([request, bystander]))
    failures = {o.arm: o.error for o in outcomes if isinstance(o, RequestFailure) and o.id == "x"}
    assert failures == dict.fromkeys(arms, "reference") | {reference: "non_finite_logits"}
    rest = kept(o for o in outcomes if isinstance(o, GenerateResult))
    assert rest == expected
    for arm in arms:
        nothing_held(group, arm)


def test_a_prompt_whose_request_fails_in_the_same_step_leaves_no_page_in_the_cache(
    serve, ids, monkeypatch, nothing_held, answers
):
    """The reference's prompt is one step ahead and fails; the other's next tokens would go to a page that was given
    back, and be kept as the prompt's first."""
    arms = {"reference": "w=fp8 > w=bf16", "other": "w=bf16"}
    engine, judge = (serve("llama", plans=arms, chunk=16) for _ in range(2))
    context = ids(32, 7)
    first = GenerateRequest(prompt=ids(8, 8), max_tokens=1, arms=("other",))
    request = ScoreRequest(context=context, continuations=([5],), compare_with="reference", arms=tuple(arms), id="x")
    with monkeypatch.context() as patched:
        spoil(engine.arm("reference").prefill, patched, lambda chunk: chunk.logits > 0)
        failures = [o for o in engine.answer([first, request]) if o.id == "x"]
    assert [o.error for o in failures] == ["non_finite_logits", "reference"]
    assert engine.arm("other").prefill.work.tokens < 8 + 32
    again = [GenerateRequest(prompt=context, max_tokens=6, logprobs=0, arms=("other",))]
    assert answers(engine, again) == answers(judge, again)
    for arm in arms:
        nothing_held(engine, arm)


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_take_turns_and_each_gets_its_own_answers(serve, alone, mixed, nothing_held, answers, unequal):
    engine = serve("llama", unequal, kv_tokens=256, max_batch=4)  # loaded by whoever comes first
    found: dict[int, dict] = {}
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            torch.set_num_threads(1)
            found[number] = answers(engine, mixed(20 + number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors and not any(thread.is_alive() for thread in threads)
    assert found == {number: alone(mixed(20 + number)) for number in range(4)}
    assert len(engine.stats()["stages"]) == 2
    nothing_held(engine)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_an_iterator_that_is_collected_inside_of_a_step_leaves_at_its_end(
    serve, unequal, alone, mixed, ids, monkeypatch, nothing_held, answers, stage
):
    """Python may collect a forgotten iterator at any moment, also between what a forward reads and where it writes."""
    engine = serve("llama", unequal, chunk=16)
    long = GenerateRequest(prompt=ids(200, 3), max_tokens=2, id="long")
    score = ScoreRequest(context=ids(9, 1), continuations=(ids(60, 2),), through="decode", id="score")
    victim = engine.answer([GenerateRequest(prompt=ids(4), max_tokens=1), score, long])
    next(victim)
    served = getattr(engine.arm(), stage)
    run, closed = served.run, []

    def collecting(chunks):
        if not closed:
            closed.append({len(chunk.tokens) for chunk in chunks})
            victim.close()
        return run(chunks)

    with monkeypatch.context() as patched:
        patched.setattr(served, "run", collecting)
        assert answers(engine, mixed(18)) == alone(mixed(18))
    assert closed and under_way(engine) == IDLE
    assert answers(engine, [long, score]) == alone([long, score])
    nothing_held(engine)


def test_logits_between_two_answers_harm_nobody(engine, alone, mixed, ids, kept):
    stream = engine.answer(mixed(19))
    found = {}
    for outcome in stream:
        found |= kept([outcome])
        for through in ("prefill", "decode"):
            assert engine.logits(ids(40, 3), through=through).isfinite().all()
    assert found == alone(mixed(19))
