"""Answers at a fixed concurrency, timed token by token, of exact length, and pools of another size."""

import pytest

from evalsvc.engine.requests import GenerateRequest, GenerateResult
from evalsvc.errors import ConfigError


def asked(ids, count, new=5):
    return [
        GenerateRequest(prompt=ids(9 + i % 3, seed=i), max_tokens=new, ignore_eos=True, id=str(i)) for i in range(count)
    ]


def test_so_many_are_under_way_and_the_next_is_sent_when_one_is_answered(serve, ids):
    engine, sent, open_ = serve(plan="w=bf16"), [], []

    def requests():
        for request in asked(ids, 9):
            sent.append(request.id)
            yield request

    answered = 0
    for _ in engine.closed_loop(requests(), 3):
        answered += 1
        open_.append(len(sent) - answered)
    assert answered == 9 and sent == [str(i) for i in range(9)]
    assert max(open_) <= 3 and open_[:6] == [3, 3, 3, 3, 3, 3] and open_[-1] == 0


def test_its_answers_are_those_of_asking_all_at_once(serve, ids):
    engine = serve(plan="w=bf16")
    one = {r.id: r.token_ids for r in engine.closed_loop(asked(ids, 6), 2)}
    assert one == {r.id: r.token_ids for r in engine.generate(asked(ids, 6))}


def test_an_answer_goes_on_after_an_end_of_sequence_where_it_is_ignored(serve, ids):
    """Every token is called an end of sequence here, so that the first one ends a usual answer."""
    engine = serve(plan="w=bf16")
    engine.text.eos_ids = frozenset(range(288))
    (short,) = engine.generate([GenerateRequest(prompt=ids(9), max_tokens=5)])
    (whole,) = engine.generate([GenerateRequest(prompt=ids(9), max_tokens=5, ignore_eos=True)])
    assert (len(short.token_ids), short.finish_reason) == (1, "stop")
    assert (len(whole.token_ids), whole.finish_reason) == (5, "length")


def test_every_token_has_its_time(serve, ids):
    (answer,) = serve(plan="w=bf16").generate([GenerateRequest(prompt=ids(9), max_tokens=5, ignore_eos=True)])
    assert isinstance(answer, GenerateResult)
    times, timings = answer.token_times_s, answer.timings
    assert len(times) == 5 and list(times) == sorted(times)
    assert timings.queue_s < times[0] <= timings.queue_s + timings.prefill_s
    assert times[-1] <= timings.queue_s + timings.prefill_s + timings.decode_s


def test_pools_of_another_size_keep_weights_and_answers(serve, ids):
    engine = serve(plan="w=bf16", kv_tokens=64)
    before = [r.token_ids for r in engine.generate(asked(ids, 2))]
    weights = engine.arm().decode.weights
    engine.resize(256)
    assert engine.arm().decode.weights is weights and engine.arm().decode.pool.n_pages == 16
    assert engine.max_length == 256
    assert [r.token_ids for r in engine.generate(asked(ids, 2))] == before


def test_pools_are_not_resized_under_answers(serve, ids):
    engine = serve(plan="w=bf16")
    answers = engine.closed_loop(asked(ids, 3), 2)
    next(answers)
    with pytest.raises(ConfigError, match="under way"):
        engine.resize(256)
    answers.close()
    with pytest.raises(ConfigError, match="kv_tokens is 0"):
        engine.resize(0)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_a_concurrency_that_is_none_is_refused(serve, ids, concurrency):
    with pytest.raises(ConfigError, match="concurrency"):
        next(serve(plan="w=bf16").closed_loop(asked(ids, 1), concurrency))
