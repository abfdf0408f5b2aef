"""Too little room for too many, and faults that were seen elsewhere: no bit of an answer may hang on them.

What an answer must be is what the same request gets alone from an engine that knows nothing yet.
"""

from dataclasses import replace

import pytest

from evalsvc.engine.kv.pages import PAGE, Sequence
from evalsvc.engine.requests import (
    GenerateRequest,
    GenerateResult,
    RequestFailure,
    RollingRequest,
    ScoreRequest,
)

# -- small pools and places --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every_path(ids, arms) -> list:
    """Requests of all kinds, none of them longer than two pages."""
    context, continuations = ids(21, 5), ([7], [7, 8], ids(11, 6), ids(11, 7))
    requests: list = [
        GenerateRequest(prompt=context, max_tokens=11, n=3, temperature=1.0, seed=4, logprobs=2, id="n"),
        GenerateRequest(prompt=ids(1), max_tokens=31, id="grows"),
    ]
    requests += [GenerateRequest(prompt=ids(n, n), max_tokens=1, id=f"one{n}") for n in (1, 15, 16, 31)]
    for way in ("prefill", "decode"):
        requests += [
            ScoreRequest(context=context, continuations=continuations, through=way, compare_with="same", id=way),
            ScoreRequest(context=[5], continuations=([6], ids(32, 8)), through=way, id=f"one-{way}"),
            RollingRequest(text=ids(32, 3), through=way, id=f"rolling-{way}"),
        ]
    return [replace(request, arms=tuple(arms)) for request in requests]


@pytest.fixture(scope="module")
def in_a_large_pool(group, answers, every_path):
    return answers(group, every_path)


@pytest.mark.parametrize(("max_batch", "chunk"), [(1, 512), (2, 5), (32, 512)])
def test_a_pool_of_two_pages_answers_all_that_two_pages_can_hold(
    serve, every_path, in_a_large_pool, nothing_held, answers, arms, max_batch, chunk
):
    """Each request fills the pool alone; to wait for its turn must not change it, nor to be computed piece by piece."""
    engine = serve("llama", plans=arms, kv_tokens=2 * PAGE, max_batch=max_batch, chunk=chunk)
    assert engine.max_length == 2 * PAGE
    assert answers(engine, every_path) == in_a_large_pool
    for arm in arms:
        nothing_held(engine, arm)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (GenerateRequest(prompt=[5] * 20, max_tokens=13, n=2), "too_long"),
        (ScoreRequest(context=[5] * 20, continuations=([5] * 14,)), "too_long"),
        (ScoreRequest(context=[5] * 20, continuations=([5] * 14,), through="decode"), "too_long"),
        (RollingRequest(text=[5] * 33), "too_long"),
    ],
)
def test_one_token_more_than_the_pool_is_refused_and_harms_nobody(serve, alone, request_, error, unequal, kept):
    engine = serve("llama", unequal, kv_tokens=2 * PAGE)
    good = GenerateRequest(prompt=[5] * 20, max_tokens=12, id="good")
    outcomes = list(engine.answer([request_, good]))
    refused = [o for o in outcomes if isinstance(o, RequestFailure)]
    assert [o.error for o in refused] == [error] * getattr(request_, "n", 1)
    assert kept(o for o in outcomes if o not in refused) == alone([good])


def test_pages_held_by_others_fail_who_waits_for_them_by_name(serve, ids, unequal):
    """Somebody outside of the loop holds the pool: to wait would be to wait for ever."""
    engine = serve("llama", unequal, kv_tokens=64)
    pool = engine.arm().prefill.pool
    held = Sequence()
    pool.extend(held, 40)
    small, large = (GenerateRequest(prompt=ids(n), max_tokens=4, id=str(n)) for n in (10, 30))
    outcomes = {o.id: o for o in engine.answer([large, small])}
    assert (outcomes["30"].error, outcomes["10"].finish_reason) == ("pool", "length")
    pool.free(held)
    assert isinstance(next(engine.answer([large])), GenerateResult)


def test_more_samples_than_places_are_drawn_as_side_by_side(serve, alone, ids, answers, unequal):
    engine = serve("llama", unequal, max_batch=2)
    request = GenerateRequest(prompt=ids(40), max_tokens=5, temperature=1.5, n=7, id="x")
    assert answers(engine, [request]) == alone([request])
    assert engine.arm().prefill.work.tokens <= 40 + 6 * PAGE  # full pages of the prompt are computed once


def test_rows_of_logits_in_a_forward_are_bounded(serve, alone, ids, monkeypatch, answers, unequal):
    """A vocabulary so large that four rows of logits are as many as a forward may give."""
    from evalsvc.engine import engine as module

    monkeypatch.setattr(module, "LOGIT_ELEMENTS", 4 * 288 + 7)
    engine = serve("llama", unequal)
    request = ScoreRequest(context=ids(20), continuations=tuple(ids(15, n) for n in range(5)), id="x")
    sizes = []
    run = engine.arm().prefill.run
    monkeypatch.setattr(
        engine.arm().prefill, "run", lambda chunks: sizes.append(sum(c.logits for c in chunks)) or run(chunks)
    )
    assert answers(engine, [request]) == alone([request])
    assert max(sizes) == 4 and sum(sizes) == 1 + 5 * 14


def test_answers_that_crowd_each_other_out_are_computed_again_a_bounded_number_of_times(
    serve, alone, ids, answers, unequal
):
    """Pages for 2 of 8 answers: 1.4 times the decode work was measured."""
    engine = serve("llama", unequal, kv_tokens=10 * PAGE, max_batch=8)
    requests = [GenerateRequest(prompt=ids(16, n), max_tokens=64, id=str(n)) for n in range(8)]
    order = [outcome.id for outcome in engine.answer(requests)]
    work = engine.arm().decode.work.tokens
    assert engine.stats()["preemptions"] > 0
    assert 8 * 63 < work <= 1.6 * 8 * 63
    assert order[0] == "0"  # who came first is never sent back
    assert answers(engine, requests[6:]) == alone(requests[6:])


def test_many_small_requests_do_not_keep_a_large_one_waiting(serve, ids, unequal):
    """There is always room for one more small one, and for the large one only when none is there."""
    engine = serve("llama", unequal, kv_tokens=8 * PAGE, max_batch=4)
    requests = [GenerateRequest(prompt=ids(17, n), max_tokens=12, id=f"small{n}") for n in range(10)]
    requests.insert(2, GenerateRequest(prompt=ids(100, 50), max_tokens=4, id="large"))
    assert [outcome.id for outcome in engine.answer(requests)].index("large") == 2


# -- what was seen elsewhere -------------------------------------------------------------------------------------------


def test_prefixes_and_preemption_together_change_no_bit(serve, alone, mixed, nothing_held, answers, unequal):
    """Sent back, and then served from the cache what it had computed itself or an earlier run had."""
    engine = serve("llama", unequal, kv_tokens=6 * PAGE)
    requests = [request for seed in (30, 31) for request in mixed(seed, size=30)]
    expected = alone(requests)
    for _ in ("cold", "warm"):
        assert answers(engine, requests) == expected
    assert engine.stats()["preemptions"] > 0
    nothing_held(engine)


def test_a_score_that_is_sent_back_counts_no_token_twice(serve, alone, ids, answers, unequal):
    """Two answers grow into the pages of a score through decode that came last."""
    engine = serve("llama", unequal, kv_tokens=8 * PAGE)
    requests = [GenerateRequest(prompt=ids(30, n), max_tokens=50, id=str(n)) for n in (1, 2)]
    score = ScoreRequest(context=ids(16, 3), continuations=(ids(40, 4),), through="decode", top_logprobs=1, id="score")
    found = answers(engine, [*requests, score])
    assert engine.stats()["preemptions"] > 0
    assert engine.arm().decode.work.tokens > 2 * 49 + 40  # some of them again
    assert found == alone([*requests, score])


def test_the_first_run_equals_every_later_one(serve, mixed, answers, unequal):
    engine = serve("llama", unequal)
    first = answers(engine, mixed(33))
    assert [answers(engine, mixed(33)) for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_a_score_is_never_one_that_was_kept_for_another(serve, alone, ids, through, answers, unequal):
    """A, B, A: equal contexts with other continuations, and equal continuations after other contexts."""
    engine = serve("llama", unequal)
    a = ScoreRequest(context=ids(32, 1), continuations=([7], [8, 9]), top_logprobs=3, through=through, id="x")
    others = [replace(a, context=ids(32, 2)), replace(a, continuations=([8], [7, 9])), replace(a, top_logprobs=0)]
    for request in (a, others[0], a, others[1], a, others[2], a):
        assert answers(engine, [request]) == alone([request])


def test_pages_under_one_hash_are_never_another_prompts(serve, alone, mixed, nothing_held, answers, unequal):
    engine = serve("llama", unequal, kv_tokens=12 * PAGE)
    for stage in (engine.arm().prefill, engine.arm().decode):
        stage.cache._chain = lambda block: 7
    requests = [request for seed in (34, 35, 36) for request in mixed(seed)]
    expected = alone(requests)
    for _ in ("cold", "warm"):
        assert answers(engine, requests) == expected
    assert engine.arm().prefill.cache.hit_tokens > 0
    nothing_held(engine)


def test_samples_share_their_prompts_pages_even_where_the_cache_does_not_hold_them(serve, alone, ids, answers, unequal):
    """Four answers of three pages, two of which are the prompt's: six are enough, whatever the cache found room for."""
    engine = serve("llama", unequal, kv_tokens=6 * PAGE)
    for stage in (engine.arm().prefill, engine.arm().decode):
        stage.cache._chain = lambda block: 7
    request = GenerateRequest(prompt=ids(40, 8), max_tokens=8, temperature=1.0, n=4, id="x")
    assert answers(engine, [request]) == alone([request])
    assert engine.stats()["preemptions"] == 0 and engine.arm().prefill.work.tokens == 40


def test_pages_that_leave_the_cache_while_a_prompt_waits_for_them_are_made_room_for(
    serve, alone, ids, answers, unequal, monkeypatch, nothing_held
):
    """Both samples hold the prompt's pages in decode from admission on; then the cache lets go of them."""
    engine = serve("llama", unequal, kv_tokens=4 * PAGE, chunk=16)
    request = GenerateRequest(prompt=ids(33, 8), max_tokens=4, temperature=1.0, n=2, id="x")
    expected = alone([request])
    assert answers(engine, [request]) == expected
    prefill, decode = engine.arm().prefill, engine.arm().decode
    prefill.cache.drop_all()
    run, dropped = prefill.run, []
    monkeypatch.setattr(prefill, "run", lambda chunks: dropped.append(decode.cache.drop_all()) or run(chunks))
    assert answers(engine, [request]) == expected
    assert dropped[0] == 2
    nothing_held(engine)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
def test_prompts_of_whole_pages_can_be_asked_again(serve, alone, ids, length, answers, unequal):
    """A prompt that is in the cache as a whole still has its last token computed."""
    engine = serve("llama", unequal)
    prompt = ids(length, length)
    requests = [
        GenerateRequest(prompt=prompt, max_tokens=6, logprobs=1, id="g"),
        ScoreRequest(context=prompt, continuations=([7], [7, 8]), id="p"),
        ScoreRequest(context=prompt, continuations=([7], [7, 8]), through="decode", id="d"),
        GenerateRequest(prompt=[*prompt, 5], max_tokens=6, id="longer"),
        GenerateRequest(prompt=prompt[: max(1, length - 1)], max_tokens=6, id="shorter"),
    ]
    expected = alone(requests)
    for order in (requests, requests[::-1], requests):
        found = {}
        for request in order:
            before = engine.arm().prefill.work.tokens
            found |= answers(engine, [request])
            computed = engine.arm().prefill.work.tokens - before
            assert computed >= 1 or (request.id == "d" and length == 1)
        assert found == expected


def test_a_prompt_scored_and_then_continued_is_computed_once(serve, alone, ids, answers, unequal):
    engine = serve("llama", unequal)
    prompt = ids(48, 3)
    score = ScoreRequest(context=prompt, continuations=([7, 8],), id="s")
    write = GenerateRequest(prompt=prompt, max_tokens=5, id="g")
    assert answers(engine, [score]) | answers(engine, [write]) == alone([score, write])
    assert engine.arm().prefill.work.tokens == 48 + 1 + 1  # the prompt, the continuation, the prompt's last token again


def test_what_is_asked_late_is_answered_as_what_was_asked_first(serve, alone, ids, answers, unequal):
    """Pages go from hand to hand for fifty requests; the same question comes back all the while."""
    engine = serve("llama", unequal, kv_tokens=10 * PAGE, max_batch=4)
    probe = GenerateRequest(prompt=ids(20, 77), max_tokens=8, logprobs=1)
    requests = []
    for n in range(40):
        requests.append(GenerateRequest(prompt=ids(5 + n, n), max_tokens=1 + n % 17, id=f"other{n}"))
        if n % 4 == 0:
            requests.append(replace(probe, id=f"probe{n}"))
    found = answers(engine, requests)
    (expected,) = alone([probe]).values()
    assert [value for name, value in found.items() if name[0].startswith("probe")] == [expected] * 10


def test_what_only_one_prompt_says_reaches_no_other_answer(serve, alone, ids, nothing_held, answers, unequal):
    """Prompts alike but for one token early in them, in pages that all want at once."""
    engine = serve("llama", unequal, kv_tokens=12 * PAGE, max_batch=6)
    common = ids(30, 4)
    secrets = [[*common[:10], 100 + n, *common[10:]] for n in range(8)]
    requests = [
        GenerateRequest(prompt=prompt, max_tokens=20, logprobs=0, id=str(n)) for n, prompt in enumerate(secrets)
    ]
    expected = alone(requests)
    assert len(set(expected.values())) == len(requests)
    assert answers(engine, requests) == answers(engine, requests[::-1]) == expected
    nothing_held(engine)


def test_the_numbers_add_up(serve, ids, unequal):
    engine = serve("llama", unequal, kv_tokens=512, max_batch=4)
    lengths = [5, 16, 17, 40, 40]
    requests = [GenerateRequest(prompt=ids(n, n), max_tokens=6) for n in lengths]
    stream = engine.answer(requests)
    outcomes = [next(stream)]
    during = engine.stats()
    assert during["waiting"] + during["prefilling"] + during["decoding"] == 4
    outcomes += stream
    after = engine.stats()
    assert (after["waiting"], after["prefilling"], after["decoding"]) == (0, 0, 0)
    prefill, decode = after["stages"]
    assert (prefill["stage"], decode["stage"]) == ("prefill", "decode")
    assert prefill["tokens_computed"] == prefill["cache"]["missed_tokens"] + len(requests)  # each one's last token
    assert prefill["cache"]["hit_tokens"] + prefill["tokens_computed"] == sum(lengths)
    assert sum(decode["cache"].values()) == sum(lengths)
    assert prefill["cache"]["hit_tokens"] == decode["cache"]["hit_tokens"] == 32  # the second one of 40
    assert decode["tokens_computed"] == sum(outcome.stage_tokens["decode"] for outcome in outcomes) > 0
    for stage in (prefill, decode):
        assert stage["pages"]["free"] + stage["pages"]["idle"] == stage["pages"]["all"] == 32
