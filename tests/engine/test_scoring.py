"""Log-likelihoods against transformers' own, through both stages, and what a format can and cannot touch."""

import pytest
import torch

from evalsvc.engine.requests import RequestFailure, ScoreRequest, ScoreResult


def expected(model, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation])).logits[0].double()
    rows = logits[len(context) - 1 : -1].log_softmax(-1)
    picked = rows[torch.arange(len(continuation)), torch.tensor(continuation)]
    return float(picked.sum()), rows.argmax(-1).tolist() == continuation


@pytest.mark.parametrize("through", ["prefill", "decode"])
@pytest.mark.parametrize("model", ["llama", "qwen2"])
def test_log_likelihoods_equal_transformers(serve, reference, ids, nothing_held, model, through):
    """fp32; contexts of one token, of exactly one and two pages, and one more."""
    engine, theirs = serve(model, "w=fp32,kv=fp32"), reference(model)
    requests = []
    for n in (1, 2, 16, 17, 32, 33):
        context = ids(n, n)
        with torch.no_grad():
            best = theirs(torch.tensor([context])).logits[0, -1].argmax().item()
        continuations = ([best], ids(1, 5), ids(4, 6), ids(20, 7))
        requests.append(ScoreRequest(context=context, continuations=continuations, through=through, id=str(n)))
    for answer in engine.score(requests):
        request = next(r for r in requests if r.id == answer.id)
        for got, greedy, continuation in zip(answer.logprobs, answer.greedy, request.continuations, strict=True):
            wanted, theirs_greedy = expected(theirs, list(request.context), list(continuation))
            assert got == pytest.approx(wanted, abs=1e-5 * (len(continuation) + 4))
            assert greedy == theirs_greedy
        assert answer.greedy[0] and answer.continuation_tokens == (1, 1, 4, 20)
        assert answer.stage_tokens == {"prefill": 0, "decode": 0} | {through: 26}
        assert answer.handed_over == (through == "decode" and request.id != "1")
    nothing_held(engine)


def scores(engine, arm, through, ids):
    """Contexts of several tokens: a decode format shows on what is handed over."""
    requests = [
        ScoreRequest(context=ids(n, n), continuations=(ids(1, 50), ids(6, 60)), through=through, id=str(n))
        for n in (5, 16, 40)
    ]
    return {a.id: a.logprobs for a in engine.score(requests, arm)}


DECODES = {
    "same": "w=bf16,kv=bf16",
    "kv": "kv=bf16 > kv=fp8",
    "weights": "w=bf16 > w=int4:g32:asym",
    "both": "w=bf16,kv=bf16 > w=fp8,kv=fp8:uncalibrated",
}
PREFILLS = {"prefill kv": "kv=fp8 > kv=bf16", "prefill weights": "w=fp8 > w=bf16"}


@pytest.fixture(scope="module")
def engine(serve):
    return serve("llama", plan=None, plans=DECODES | PREFILLS | {"again": "w=bf16"})


@pytest.mark.parametrize("arm", ["kv", "weights", "both"])
def test_a_decode_format_is_blind_through_prefill_and_seen_through_decode(engine, ids, arm):
    assert scores(engine, arm, "prefill", ids) == scores(engine, "same", "prefill", ids)
    seen, base = scores(engine, arm, "decode", ids), scores(engine, "same", "decode", ids)
    assert all(a != b for key in base for a, b in zip(seen[key], base[key], strict=True))


@pytest.mark.parametrize("arm", list(PREFILLS))
def test_a_prefill_format_is_seen_through_both_stages(engine, ids, arm):
    for through in ("prefill", "decode"):
        seen, base = scores(engine, arm, through, ids), scores(engine, "same", through, ids)
        assert all(seen[key] != base[key] for key in base)


def test_the_two_stages_agree_closely_where_their_formats_do(engine, ids):
    """bf16 roundings differ between a tile of queries and one; half a unit over six tokens would be a fault."""
    a, b = (scores(engine, "same", through, ids) for through in ("prefill", "decode"))
    for key in a:
        assert a[key] == pytest.approx(b[key], abs=0.25)


def kl(engine, arm, through, ids) -> float:
    """Mean divergence from the bf16 arm over a fixed text."""
    prompt = ids(60, 77)
    p, q = (engine.logits(prompt, name, through).double().log_softmax(-1) for name in ("same", arm))
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("arm", [*DECODES, *PREFILLS, "again"])
def test_divergence_is_above_zero_exactly_where_a_stages_format_differs(engine, ids, arm):
    base, mine = engine.specs["same"].plan, engine.specs[arm].plan
    assert (kl(engine, arm, "prefill", ids) > 1e-6) == (base.prefill != mine.prefill)
    assert (kl(engine, arm, "decode", ids) > 1e-6) == (base.decode != mine.decode)
    if base.prefill == mine.prefill:
        assert kl(engine, arm, "prefill", ids) == 0.0


def test_arms_asked_in_turn_never_receive_each_others_answers(engine, ids):
    first = {arm: scores(engine, arm, "decode", ids) for arm in DECODES}
    assert {arm: scores(engine, arm, "decode", ids) for arm in reversed(DECODES)} == first
    assert len({str(value) for value in first.values()}) == len(DECODES)


BAD = {
    "empty context": ({"context": []}, "bad_request", "context is empty"),
    "blank context": ({"context": "  ", "continuations": ("x",)}, "bad_request", "context is empty"),
    "no continuation": ({"continuations": ()}, "bad_request", "no token of its own"),
    "empty continuation": ({"continuations": ([5], [])}, "bad_request", "no token of its own"),
    "foreign id": ({"continuations": ([5], [288])}, "bad_request", "token id 288"),
    "foreign context": ({"context": [400]}, "bad_request", "token id 400"),
    "mixed": ({"context": "text"}, "bad_request", "all text or all token ids"),
    "surrogate": ({"context": "a\ud800", "continuations": ("b",)}, "bad_request", "surrogate"),
    "through": ({"through": "both"}, "bad_request", "prefill or decode"),
    "too long": ({"context": [5] * 500, "continuations": ([5] * 20,)}, "too_long", "520"),
}


@pytest.mark.parametrize("through", ["prefill", "decode"])
@pytest.mark.parametrize("name", BAD)
def test_a_request_that_cannot_be_scored_fails_alone(engine, ids, nothing_held, name, through):
    change, error, words = BAD[name]
    good = ScoreRequest(context=ids(7, 1), continuations=(ids(3, 2),), through=through, id="good")
    bad = ScoreRequest(**{"context": ids(7, 3), "continuations": ([5],), "through": through, "id": "bad"} | change)
    answers = {a.id: a for a in engine.score([bad, good], "same")}
    failure = answers["bad"]
    assert isinstance(failure, RequestFailure) and failure.error == error and words in failure.message
    assert answers["good"].logprobs == next(engine.score([good], "same")).logprobs
    nothing_held(engine, "same")


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_non_finite_logits_fail_their_request_alone(serve, ids, through):
    engine = serve("llama", "w=bf16,kv=bf16")
    good = ScoreRequest(context=ids(20, 1), continuations=([7], [8, 9]), through=through, id="good")
    before = next(engine.score([good])).logprobs
    engine.arm().prefill.weights.model.get_input_embeddings().weight.data[270] = torch.nan
    bad = ScoreRequest(context=[7, 270, 7], continuations=([7], [8, 9]), through=through, id="bad")
    late = ScoreRequest(context=[7, 7, 7], continuations=([7], [270, 9, 9]), through=through, id="late")
    answers = {a.id: a for a in engine.score([bad, good, late])}
    assert answers["bad"].error == answers["late"].error == "non_finite_logits"
    assert answers["good"].logprobs == before


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_held_prefixes_make_room_before_a_request_is_refused(serve, nothing_held, through):
    """An answer must not hang on which prefixes were asked before."""
    engine = serve("llama", "w=bf16", kv_tokens=112)
    for letter in "ab":
        request = ScoreRequest(context=letter * 40 + "x", continuations=("yz",), through=through)
        assert not isinstance(next(engine.score([request])), RequestFailure)
    large = ScoreRequest(context="c" * 33, continuations=("y" * 30, "z" * 30), through=through)
    assert not isinstance(next(engine.score([large])), RequestFailure)
    nothing_held(engine)


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_continuations_that_cannot_fit_together_run_one_after_the_other(serve, ids, nothing_held, through):
    small, large = (serve("llama", "w=bf16", kv_tokens=tokens) for tokens in (96, 2048))
    many = ScoreRequest(context=ids(41), continuations=tuple(ids(24, n) for n in range(6)), through=through)
    answer, expected = (next(engine.score([many])) for engine in (small, large))
    assert isinstance(answer, ScoreResult) and answer.logprobs == expected.logprobs
    nothing_held(small)
    too_large = ScoreRequest(context=ids(41), continuations=(ids(60), ids(2)), through=through)
    answer = next(small.score([too_large]))
    assert isinstance(answer, RequestFailure) and answer.error == "too_long"
    nothing_held(small)


def test_long_continuations_are_scored_in_forwards_of_bounded_size(serve, ids, monkeypatch):
    from evalsvc.engine.stage import PrefillStage

    engine = serve("llama", "w=bf16")
    request = ScoreRequest(context=ids(5), continuations=tuple(ids(100, n) for n in range(8)))
    sizes: list[int] = []
    forward = PrefillStage.forward
    monkeypatch.setattr(
        PrefillStage, "forward", lambda self, c: sizes.append(sum(len(x.tokens) for x in c)) or forward(self, c)
    )
    next(engine.score([request]))
    assert sum(sizes) == 5 + 8 * 99 and max(sizes) <= 512
