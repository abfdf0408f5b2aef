"""Tiny random models and their tokenizer, a vocabulary of bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

TWO_LAYERS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def byte_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """`<bos>`, `<eos>`, the bytes, and what is merged of them."""
    symbols = ["<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    symbols += [left + right for left, right in merges]
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    core.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>")


def write_model(path: Path, config: Any, seed: int, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """A model in fp32, norms and biases random too, so that none can be left out; returns its folder."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        corrections = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
        for name, parameter in sorted([*model.named_parameters(), *corrections]):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    model.save_pretrained(path)
    (tokenizer or byte_tokenizer()).save_pretrained(path)
    return path
