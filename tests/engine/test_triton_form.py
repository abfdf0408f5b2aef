"""An engine whose kernels are Triton's, interpreted, beside the same engine whose kernels are torch's."""

from unittest.mock import ANY

import pytest

from evalsvc.engine.batch import Chunk
from evalsvc.engine.requests import GenerateRequest, ScoreRequest
from evalsvc.errors import ConfigError

pytest.importorskip("triton")

PROMPTS = ("the end of", "and then the theatre", "a")
ATTENTION = {"prefill": "paged_prefill", "decode": "paged_decode"}


@pytest.fixture
def forced(monkeypatch):
    """Forces a form from now on."""

    def force(form: str) -> None:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setenv("EVALSVC_KERNELS", form)

    return force


def asked(engine):
    """Tokens of three prompts side by side, log-likelihoods through decode, and the proof."""
    requests = [GenerateRequest(id=text, prompt=text, max_tokens=3) for text in PROMPTS]
    tokens = {r.id: r.token_ids for r in engine.generate(requests)}
    score = ScoreRequest(context="the end", continuations=[" and", " the"], through="decode")
    (scored,) = engine.score([score])
    return tokens, scored.logprobs, engine.proof()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama", "w=fp32,kv=fp32"),
        ("gemma2", "w=fp32,kv=fp32"),
        ("gpt_oss", "w=fp32,kv=fp32 > w=fp32,kv=int8"),
        ("llama", "w=fp32,kv=fp8 > w=fp32,kv=fp8"),
    ],
)
def test_triton_gives_the_tokens_and_nearly_the_logits_that_torch_gives(serve, forced, name, plan):
    """fp32 products of two orders of summation: 1e-4 of log-likelihoods near -5. Windows, caps and sinks among them."""
    found = {}
    for form in ("torch", "triton"):
        forced(form)
        found[form] = asked(serve(name, plan, kv_tokens=512))
    (tokens, scores, proof), (torch_tokens, torch_scores, torch_proof) = found["triton"], found["torch"]
    assert tokens == torch_tokens
    assert scores == pytest.approx(torch_scores, abs=1e-4)
    for stage, kernel in ATTENTION.items():
        ran = proof[stage]["kernels"]
        assert ran[f"{kernel}.triton"] == torch_proof[stage]["kernels"]["paged_attention.torch"]
        assert ran["kv_write.triton"] >= ran[f"{kernel}.triton"]
        assert not {k for k in ran if k.startswith(("paged_attention", "kv_write.torch"))}
        held = proof[stage]["integrity"]  # kernels count what they read, without what windows hide
        assert 0 < held["slots_checked"] == held["slots_read"]
        assert held == torch_proof[stage]["integrity"] | {"slots_read": ANY, "slots_checked": ANY}


def test_latents_are_decoded_by_their_kernel(serve, forced):
    """By kernels in both stages; decode's log-likelihoods are nearly those of torch."""
    found = {}
    for form in ("torch", "triton"):
        forced(form)
        engine = serve("deepseek_v3", "w=fp32,kv=fp32", kv_tokens=512)
        score = ScoreRequest(context="the end", continuations=[" and", " the"], through="decode")
        found[form] = next(iter(engine.score([score]))).logprobs, engine.proof()["decode"]
    (scores, proof), (torch_scores, torch_proof) = found["triton"], found["torch"]
    assert scores == pytest.approx(torch_scores, abs=1e-4)
    assert proof["kernels"]["latent_decode.triton"] == torch_proof["kernels"]["latent_attention.torch"]
    assert "latent_attention.torch" not in proof["kernels"]
    assert proof["integrity"] == torch_proof["integrity"]


def test_what_a_kernel_finds_ends_only_the_request_that_read_it(serve, forced):
    """The stamp of position 17 of the second of three sequences is somebody else's."""
    forced("triton")
    engine = serve("llama", "w=bf16,kv=fp8", kv_tokens=512)
    stage = engine.arm().prefill
    sequences, _ = stage.prefill([[5] * 20, [6] * 20, [7] * 3])
    slot = sequences[1].slots(17, 18)[0]
    stage.pool.guard.stamps[1, slot, 0] += 1
    _, faults = stage.run([Chunk(sequence, [8]) for sequence in sequences])
    assert list(faults) == [1]
    assert (faults[1].layer, faults[1].slot, faults[1].expected[1]) == (1, slot, 17)


def test_hashes_of_contents_are_compared_beside_the_kernels(serve, forced):
    found = []
    for form in ("torch", "triton"):
        forced(form)
        engine = serve("llama", "w=bf16,kv=fp8", kv_tokens=512, integrity="content")
        proof = asked(engine)[2]
        found.append([proof[stage]["integrity"] for stage in ATTENTION])
    assert found[0] == found[1]


def test_a_form_that_cannot_run_is_refused_before_anything_is_loaded(serve, monkeypatch):
    monkeypatch.setenv("EVALSVC_KERNELS", "cuda")
    with pytest.raises(ConfigError, match="EVALSVC_KERNELS is 'cuda'"):
        serve("llama", "w=fp32")
