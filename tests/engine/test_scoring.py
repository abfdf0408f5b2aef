"""Log-likelihoods against transformers' own, through both stages, and what a format can and cannot touch."""

from dataclasses import dataclass, replace
from math import exp, fsum

import pytest
import torch
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from evalsvc.engine import scoring
from evalsvc.engine.requests import GenerateRequest, RequestFailure, RollingRequest, ScoreRequest, ScoreResult
from evalsvc.engine.scoring import Rows, take_logprobs
from evalsvc.engine.spans import Span, rolling_windows


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


# -- one letter --------------------------------------------------------------------------------------------------------


LETTERS = (" A", " B", " C", " D")


@pytest.mark.parametrize("arm", ["kv", "weights", "both"])
def test_one_letter_answers_through_prefill_cannot_see_a_decode_format(engine, answers, arm):
    """The blind spot of multiple choice: not one bit of a score moves, whatever decode is served in."""
    questions = [f"Question {n}: which is the end of the {word}?\nAnswer:" for n, word in enumerate(("day", "week"))]
    scores = {}
    for through in ("prefill", "decode"):
        requests = [ScoreRequest(context=q, continuations=LETTERS, through=through, id=q) for q in questions]
        for name in ("same", arm):
            found = list(engine.score(requests, name))
            assert {a.stage_tokens[through] for a in found} == {sum(found[0].continuation_tokens)}
            scores[through, name] = {a.id: a.logprobs for a in found}
    assert scores["prefill", arm] == scores["prefill", "same"]
    for question in questions:
        pairs = zip(scores["decode", arm][question], scores["decode", "same"][question], strict=True)
        assert all(seen != base for seen, base in pairs)


# -- rows that several continuations share -----------------------------------------------------------------------------


@pytest.mark.parametrize(("through", "tokens"), [("prefill", (20 + 3 + 2, 0)), ("decode", (19, 4 + 3))])
def test_continuations_that_begin_alike_share_their_rows(serve, answers, ids, through, tokens):
    """[7] begins [7, 8], which begins [7, 8, 9, 4]; [6, 8, 1] begins none, and comes twice."""
    context = ids(20, 2)
    continuations = ([7], [7, 8], [6, 8, 1], [7, 8, 9, 4], [6, 8, 1], [6], [7, 8, 5, 4][:3])
    together, apart = (serve("llama", "w=bf16") for _ in range(2))
    (found,) = together.score([ScoreRequest(context=context, continuations=continuations, through=through)])
    for index, continuation in enumerate(continuations):
        (single,) = apart.score([ScoreRequest(context=context, continuations=(continuation,), through=through)])
        assert (found.logprobs[index], found.greedy[index]) == (single.logprobs[0], single.greedy[0])
    assert (together.arm().prefill.work.tokens, together.arm().decode.work.tokens) == tokens


def test_a_context_of_one_token_is_decode_alone(serve, ids):
    engine = serve("llama", "w=bf16")
    (answer,) = engine.score([ScoreRequest(context=[5], continuations=([6, 7], [8]), through="decode")])
    assert engine.arm().prefill.work.tokens == 0 and engine.arm().decode.work.tokens == 2
    assert not answer.handed_over
    rows = engine.logits([5, 6], through="decode").log_softmax(-1)
    assert answer.logprobs == (fsum([float(rows[0, 6]), float(rows[1, 7])]), float(rows[0, 8]))
    assert all(seconds >= 0 for seconds in (answer.timings.queue_s, answer.timings.prefill_s, answer.timings.decode_s))
    assert answer.timings.queue_s + answer.timings.prefill_s + answer.timings.decode_s < 60


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_the_likeliest_tokens_are_named_beside_the_scored_one(engine, ids, through):
    context, continuations = ids(18, 4), (ids(3, 5), [9])
    plain = ScoreRequest(context=context, continuations=continuations, through=through)
    (without,) = engine.score([plain], "same")
    (named,) = engine.score([replace(plain, top_logprobs=288)], "same")
    assert without.tokens is None and named.logprobs == without.logprobs
    for continuation, tokens, total in zip(continuations, named.tokens, named.logprobs, strict=True):
        assert [entry.token for entry in tokens] == continuation
        assert fsum(entry.logprob for entry in tokens) == total
        for entry in tokens:
            assert (entry.token, entry.logprob) in entry.top
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True)
            assert fsum(map(exp, values)) == pytest.approx(1, abs=1e-4)
    (three,) = engine.score([replace(plain, top_logprobs=3)], "same")
    assert [[e.top for e in tokens] for tokens in three.tokens] == [[e.top[:3] for e in t] for t in named.tokens]


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_greedy_is_what_generation_writes(engine, ids, through):
    context = ids(23, 9)
    (written,) = engine.generate([GenerateRequest(prompt=context, max_tokens=6)], "same")
    greedy = list(written.token_ids)
    for index in range(6):
        changed = [*greedy[:index], (greedy[index] + 1) % 256, *greedy[index + 1 :]]
        request = ScoreRequest(context=context, continuations=(greedy, changed, greedy[: index + 1]), through=through)
        (answer,) = engine.score([request], "same")
        assert answer.greedy == (True, False, True)


def test_greedy_goes_by_the_logits_where_rounding_makes_log_probabilities_equal():
    """Two logits a rounding apart, and log-probabilities so small that their roundings lie wider."""
    rows = torch.zeros(1, 40000)
    rows[0, :2] = torch.tensor([1e-7, 2e-7])
    assert rows.log_softmax(-1).argmax() == 0 and rows.argmax() == 1
    found = []

    @dataclass
    class Taker:
        spans: list
        top: int = 0

        def add(self, place, scored, likeliest, logprobs):
            found.append((scored.token, likeliest))

    taker = Taker([Span([5], [0]), Span([5], [1])])
    take_logprobs(rows, [(0, Rows([taker], [[(0, 0), (1, 0)]]), 0)])  # pyright: ignore[reportArgumentType]
    assert found == [(0, False), (1, True)]


# -- against a reference arm -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["prefill", "decode"])
@pytest.mark.parametrize("reference", ["same", "both", "prefill kv"])
def test_divergences_are_the_closed_form_over_the_whole_vocabulary(engine, ids, through, reference):
    """In fp64 from the logits of one sequence through the stage; decode reads what prefill computed of the context,
    so that here the context is one token and decode computes all of it."""
    context, continuations = (ids(17, 3) if through == "prefill" else [5]), (ids(5, 4), ids(2, 5))
    arms = ("same", "kv", "both", "prefill kv", "again")
    request = ScoreRequest(
        context=context, continuations=continuations, through=through, compare_with=reference, arms=arms
    )
    found = {answer.arm: answer for answer in engine.score([request])}
    assert found.pop(reference).divergences is None and set(found) == set(arms) - {reference}

    def distribution(arm: str, continuation: list[int]) -> torch.Tensor:
        rows = engine.logits([*context, *continuation[:-1]], arm, through)
        return rows[len(context) - 1 :].double().log_softmax(-1)

    for arm, answer in found.items():
        for continuation, divergences in zip(continuations, answer.divergences, strict=True):
            p, q = (distribution(name, continuation) for name in (reference, arm))
            expected = (p.exp() * (p - q)).sum(-1).tolist()
            assert [d.kl for d in divergences] == pytest.approx(expected, rel=1e-3, abs=1e-7)
            assert [d.same_top1 for d in divergences] == (p.argmax(-1) == q.argmax(-1)).tolist()
            equal = all(torch.equal(a, b) for a, b in zip(p, q, strict=True))
            assert equal == all(d.kl == 0.0 and d.same_top1 for d in divergences)
    assert reference != "same" or {d.kl for answer in (found["again"],) for t in answer.divergences for d in t} == {0.0}


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_distributions_are_kept_only_until_they_are_compared(engine, ids, monkeypatch, through):
    """Thirty tokens of three arms side by side: what is kept is what one step brings, not the whole."""
    kept, made = [], []
    make, add = scoring.Comparison.__init__, scoring.Comparison.add
    monkeypatch.setattr(scoring.Comparison, "__init__", lambda self, *a: made.append(self) or make(self, *a))
    monkeypatch.setattr(scoring.Comparison, "add", lambda self, *a: add(self, *a) or kept.append(self.held))
    arms = ("same", "kv", "again")
    request = ScoreRequest(
        context=ids(17), continuations=(ids(30, 1),), through=through, compare_with="same", arms=arms
    )
    assert len(list(engine.score([request]))) == 3
    assert len(kept) == 90 and max(kept) <= 2 and made[0].held == 0


# -- whole texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 7, 16])
def test_windows_are_lm_evals(ids, window):
    for length in (*range(1, 4 * window + 2), 100):
        text = ids(length, length)
        theirs = map(make_disjoint_window, get_rolling_token_windows(text, 1000, window, context_len=1))
        ours = rolling_windows(text, 1000, window)
        assert [(span.context, span.tokens) for span in ours] == [(list(a), list(b)) for a, b in theirs]
        assert [token for span in ours for token in span.tokens] == text


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_a_whole_texts_score_is_the_sum_over_its_windows(serve, reference, ids, through):
    """fp32, against transformers reading each window."""
    theirs, engine = reference("llama"), serve("llama", "w=fp32,kv=fp32", max_length=32)
    texts = {str(length): ids(length, length) for length in (1, 2, 31, 32, 33, 64, 65, 100)}
    for answer in engine.score([RollingRequest(text=text, through=through, id=id_) for id_, text in texts.items()]):
        length = int(answer.id)
        assert answer.continuation_tokens == (length,) and answer.stage_tokens[through] == length
        spans = rolling_windows(texts[answer.id], engine.text.prefix_id, 32)
        parts = [expected(theirs, span.context, span.tokens) for span in spans]
        assert answer.logprobs[0] == pytest.approx(sum(value for value, _ in parts), abs=1e-5 * (length + 4))
        assert answer.greedy == (all(greedy for _, greedy in parts),)


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_a_pool_of_one_window_gives_a_whole_texts_score_to_the_last_bit(serve, ids, through):
    """A window is a pool full: one token before it and as many as the model can hold."""
    request = RollingRequest(text=ids(100), through=through)
    engines = [serve("llama", "w=bf16", max_length=32, kv_tokens=tokens) for tokens in (32, 2048)]
    small, large = (next(engine.score([request])) for engine in engines)
    assert isinstance(small, ScoreResult) and (small.logprobs, small.greedy) == (large.logprobs, large.greedy)


def test_a_pool_smaller_than_the_models_windows_is_refused_and_never_moves_them(serve, ids):
    """The same text in shorter windows would have another score, without a word."""
    small, large = serve("llama", "w=bf16", kv_tokens=64), serve("llama", "w=bf16")
    for length in (63, 64):
        scores = [next(e.score([RollingRequest(text=ids(length))])).logprobs for e in (small, large)]
        assert scores[0] == scores[1]
    refused = next(small.score([RollingRequest(text=ids(65))]))
    assert isinstance(refused, RequestFailure) and refused.error == "too_long"
    assert refused.message == "a window of 65 tokens exceeds the 64 of a pool; raise `kv_tokens`"
    assert isinstance(next(large.score([RollingRequest(text=ids(65))])), ScoreResult)


def test_a_whole_text_may_be_words(serve):
    engine = serve("llama", "w=bf16")
    text = "the end and the other end"
    by_words, by_ids = (next(engine.score([RollingRequest(text=t)])) for t in (text, engine.text.encode_plain(text)))
    assert by_words.logprobs == by_ids.logprobs and by_words.prompt_sha256 == by_ids.prompt_sha256


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_each_continuation_may_have_a_context_of_its_own(serve, ids, through):
    engine = serve("llama", "w=bf16")
    contexts, tails = [ids(20, 1), ids(9, 2), ids(20, 1)], [ids(3, 4), ids(3, 4), ids(2, 5)]
    request = ScoreRequest(context=contexts[0], contexts=contexts, continuations=tails, through=through)
    together = next(engine.score([request]))
    alone = [
        next(engine.score([ScoreRequest(context=c, continuations=(t,), through=through)]))
        for c, t in zip(contexts, tails, strict=True)
    ]
    assert together.logprobs == tuple(one.logprobs[0] for one in alone)
    assert together.greedy == tuple(one.greedy[0] for one in alone)
    other = next(engine.score([replace(request, contexts=[contexts[0], ids(9, 3), contexts[2]])]))
    assert other.prompt_sha256 != together.prompt_sha256


def test_a_beginning_of_sequence_that_the_tokenizer_writes_is_scored_in_a_whole_text_as_in_lm_eval(serve):
    from tokenizers.processors import TemplateProcessing

    engine = serve("llama", "w=bf16")
    core = engine.text.tokenizer.backend_tokenizer
    plain = next(engine.score([RollingRequest(text="the end")]))
    core.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    begun = next(engine.score([RollingRequest(text="the end")]))
    assert begun.continuation_tokens[0] == plain.continuation_tokens[0] + 1


# -- what cannot be scored ---------------------------------------------------------------------------------------------


BAD = {
    "empty context": ({"context": []}, "bad_request", "context is empty"),
    "blank context": ({"context": "  ", "continuations": ("x",)}, "bad_request", "context is empty"),
    "no continuation": ({"continuations": ()}, "bad_request", "no token of its own"),
    "empty continuation": ({"continuations": ([5], [])}, "bad_request", "no token of its own"),
    "contexts": ({"contexts": ([5], [6])}, "bad_request", "2 contexts for 1 continuations"),
    "foreign id": ({"continuations": ([5], [288])}, "bad_request", "token id 288"),
    "foreign context": ({"context": [400]}, "bad_request", "token id 400"),
    "mixed": ({"context": "text"}, "bad_request", "all text or all token ids"),
    "surrogate": ({"context": "a\ud800", "continuations": ("b",)}, "bad_request", "surrogate"),
    "through": ({"through": "both"}, "bad_request", "prefill or decode"),
    "too long": ({"context": [5] * 500, "continuations": ([5] * 20,)}, "too_long", "520"),
    "no context": ({"context": None}, "bad_request", "context is None"),
    "one continuation": ({"context": "x", "continuations": "abc"}, "bad_request", "continuations is 'abc'; it must be"),
    "a number": ({"continuations": (5,)}, "bad_request", "a continuation is 5"),
    "top": ({"top_logprobs": 289}, "bad_request", "from 0 to 288"),
    "half a top": ({"top_logprobs": 1.5}, "bad_request", "from 0 to 288"),
    "deadline": ({"deadline_s": -1}, "bad_request", "deadline_s is -1"),
    "reference": ({"compare_with": "kv"}, "bad_request", "'kv' is not one of the request's arms ['same']"),
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
    run = PrefillStage.run
    monkeypatch.setattr(
        PrefillStage, "run", lambda self, c: sizes.append(sum(len(x.tokens) for x in c)) or run(self, c)
    )
    next(engine.score([request]))
    assert sum(sizes) == 5 + 8 * 99 and max(sizes) <= 512


def test_an_empty_text_and_one_that_is_no_text_are_refused(serve):
    engine = serve("llama", "w=bf16")
    for text, words in (
        ("", "the text is empty"),
        ([], "the text is empty"),
        (None, "text is None"),
        ([288], "id 288"),
    ):
        failure = next(engine.score([RollingRequest(text=text)]))
        assert isinstance(failure, RequestFailure) and failure.error == "bad_request" and words in failure.message
