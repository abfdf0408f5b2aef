"""A GGUF file of the llama architecture, decoded once into a model directory.

Blocks are decoded by the `gguf` package; names, the order of rope's rows and the configuration are mapped here.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError

from .directory import Checkpoint

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, target: Path, source_sha256: str) -> None:
    """Writes config, bf16 safetensors, tokenizer and a manifest; the directory appears whole or not at all.

    Args:
        source: The GGUF file.
        target: Directory to make; must not exist.
        source_sha256: Of `source`, for the manifest.

    Raises:
        CapabilityError: Another architecture.
        EngineError: A file that cannot be read.
    """
    try:
        reader = GGUFReader(source)
    except (OSError, ValueError, IndexError) as error:
        raise EngineError(f"model {source}: cannot be read as GGUF ({error}); fetch it again") from None
    config = _config(reader, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tensors = dict(_tensors(reader, config, source))
        config["tie_word_embeddings"] = "lm_head.weight" not in tensors
        save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
        _write_config(config, work)
        _write_tokenizer(source, work)
        Checkpoint(work).write_manifest({"file": source.name, "sha256": source_sha256})
        work.chmod(0o755)
        work.rename(target)
    except OSError as error:
        raise EngineError(f"model {target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _config(reader: GGUFReader, source: Path) -> dict[str, Any]:
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise CapabilityError(f"model {source}: GGUF of architecture {architecture!r} is not served yet; served: llama")
    if _field(reader, "llama.rope.scaling.type", "none") not in ("none", ""):
        raise CapabilityError(f"model {source}: GGUF with rope scaling is not served yet; convert it to safetensors")
    heads = _field(reader, "llama.attention.head_count")
    hidden = _field(reader, "llama.embedding_length")
    return {
        "hidden_size": hidden,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv", heads),
        "head_dim": _field(reader, "llama.attention.key_length", hidden // heads),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": _field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base", 10000.0)},
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
    }


def _write_config(config: dict[str, Any], folder: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(**config, architectures=["LlamaForCausalLM"], dtype="bfloat16").save_pretrained(folder)


def _write_tokenizer(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except Exception as error:  # a KeyError for a missing field, bare Exceptions of tokenizers
        raise EngineError(f"model {source}: its tokenizer cannot be read ({type(error).__name__}: {error})") from None
    tokenizer.save_pretrained(folder)


def _tensors(reader: GGUFReader, config: dict[str, Any], source: Path):
    for entry in reader.tensors:
        try:
            values = torch.from_numpy(dequantize(entry.data, entry.tensor_type).copy())
        except (ValueError, NotImplementedError) as error:
            raise EngineError(f"model {source}: tensor {entry.name} cannot be decoded ({error})") from None
        name = _name(entry.name, source)
        if "q_proj" in name:
            values = _unpermute(values, config["num_attention_heads"])
        if "k_proj" in name:
            values = _unpermute(values, config["num_key_value_heads"])
        yield name, values.to(torch.bfloat16).contiguous()


def _name(name: str, source: Path) -> str:
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block and block[2] in _BLOCK:
        return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{leaf}"
    if stem in _TOP:
        return f"{_TOP[stem]}.{leaf}"
    raise CapabilityError(f"model {source}: tensor {name} has no place in a llama model")


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """GGUF stores rope's two halves interleaved; transformers wants them one after the other. Shape: (out, in)."""
    out, inputs = weight.shape
    return weight.view(heads, out // heads // 2, 2, inputs).transpose(1, 2).reshape(out, inputs)
