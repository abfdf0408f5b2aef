"""Tiny random models on disk, and engines over them whose pools start as NaN."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from evalsvc.engine.engine import Engine

VOCABULARY = 288
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
KV_OF_ALL: dict[str, Any] = {"num_key_value_heads": 4}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, attention_bias=True, tie_word_embeddings=False),
    "llama_mha": lambda: LlamaConfig(**(SHAPE | KV_OF_ALL), tie_word_embeddings=True),
    "llama3_rope": lambda: LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=False),
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and six merges, so that tokens and characters part ways."""
    symbols = ["<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "n"), ("en", "d"), ("Ġ", "a")]
    symbols += [left + right for left, right in merges]
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    core.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a tiny random model by name; norms and biases are random too, so that none can be left out."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
            with torch.no_grad():
                for key, parameter in sorted(model.named_parameters()):
                    noise = torch.randn(parameter.shape, generator=generator)
                    if "norm" in key:
                        parameter.copy_(1 + 0.3 * noise)
                    else:
                        parameter.copy_(0.15 * noise)
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
            _tokenizer().save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def reference(tiny: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    """transformers' own model with its eager attention, in fp32: the naive path."""

    def load(name: str) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_pretrained(tiny(name), attn_implementation="eager", dtype=torch.float32)
        return model.eval()

    return load


@pytest.fixture(scope="session")
def serve(tiny: Callable[[str], Path]) -> Callable[..., Engine]:
    """An engine over a tiny model with poisoned pools: `serve("llama", "w=bf16", kv_tokens=256)`."""

    def load(name: str = "llama", plan: str | None = None, **options: Any) -> Engine:
        settings = {"kv_tokens": 2048, "poison": True} | options
        return Engine.load(tiny(name), plan, **settings)

    return load


@pytest.fixture
def nothing_held() -> Callable[[Engine], None]:
    """Asserts that an engine's pools hold nothing but shared prefixes."""

    def check(engine: Engine, arm: str | None = None) -> None:
        held = engine.arm(arm)
        for stage in (held.prefill, held.decode):
            stage.pool.check()
        for stage in (held.prefill, held.decode):
            stage.cache.drop_all()
            stage.pool.check()
            assert stage.pool.free_pages == stage.pool.n_pages

    return check


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Random ids that are no special token."""
    return torch.randint(2, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="session")
def ids() -> Callable[..., list[int]]:
    """`ids(count, seed)`: random token ids."""
    return token_ids
