"""GGUF files, against the format's own blocks and transformers' own loader."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file

from evalsvc.engine.checkpoint.directory import MANIFEST, ModelDirectory
from evalsvc.engine.checkpoint.gguf import convert
from evalsvc.engine.engine import Engine
from evalsvc.errors import CapabilityError, EngineError

HIDDEN, HEADS, KV_HEADS, MLP, LAYERS = 64, 4, 2, 96, 2
Q = gguf.GGMLQuantizationType


def shapes() -> dict[str, tuple[int, ...]]:
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * 16, HIDDEN),
        "attn_v": (KV_HEADS * 16, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (MLP, HIDDEN),
        "ffn_up": (MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    found: dict[str, tuple[int, ...]] = {"token_embd": (264, HIDDEN), "output_norm": (HIDDEN,)}
    return found | {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in block.items()}


def write_gguf(path: Path, tiny: Path, architecture: str = "llama", extra: dict | None = None) -> dict[str, np.ndarray]:
    """A tiny llama with Q8_0 matrices; returns what its blocks decode to."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    vocabulary = json.loads((tiny / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * 262)
    writer.add_token_merges(["t h", "th e", "Ġ the", "e n", "en d", "Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    decoded, rng = {}, np.random.default_rng(0)
    for name, shape in (shapes() | (extra or {})).items():
        values = rng.standard_normal(shape).astype(np.float32) * 0.15 + ("norm" in name)
        kind = Q.F32 if len(shape) == 1 else Q.Q8_0
        data = values if kind == Q.F32 else quantize(values, kind)
        decoded[name] = values if kind == Q.F32 else dequantize(data, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


@pytest.fixture(scope="module")
def converted(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    decoded = write_gguf(folder / "tiny.gguf", tiny("llama"))
    convert(folder / "tiny.gguf", folder / "model", "abc")
    return folder, decoded


def test_every_tensor_is_the_decoded_block_in_bf16(converted):
    folder, decoded = converted
    held = load_file(folder / "model" / "model.safetensors")
    assert len(held) == len(decoded)
    for theirs, ours in {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
        "blk.1.ffn_norm": "model.layers.1.post_attention_layernorm",
    }.items():
        assert torch.equal(held[f"{ours}.weight"], torch.from_numpy(decoded[theirs]).bfloat16()), theirs


def test_the_rows_of_rope_are_put_back_in_order(converted):
    """GGUF row 2i of a head is half one's row i, 2i + 1 half two's."""
    folder, decoded = converted
    held = load_file(folder / "model" / "model.safetensors")
    for theirs, ours, heads in (("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)):
        rows = decoded[f"blk.0.{theirs}"]
        mine = held[f"model.layers.0.self_attn.{ours}.weight"].float().numpy()
        for head in range(heads):
            for i in range(8):
                np.testing.assert_allclose(mine[head * 16 + i], rows[head * 16 + 2 * i], rtol=2**-8)
                np.testing.assert_allclose(mine[head * 16 + 8 + i], rows[head * 16 + 2 * i + 1], rtol=2**-8)


def test_the_converted_model_answers_and_its_config_says_what_the_file_said(converted):
    folder, _ = converted
    config = json.loads((folder / "model" / "config.json").read_text())
    assert (config["hidden_size"], config["num_key_value_heads"], config["intermediate_size"]) == (
        HIDDEN,
        KV_HEADS,
        MLP,
    )
    assert config["rope_parameters"]["rope_theta"] == 5000.0
    assert config["tie_word_embeddings"] and config["eos_token_id"] == 1
    engine = Engine.load(folder / "model", "w=fp32,kv=fp32", kv_tokens=256, poison=True)
    assert 1 in engine.text.eos_ids  # older transformers give a tokenizer without its file's id an end of its own
    assert engine.logits(engine.text.encode("hello")).isfinite().all()
    assert json.loads((folder / "model" / MANIFEST).read_text())["source"] == {"file": "tiny.gguf", "sha256": "abc"}


def test_the_forward_equals_transformers_own_reading_of_the_file(converted, ids):
    from transformers import AutoModelForCausalLM

    pytest.importorskip("accelerate", reason="transformers reads GGUF files only with accelerate")
    folder, _ = converted
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    plain = dict(theirs.named_parameters())
    held = load_file(folder / "model" / "model.safetensors")
    assert set(plain) - {"lm_head.weight"} == set(held)
    for name, tensor in held.items():
        assert torch.equal(tensor, plain[name].data.bfloat16()), name
    for parameter in plain.values():
        parameter.data = parameter.data.bfloat16().float()  # the directory holds bf16
    engine = Engine.load(folder / "model", "w=fp32,kv=fp32", kv_tokens=256, poison=True)
    prompt = ids(40, 3)
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt])).logits[0]
    assert (engine.logits(prompt) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("architecture", "extra", "words"),
    [("qwen2", {}, "architecture 'qwen2'"), ("llama", {"rope_freqs": (8,)}, "rope_freqs.weight has no place")],
)
def test_what_is_not_served_is_refused_and_leaves_nothing(tiny, tmp_path, architecture, extra, words):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), architecture, extra)
    with pytest.raises(CapabilityError, match=words):
        convert(tmp_path / "a.gguf", tmp_path / "out" / "model", "abc")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.999])
def test_a_truncated_file_is_one_sentence_and_leaves_nothing(converted, tmp_path, keep):
    folder, _ = converted
    data = (folder / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(EngineError, match=r"cut\.gguf"):
        convert(tmp_path / "cut.gguf", tmp_path / "out" / "model", "abc")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_the_converted_directory_has_what_its_manifest_lists(converted):
    folder, _ = converted
    listed = json.loads((folder / "model" / MANIFEST).read_text())["files"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(listed)
    assert ModelDirectory(folder / "model").hashes()
