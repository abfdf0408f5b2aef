"""A randomly initialised model that is in no file: its tensors are drawn where the engine computes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from evalsvc.engine.checkpoint.base import StoredTensor

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
TINY = LLAMA_8B | {
    "vocab_size": 288,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Drawn(StoredTensor):
    """A matrix of numbers around 0, or a norm's ones. The same at each read."""

    def rows(self, some: slice) -> Tensor:
        shape = (len(range(*some.indices(self.shape[0]))), *self.shape[1:])
        if len(self.shape) == 1:
            return torch.ones(shape, dtype=self.dtype)
        seed = hashlib.sha256(f"{self.name}:{some.start}".encode()).digest()
        device = torch.get_default_device()
        numbers = torch.Generator(device).manual_seed(int.from_bytes(seed[:4], "big"))
        return (torch.randn(shape, generator=numbers, device=device) * 0.02).to(self.dtype)


class RandomCheckpoint:
    """As `evalsvc.engine.checkpoint.base.Checkpoint`."""

    def __init__(self, config: dict[str, Any]):
        self.path, self.config = Path("drawn"), config

    def hashes(self) -> dict[str, str]:
        """Of the configuration: it decides every number."""
        digest = hashlib.sha256(repr(sorted(self.config.items())).encode()).hexdigest()
        return {"checkpoint": digest, "tokenizer": digest}

    def tensors(self) -> Iterator[StoredTensor]:
        """A llama's, as its files name them."""
        c = self.config
        hidden, inner, heads = c["hidden_size"], c["intermediate_size"], c["head_dim"] * c["num_attention_heads"]
        keys = c["head_dim"] * c["num_key_value_heads"]
        shapes = {"self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (keys, hidden)}
        shapes |= {"self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, heads)}
        shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
        shapes |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        named = {"model.embed_tokens": (c["vocab_size"], hidden)}
        for layer in range(c["num_hidden_layers"]):
            named |= {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
        named |= {"model.norm": (hidden,), "lm_head": (c["vocab_size"], hidden)}
        for name, shape in named.items():
            yield Drawn(self.path, f"{name}.weight", shape, torch.bfloat16)

    def tokenizer(self) -> Any:
        """A word for each id."""
        words = {f"w{i}": i for i in range(self.config["vocab_size"])}
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))

    def eos_ids(self) -> frozenset[int]:
        """None: answers have their whole length."""
        return frozenset()
