"""Gemma-3-270m from its GGUF file against transformers in fp32: windows of 512, two ropes, norms stored plus one."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from evalsvc.engine.checkpoint.gguf import GgufFile
from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXT = (
    "The lighthouse keeper climbed the stairs every evening to light the lamp, and each morning he wrote down what he "
    "had seen: ships, weather, birds. In 1871 a storm broke two of the windows; the repair cost 14 pounds.\n\n"
)


@pytest.fixture(scope="module")
def theirs(gemma3_gguf):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files only with accelerate")
    options = {"gguf_file": gemma3_gguf.name, "dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(gemma3_gguf.parent, **options).eval()


@pytest.fixture(scope="module")
def engine(gemma3_gguf) -> Engine:
    return Engine.load(gemma3_gguf, "w=fp32,kv=fp32", kv_tokens=1024, poison=True)


def test_tensors_and_configuration_equal_transformers_own_reading(gemma3_gguf, theirs):
    mine, named = GgufFile(gemma3_gguf), dict(theirs.named_parameters())
    stored = {tensor.name: tensor for tensor in mine.tensors()}
    assert set(stored) == set(named) and len(stored) == 236
    for name, tensor in stored.items():
        assert torch.equal(tensor.read(), named[name].data), name
    asked = theirs.config.to_dict()
    for key in (
        "layer_types",
        "rope_parameters",
        "sliding_window",
        "query_pre_attn_scalar",
        "rms_norm_eps",
        "head_dim",
    ):
        assert mine.config[key] == asked[key], key


def test_the_logits_of_a_text_longer_than_its_window_equal_transformers(engine, theirs):
    """Summation order alone: both are 2e-5 to 3e-5 from fp64 at most positions, at one of these 600 2.5e-3."""
    ids = engine.text.encode(TEXT * 13)[:600]
    assert ids[0] == 2 and len(ids) == 600
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    got = engine.logits(ids)
    apart = (got - expected).abs().amax(dim=-1)
    assert apart.mean() < 2e-4 and apart.max() < 1e-2
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_text_comes_back(engine):
    for text in (TEXT, "a  b   c", "é漢字🎉\t\n\n\n<b>x</b>"):
        assert engine.text.tokenizer.decode(engine.text.encode(text), skip_special_tokens=True) == text


def test_greedy_answers_equal_transformers_generate(engine, theirs):
    (answer,) = engine.generate([GenerateRequest(prompt=TEXT, max_tokens=12)])
    ids = torch.tensor([engine.text.encode(TEXT)])
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert list(answer.token_ids) == out[0, ids.shape[1] :].tolist()
