"""A tiny deepseek_v3 with random weights and real latents (512 + 64 numbers a token and layer), to serve and measure.

python -m tests.benchmarks.tiny_deepseek DIR
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.tiny import byte_tokenizer

SHAPE = {
    "vocab_size": 288,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 192,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


def write(path: Path) -> int:
    """Writes model and tokenizer (bytes) to a directory and returns the number of parameters."""
    generator = torch.Generator().manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **SHAPE), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.05 * noise)
    model.save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1])):,} parameters")
