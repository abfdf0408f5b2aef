"""Answers of every served architecture, preempted or from cached pages, against transformers reading the same tokens.

fp32; a log-probability differs from the reference's by about what its logits do (see test_parity).
"""

import pytest
import torch

from evalsvc.engine.requests import GenerateRequest, GenerateResult, ScoreRequest, ScoreResult

TOLERANCE = 1e-4
PROMPTS = [12, 28, 30, 44, 60]  # tokens: 12 pages, and one more each once a few are written
WRITTEN = 10
POOL = 13 * 16


@pytest.fixture(scope="module")
def served(architecture, serve, reference):
    """An engine with a small pool, and transformers' log-probabilities of what follows each of some tokens."""
    model = reference(architecture)

    def distributions(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)

    return serve(architecture, "w=fp32,kv=fp32", kv_tokens=POOL), distributions


def hits(engine) -> int:
    return sum(stage["cache"]["hit_tokens"] for stage in engine.stats()["stages"])


def test_preempted_answers_equal_transformers(served, ids, nothing_held):
    engine, distributions = served
    prompts = {str(length): ids(length, seed=length) for length in PROMPTS}
    requests = [
        GenerateRequest(prompt=prompt, max_tokens=WRITTEN, logprobs=0, ignore_eos=True, id=name)
        for name, prompt in prompts.items()
    ]
    answers = list(engine.generate(requests))
    fed = sum(len(answer.token_ids) - 1 for answer in answers)
    assert engine.arm().decode.work.tokens > fed  # some went through decode again
    assert sorted(answer.id for answer in answers) == sorted(prompts)
    for answer in answers:
        assert isinstance(answer, GenerateResult)
        prompt, written = prompts[answer.id], list(answer.token_ids)
        assert len(written) == WRITTEN
        expected = distributions(prompt + written[:-1])[len(prompt) - 1 :]
        assert [token.token for token in answer.logprobs] == written
        for row, token in zip(expected, answer.logprobs, strict=True):
            assert abs(token.logprob - row[token.token]) <= TOLERANCE
            assert row.max() - row[token.token] <= 2 * TOLERANCE
    nothing_held(engine)


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_scores_cold_and_from_cached_pages_equal_transformers(served, ids, through):
    engine, distributions = served
    text = ids(70, seed=8)
    expected = distributions(text)
    tokens = [float(row[token]) for row, token in zip(expected, text[1:], strict=False)]  # of text[1], text[2], ...
    before = hits(engine)
    for cut in (40, 53, 53):  # cold, the first one's pages, and its own
        continuations = (text[cut : cut + 1], text[cut : cut + 17])
        (answer,) = engine.score([ScoreRequest(context=text[:cut], continuations=continuations, through=through)])
        assert isinstance(answer, ScoreResult)
        assert abs(answer.logprobs[0] - tokens[cut - 1]) <= TOLERANCE
        assert abs(answer.logprobs[1] - sum(tokens[cut - 1 : cut + 16])) <= 17 * TOLERANCE
    assert hits(engine) - before >= 2 * 32
