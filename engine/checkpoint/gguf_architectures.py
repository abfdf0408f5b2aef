"""What GGUF calls a model's fields and tensors, and what transformers calls them, for each architecture served."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsvc.errors import CapabilityError

from .gguf_header import GgufHeader

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA = _COMMON | {"ffn_norm": "post_attention_layernorm"}
_GEMMA3 = _COMMON | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NAMES = {"llama": _LLAMA, "gemma3": _GEMMA3}
_GEMMA3_FULL_EVERY = 6
_GEMMA3_SLIDING_THETA = 10000.0
_GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs, and how its values differ from transformers'.

    Attributes:
        name: In transformers' model.
        order: Row of the file for each row of the model; None where they are the same.
        offset: Added to each value.
    """

    name: str
    order: np.ndarray | None = None
    offset: float = 0.0


def config_of(header: GgufHeader) -> dict[str, Any]:
    """transformers' configuration of the model in the file.

    Raises:
        CapabilityError: Another architecture, or one of its variants that is not served.
        EngineError: A field that is missing or of the wrong type.
    """
    from transformers import Gemma3TextConfig, LlamaConfig

    if header.architecture not in _NAMES:
        served = ", ".join(_NAMES)
        raise CapabilityError(
            f"model {header.path}: GGUF of architecture {header.architecture!r} is not served yet; served: {served}"
        )
    if header.number("expert_count", 0):
        raise CapabilityError(f"model {header.path}: GGUF with a mixture of experts is not served yet")
    common = _common(header)
    if header.architecture == "llama":
        model = LlamaConfig(**common, **_llama(header), architectures=["LlamaForCausalLM"], dtype="bfloat16")
    else:
        model = Gemma3TextConfig(
            **common, **_gemma3(header, common), architectures=["Gemma3ForCausalLM"], dtype="bfloat16"
        )
    return model.to_dict()


def _common(header: GgufHeader) -> dict[str, Any]:
    heads, hidden = header.count("attention.head_count"), header.count("embedding_length")
    head_dim = header.count("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.count(key, head_dim) != head_dim:
            raise CapabilityError(f"model {header.path}: {key} other than the keys' {head_dim} is not served in GGUF")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    return {
        "hidden_size": hidden,
        "intermediate_size": header.count("feed_forward_length"),
        "num_hidden_layers": header.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": header.count("context_length"),
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": shapes.get("token_embd.weight", (0,))[0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "bos_token_id": header.token_id("bos"),
        "eos_token_id": header.eos_token_id(),
    }


def _rope(header: GgufHeader) -> dict[str, Any]:
    kind = header.fields.get(f"{header.architecture}.rope.scaling.type", "none")
    theta = {"rope_theta": header.number("rope.freq_base", 10000.0)}
    if kind in ("none", ""):
        return {"rope_type": "default"} | theta
    if kind == "linear":
        return {"rope_type": "linear", "factor": header.number("rope.scaling.factor")} | theta
    raise CapabilityError(
        f"model {header.path}: GGUF with rope scaling {kind!r} is not served yet; convert it to safetensors"
    )


def _llama(header: GgufHeader) -> dict[str, Any]:
    mlp_bias = any(tensor.name == "blk.0.ffn_up.bias" for tensor in header.tensors)
    return {"rope_parameters": _rope(header), "mlp_bias": mlp_bias}


def _gemma3(header: GgufHeader, common: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers slide, their rope, and the width that 27B scales its scores by are in no field of most files."""
    layers, every = common["num_hidden_layers"], header.count("attention.sliding_window_pattern", _GEMMA3_FULL_EVERY)
    per_head = common["hidden_size"] // common["num_attention_heads"]
    theta = header.number("rope.freq_base_swa", _GEMMA3_SLIDING_THETA)
    return {
        "sliding_window": header.count("attention.sliding_window"),
        "layer_types": ["full_attention" if i % every == 0 else "sliding_attention" for i in range(1, layers + 1)],
        "query_pre_attn_scalar": per_head if layers == _GEMMA3_27B_LAYERS else common["head_dim"],
        "rope_parameters": {
            "full_attention": _rope(header),
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
        "pad_token_id": header.token_id("padding"),
    }


def place_of(name: str, header: GgufHeader, config: Mapping[str, Any]) -> Place:
    """Where a tensor of the file belongs.

    Raises:
        CapabilityError: The architecture has no such tensor.
    """
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    names = _NAMES[header.architecture]
    if block and block[2] in names:
        ours = f"model.layers.{block[1]}.{names[block[2]]}.{leaf}"
    elif stem in _TOP:
        ours = f"{_TOP[stem]}.{leaf}"
    else:
        raise CapabilityError(f"model {header.path}: tensor {name} has no place in a {header.architecture} model")
    if header.architecture == "gemma3":
        return Place(ours, offset=-1.0 if "norm" in stem else 0.0)
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(block[2] if block else "")
    return Place(ours, order=None if heads is None else _halves(config[heads], config["head_dim"]))


def _halves(heads: int, head_dim: int) -> np.ndarray:
    """GGUF stores rope's two halves interleaved; transformers wants them one after the other."""
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.transpose(0, 2, 1).reshape(-1)
