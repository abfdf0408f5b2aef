"""Generation: what ends an answer, what is refused, and that nobody pays for a neighbour."""

import pytest
import torch

from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure
from evalsvc.engine.sampling import Choice, Sampling, choose


@pytest.fixture(scope="module")
def engine(serve):
    return serve("llama", "w=fp32,kv=fp32", max_batch=4)


def ask(engine, prompt, max_tokens=12, **options):
    return next(engine.generate([GenerateRequest(prompt=prompt, max_tokens=max_tokens, **options)]))


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_greedy_answers_equal_transformers_generate(serve, reference, ids, model):
    engine, theirs = serve(model, "w=fp32,kv=fp32"), reference(model)
    prompts = [ids(n, n) for n in (3, 16, 40)]
    answers = {
        a.id: a for a in engine.generate([GenerateRequest(prompt=p, max_tokens=20, id=str(len(p))) for p in prompts])
    }
    for prompt in prompts:
        tensor = torch.tensor([prompt])
        out = theirs.generate(
            tensor, attention_mask=torch.ones_like(tensor), max_new_tokens=20, do_sample=False, pad_token_id=1
        )
        assert list(answers[str(len(prompt))].token_ids) == out[0, len(prompt) :].tolist()


def test_the_limit_ends_an_answer_and_the_first_token_is_prefills(engine, ids):
    answer = ask(engine, ids(9), 5)
    assert (len(answer.token_ids), answer.finish_reason) == (5, "length")
    assert answer.stage_tokens == {"prefill": 1, "decode": 4}
    assert answer.prompt_tokens == 9
    one = ask(engine, ids(9), 1)
    assert one.token_ids == answer.token_ids[:1] and one.stage_tokens == {"prefill": 1, "decode": 0}


@pytest.mark.parametrize("at", [0, 3])
def test_any_end_of_sequence_id_ends_an_answer_and_is_not_in_its_text(serve, ids, monkeypatch, at):
    engine = serve("llama", "w=fp32,kv=fp32")
    free = ask(engine, ids(9), 8)
    ending = free.token_ids[at]
    first = free.token_ids.index(ending)
    monkeypatch.setattr(engine.text, "eos_ids", frozenset({1, ending}))
    cut = ask(engine, ids(9), 8)
    assert cut.finish_reason == "stop"
    assert cut.token_ids == free.token_ids[: first + 1]
    assert cut.text == engine.text.decode(ids(9)[-1], free.token_ids[:first])


def test_a_stop_string_across_token_borders_ends_the_answer_and_is_cut_off(engine, ids):
    requests = [GenerateRequest(prompt=ids(5, n), max_tokens=12, id=str(n)) for n in range(60)]
    # An answer with three tokens of one plain character each, after its third token.

    def tail(answer) -> str:
        return engine.text.decode(5, answer.token_ids[3:6])

    free = next(a for a in engine.generate(requests) if tail(a).isascii() and len(tail(a)) >= 3 and tail(a) in a.text)
    cut = ask(engine, ids(5, int(free.id)), stop=("never", tail(free)))
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: free.text.index(tail(free))]
    assert len(cut.token_ids) <= 6


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop(engine):
    free = ask(engine, "abc", 6)
    cut = ask(engine, "abc", 6, stop=(free.text[-1],))
    assert cut.finish_reason == "stop"


def test_a_stop_string_of_the_prompt_does_not_end_the_answer(engine):
    free = ask(engine, "abc", 6)
    assert ask(engine, "abcQQQ", 6, stop=("QQQ",)).finish_reason == ("stop" if "QQQ" in free.text else "length")


@pytest.mark.parametrize(("known", "hits"), [(15, 0), (16, 16), (33, 32), (48, 47)])
def test_a_beginning_that_is_known_is_not_computed_again_and_changes_nothing(serve, ids, known, hits):
    """A prompt that is known whole has its last token computed all the same."""
    cold, warm = (serve("llama", "w=fp32,kv=fp32") for _ in range(2))
    prompt = ids(48)
    assert ask(warm, prompt[:known]).prompt_tokens == known
    before = warm.proof()["prefill"]["tokens_computed"]
    assert ask(warm, prompt).token_ids == ask(cold, prompt).token_ids
    assert warm.proof()["prefill"]["tokens_computed"] - before == len(prompt) - hits


# -- samples, seeds ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(serve):
    """An engine in which samples of one prompt differ."""
    return serve("llama", "w=bf16,kv=bf16 > w=bf16,kv=fp8", max_batch=8)


def samples(engine, **fields) -> dict[int, tuple]:
    request = GenerateRequest(**({"max_tokens": 10, "temperature": 1.5, "seed": 3, "logprobs": 1} | fields))
    return {a.sample: (a.token_ids, a.text, a.logprobs) for a in engine.generate([request])}


def test_samples_come_from_one_prefill_and_differ(drawn, ids):
    prompt = ids(40, 1)
    before = drawn.arm().prefill.work.tokens
    four = samples(drawn, prompt=prompt, n=4)
    assert drawn.arm().prefill.work.tokens - before == 40
    assert sorted(four) == [0, 1, 2, 3]
    assert len({tokens for tokens, *_ in four.values()}) == 4


def test_a_sample_is_the_same_however_many_are_drawn(drawn, ids):
    prompt = ids(33, 2)
    four = samples(drawn, prompt=prompt, n=4)
    assert samples(drawn, prompt=prompt) == {0: four[0]}
    assert samples(drawn, prompt=prompt, n=11).items() >= four.items()  # more than run side by side


def test_a_seed_decides_the_draw_and_nothing_else_does(drawn, ids):
    prompt = ids(20, 3)
    one, again, other = (samples(drawn, prompt=prompt, seed=seed)[0] for seed in (5, 5, 6))
    assert one == again != other
    crowd = [GenerateRequest(prompt=ids(n, n), max_tokens=15, temperature=2.0, seed=5, id=str(n)) for n in range(5, 12)]
    asked = GenerateRequest(prompt=prompt, max_tokens=10, temperature=1.5, seed=5, logprobs=1, id="asked")
    for requests in ([asked, *crowd], [*crowd, asked]):
        found = next(a for a in drawn.generate(requests) if a.id == "asked")
        assert (found.token_ids, found.text, found.logprobs) == one


def test_each_token_is_drawn_with_the_noise_of_its_own_sample_and_step(engine, ids):
    """fp32: drawn again from this engine's logits of prompt and answer, computed at once."""
    prompt = ids(20, 7)
    request = GenerateRequest(prompt=prompt, max_tokens=12, temperature=1.5, top_k=40, seed=9, n=3)
    for answer in engine.generate([request]):
        rows = engine.logits([*prompt, *answer.token_ids[:-1]])[len(prompt) - 1 :]
        sampling = Sampling.from_request(request)
        choices = [Choice(sampling, answer.sample, step) for step in range(len(rows))]
        assert tuple(choose(rows, choices)) == answer.token_ids


def test_greedy_samples_are_all_the_greedy_answer(drawn, ids):
    found = samples(drawn, prompt=ids(20, 3), n=3, temperature=0.0)
    assert len(set(found.values())) == 1


# -- log-probabilities -------------------------------------------------------------------------------------------------


def test_logprobs_are_the_softmax_of_the_logits_at_each_token(engine, ids):
    """fp32: against this engine's own logits of prompt and answer, computed at once."""
    prompt = ids(21, 4)
    answer = ask(engine, prompt, 12, logprobs=4)
    rows = engine.logits([*prompt, *answer.token_ids[:-1]])[len(prompt) - 1 :].double().log_softmax(-1)
    assert [entry.token for entry in answer.logprobs] == list(answer.token_ids)
    for entry, row in zip(answer.logprobs, rows, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        best = row.topk(4)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert entry.top[0] == (entry.token, entry.logprob)  # greedy: what was written is the likeliest


def test_the_likeliest_are_named_with_their_texts_and_change_no_answer(engine, ids):
    bare, asked = (ask(engine, ids(21, 4), 12, logprobs=k) for k in (None, 5))
    assert bare.token_ids == asked.token_ids and bare.text == asked.text
    named = {token for entry in asked.logprobs for token, _ in entry.top}
    assert asked.texts.keys() == named and len(named) > 5 and bare.texts == {}


def test_logprobs_are_the_models_own_and_not_the_filtered_ones(drawn, ids):
    """A token drawn at a high temperature from two is still named with its probability among all."""
    answer = ask(drawn, ids(20, 6), 12, temperature=50.0, top_k=2, logprobs=2, seed=1)
    for entry in answer.logprobs:
        assert (entry.token, entry.logprob) in entry.top
        assert entry.logprob < -1e-3 and sum(torch.tensor([v for _, v in entry.top]).exp()) < 1
    assert any(entry.token != entry.top[0][0] for entry in answer.logprobs)


def test_logprobs_of_nothing_else_name_no_other_token(engine, ids):
    none, own = ask(engine, ids(9), 4), ask(engine, ids(9), 4, logprobs=0)
    assert none.logprobs is None
    assert [entry.top for entry in own.logprobs] == [()] * 4 and own.token_ids == none.token_ids


# -- stop strings, conversations ---------------------------------------------------------------------------------------


def test_of_many_stop_strings_the_one_that_comes_first_ends_the_answer(engine, ids):
    free = next(a for n in range(40) if len((a := ask(engine, ids(5, n), 10, id=str(n))).text) > 8)
    stop = free.text[5:7]
    many = tuple(f"never {n} comes" for n in range(2000))
    cut = ask(engine, ids(5, int(free.id)), 10, stop=(*many, free.text[7:8], stop))
    assert (cut.finish_reason, cut.text) == ("stop", free.text[: min(free.text.index(stop), free.text.index(stop[-1]))])


TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def test_messages_are_the_text_that_the_chat_template_makes_of_them(engine, monkeypatch):
    monkeypatch.setattr(engine.text.tokenizer, "chat_template", TEMPLATE)
    messages = [{"role": "system", "content": "the end"}, {"role": "user", "content": "then"}]
    asked, written = ask(engine, messages), ask(engine, "s:the end;u:then;a:")
    assert (asked.token_ids, asked.prompt_sha256) == (written.token_ids, written.prompt_sha256)
    assert asked.prompt_tokens == len(engine.text.encode("s:the end;u:then;a:"))


# -- what cannot be answered -------------------------------------------------------------------------------------------


BAD = {
    "empty": ({"prompt": ""}, "bad_request", "empty"),
    "no ids": ({"prompt": []}, "bad_request", "empty"),
    "no tokens": ({"max_tokens": 0}, "bad_request", "at least 1"),
    "empty stop": ({"stop": ("",)}, "bad_request", "stop string is empty"),
    "foreign id": ({"prompt": [5, 288]}, "bad_request", "token id 288"),
    "negative id": ({"prompt": [-1]}, "bad_request", "token id -1"),
    "surrogate": ({"prompt": "a\udc00"}, "bad_request", "surrogate"),
    "too long": ({"max_tokens": 600}, "too_long", "512"),
    "nothing": ({"prompt": None}, "bad_request", "the prompt is None"),
    "a number": ({"prompt": 5}, "bad_request", "the prompt is 5"),
    "no template": ({"prompt": [{"role": "user", "content": "x"}]}, "bad_request", "no chat template"),
    "half a token": ({"max_tokens": 2.5}, "bad_request", "max_tokens is 2.5"),
    "no samples": ({"n": 0}, "bad_request", "n is 0"),
    "yes samples": ({"n": True}, "bad_request", "n is True"),
    "one stop": ({"stop": "abc"}, "bad_request", "stop is 'abc'; it must be a list"),
    "no stops": ({"stop": None}, "bad_request", "stop is None"),
    "stop at an id": ({"stop": (5,)}, "bad_request", "no text: 5"),
    "logprobs": ({"logprobs": 289}, "bad_request", "from 0 to 288"),
    "deadline": ({"deadline_s": "5"}, "bad_request", "deadline_s is '5'"),
    "temperature": ({"temperature": -1}, "bad_request", "temperature is -1"),
    "seed": ({"seed": -1}, "bad_request", "seed is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_cannot_be_answered_fails_alone(engine, nothing_held, name):
    change, error, words = BAD[name]
    good = [GenerateRequest(prompt=p, max_tokens=4, id=p) for p in ("abc", "defg")]
    fields = {"prompt": "xyz", "max_tokens": 4, "id": "bad"} | change
    answers = {a.id: a for a in engine.generate([good[0], GenerateRequest(**fields), good[1]])}
    failure = answers["bad"]
    assert isinstance(failure, RequestFailure) and failure.error == error and words in failure.message
    assert all(answers[r.id].token_ids == ask(engine, r.prompt, 4).token_ids for r in good)
    nothing_held(engine)


def test_non_finite_logits_are_a_failure_of_their_request_alone(serve, nothing_held):
    """Token `Z` has an embedding of NaN: who does not say it keeps every bit."""
    engine = serve("llama_mha", "w=bf16,kv=fp8", max_batch=8)
    good = [GenerateRequest(prompt=p, max_tokens=6, id=p) for p in ("abc", "hello there", "q")]
    before = {a.id: a.token_ids for a in engine.generate(good)}
    z = engine.text.encode("Z")[0]
    for stage in (engine.arm().prefill, engine.arm().decode):
        embedding = stage.weights.model.get_input_embeddings().weight
        embedding.data[z] = torch.nan
    head = engine.arm().prefill.weights.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(
        head.weight.data.nan_to_num(0.0), requires_grad=False
    )  # tied: only the input is NaN
    answers = {
        a.id: a for a in engine.generate([*good[:2], GenerateRequest(prompt="aZb", max_tokens=6, id="bad"), good[2]])
    }
    assert answers["bad"].error == "non_finite_logits"
    assert {r.id: answers[r.id].token_ids for r in good} == before
    nothing_held(engine)


def test_a_request_larger_than_the_pool_fails_and_the_rest_is_answered(serve, ids, nothing_held):
    engine = serve("llama", "w=fp32,kv=fp32", kv_tokens=40)
    requests = [GenerateRequest(prompt=ids(20, n), max_tokens=m, id=str(n)) for n, m in enumerate((5, 29, 12, 20))]
    answers = {a.id: a for a in engine.generate(requests)}
    assert answers["1"].error == "too_long"
    assert [len(answers[str(n)].token_ids) for n in (0, 2, 3)] == [5, 12, 20]
    nothing_held(engine)


def test_who_stops_listening_leaves_no_page_held(engine, ids, nothing_held):
    stream = engine.generate([GenerateRequest(prompt=ids(20, n), max_tokens=2 + 9 * n) for n in range(6)])
    assert isinstance(next(stream), GenerateResult)
    stream.close()
    nothing_held(engine)


def test_an_error_in_a_forward_leaves_no_page_held(engine, ids, monkeypatch, nothing_held):
    for stage in (engine.arm().prefill, engine.arm().decode):
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="boom"):

            def broken(*_, **__):
                raise RuntimeError("boom")

            place = (stage.weights.model, "forward") if stage.name == "prefill" else (stage, "run")
            patched.setattr(*place, broken)
            list(engine.generate([GenerateRequest(prompt=ids(20, n), max_tokens=3) for n in range(3)]))
        nothing_held(engine)


def test_answers_say_how_long_they_waited_and_took(engine, ids):
    answers = list(engine.generate([GenerateRequest(prompt=ids(20, n), max_tokens=5) for n in range(6)]))
    for answer in answers:
        assert answer.timings.queue_s >= 0 and answer.timings.prefill_s > 0 and answer.timings.decode_s > 0


def test_results_hash_the_prompt_that_was_computed(engine, ids):
    a, b = ask(engine, ids(9, 1), 1), ask(engine, ids(9, 2), 1)
    assert a.prompt_sha256 != b.prompt_sha256 == ask(engine, ids(9, 2), 2).prompt_sha256


def test_special_tokens_stay_in_the_text_where_that_is_asked(engine, ids, monkeypatch):
    free = ask(engine, ids(9), 8)
    monkeypatch.setattr(engine.text, "spelt", lambda held: "".join(f"[{i}]" for i in held))
    kept = ask(engine, ids(9), 8, keep_special=True)
    assert kept.token_ids == free.token_ids
    assert kept.text == "".join(f"[{i}]" for i in free.token_ids)
    assert ask(engine, ids(9), 8).text == free.text
