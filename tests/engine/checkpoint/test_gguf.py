"""GGUF files, against the format's own blocks and transformers' own loader."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from evalsvc.engine import blocks
from evalsvc.engine.checkpoint.directory import MANIFEST, ModelDirectory
from evalsvc.engine.checkpoint.gguf import GgufFile, convert
from evalsvc.engine.engine import Engine
from evalsvc.errors import CapabilityError, EngineError, EvalsvcError

HIDDEN, HEADS, KV_HEADS, MLP, VOCABULARY = 64, 4, 2, 96, 264
LAYERS = {"llama": 2, "gemma3": 7}
Q = gguf.GGMLQuantizationType


def shapes(architecture: str) -> dict[str, tuple[int, ...]]:
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
    if architecture == "gemma3":
        block |= {"attn_q_norm": (16,), "attn_k_norm": (16,)}
        block |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    found: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    return found | {f"blk.{i}.{name}": shape for i in range(LAYERS[architecture]) for name, shape in block.items()}


def fields(architecture: str) -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {
        "context_length": 512,
        "embedding_length": HIDDEN,
        "block_count": LAYERS[architecture],
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5000.0,
    }
    if architecture == "gemma3":
        found |= {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 8}
    return found


def write_gguf(
    path: Path, tiny: Path, architecture: str = "llama", kind: Q = Q.Q8_0, **changes
) -> dict[str, np.ndarray]:
    """A tiny model with matrices of one block type; returns what its blocks decode to.

    `changes` are `fields` (None leaves one out), `tensors` (more shapes) and `spoil` (a change of the values by name).
    """
    as_architecture = changes.get("as_architecture", architecture)
    writer = gguf.GGUFWriter(path, as_architecture)
    for key, value in (fields(architecture) | changes.get("fields", {})).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}.get(type(value))
        if add is not None:
            add(f"{as_architecture}.{key}", value)
    vocabulary = json.loads((tiny / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    writer.add_token_types([3, 3] + [1] * 262)
    writer.add_token_merges(["t h", "th e", "Ġ the", "e n", "en d", "Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    decoded, rng = {}, np.random.default_rng(0)
    for name, shape in (shapes(architecture) | changes.get("tensors", {})).items():
        values = rng.standard_normal(shape).astype(np.float32) * 0.15 + ("norm" in name)
        changes.get("spoil", {}).get(name, lambda values: None)(values)
        held = Q.F32 if len(shape) == 1 else kind
        data = quantize(values, held)
        decoded[name] = dequantize(data, held)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def refusal(path: Path, kind: type[EvalsvcError]) -> str:
    with pytest.raises(kind) as caught:
        Engine.load(path, "w=bf16", kv_tokens=256).arm()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def converted(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    decoded = write_gguf(folder / "tiny.gguf", tiny("llama"))
    convert(folder / "tiny.gguf", folder / "model", "abc")
    return folder, decoded


# -- tensors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0])
def test_every_tensor_is_the_decoded_block(tiny, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 7 * HIDDEN)  # of sizes that heads are no multiple of
    decoded = write_gguf(tmp_path / "a.gguf", tiny("llama"), kind=kind)
    held = {stored.name: stored.read() for stored in GgufFile(tmp_path / "a.gguf").tensors()}
    assert len(held) == len(decoded)
    for theirs, ours in {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.1.attn_output": "model.layers.1.self_attn.o_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
        "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
        "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
        "blk.0.attn_norm": "model.layers.0.input_layernorm",
        "blk.1.ffn_norm": "model.layers.1.post_attention_layernorm",
    }.items():
        assert torch.equal(held[f"{ours}.weight"], torch.from_numpy(decoded[theirs])), theirs


@pytest.mark.parametrize("kind", [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_XS])
def test_blocks_of_256_decode_as_the_formats_own_code_does(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 3 * 512)
    size = gguf.GGML_QUANT_SIZES[kind][1] * 2
    raw = np.random.default_rng(1).integers(0, 60, (40, size), dtype=np.uint8)  # as f16, 0x3B3B is 0.9
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for key, value in (fields("llama") | {"embedding_length": 512}).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"llama.{key}", value)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (stored,) = GgufFile(tmp_path / "a.gguf").tensors()
    assert torch.equal(stored.read(), torch.from_numpy(dequantize(raw, kind)))


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


# -- the whole file ----------------------------------------------------------------------------------------------------


def test_the_file_and_the_directory_made_of_it_answer_alike(converted, ids):
    """In bf16 both round the same exact values once."""
    folder, _ = converted
    direct, made = (Engine.load(folder / name, "w=bf16", kv_tokens=256) for name in ("tiny.gguf", "model"))
    assert torch.equal(direct.logits(ids(40, 3)), made.logits(ids(40, 3)))
    for text in ("the end", "a  12 b\t\t3", "<bos>x<eos>"):
        assert direct.text.encode(text) == made.text.encode(text)
    assert direct.text.eos_ids == made.text.eos_ids == {1}


def test_hashes_follow_the_file(converted, tmp_path):
    folder, _ = converted
    data = (folder / "tiny.gguf").read_bytes()
    (tmp_path / "other.gguf").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    one, other = GgufFile(folder / "tiny.gguf").hashes(), GgufFile(tmp_path / "other.gguf").hashes()
    assert one["tokenizer"] == other["tokenizer"] and one["checkpoint"] != other["checkpoint"]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("untied", [False, True])
def test_tensors_and_forward_equal_transformers_own_reading_of_the_file(tiny, tmp_path, ids, architecture, untied):
    """Gemma3 in 7 layers: six slide, one does not; the prompt is five windows long."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF files only with accelerate")
    more = {"output": (VOCABULARY, HIDDEN)} if untied else {}
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), architecture, tensors=more)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    plain = dict(theirs.named_parameters(remove_duplicate=False))
    held = {stored.name: stored.read() for stored in GgufFile(tmp_path / "tiny.gguf").tensors()}
    assert set(plain) - set(held) == (set() if untied else {"lm_head.weight"})
    for name, tensor in held.items():
        assert torch.equal(tensor, plain[name].data), name
    if architecture == "gemma3":  # transformers leaves the scale at 256's; the format's own runtime takes head_dim's
        for layer in theirs.model.layers:
            layer.self_attn.scaling = 16**-0.5
    engine = Engine.load(tmp_path / "tiny.gguf", "w=fp32,kv=fp32", kv_tokens=256, poison=True)
    prompt = ids(40, 3)
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt])).logits[0]
    assert (engine.logits(prompt) - expected).abs().max() < 1e-4


def test_gemma3s_configuration_is_whole(tiny, tmp_path):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), "gemma3")
    config = GgufFile(tmp_path / "a.gguf").config
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert config["sliding_window"] == 8 and config["query_pre_attn_scalar"] == 16
    assert config["rope_parameters"]["full_attention"] == {"rope_type": "default", "rope_theta": 5000.0}
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 10000.0
    write_gguf(tmp_path / "b.gguf", tiny("llama"), "gemma3", fields={"rope.freq_base_swa": 77.0, "block_count": 62})
    with pytest.raises(EngineError, match=r"tensor model\.layers\.10\.input_layernorm\.weight is missing"):
        Engine.load(tmp_path / "b.gguf", "w=bf16", kv_tokens=64).arm()
    wide = GgufFile(tmp_path / "b.gguf").config
    assert wide["rope_parameters"]["sliding_attention"]["rope_theta"] == 77.0
    assert wide["query_pre_attn_scalar"] == HIDDEN // HEADS


def test_linear_rope_scaling_reaches_the_configuration(tiny, tmp_path):
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "a.gguf", tiny("llama"), "gemma3", fields=scaling)
    rope = GgufFile(tmp_path / "a.gguf").config["rope_parameters"]
    assert rope["full_attention"] == {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    assert rope["sliding_attention"]["rope_type"] == "default"


# -- the directory made of it ------------------------------------------------------------------------------------------


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
    assert 1 in engine.text.eos_ids
    assert engine.logits(engine.text.encode("hello")).isfinite().all()
    assert json.loads((folder / "model" / MANIFEST).read_text())["source"] == {"file": "tiny.gguf", "sha256": "abc"}


def test_the_converted_directory_holds_the_files_values_in_bf16(converted):
    folder, _ = converted
    held = load_file(folder / "model" / "model.safetensors")
    stored = {tensor.name: tensor.read() for tensor in GgufFile(folder / "tiny.gguf").tensors()}
    assert set(held) == set(stored)
    for name, tensor in held.items():
        assert torch.equal(tensor, stored[name].bfloat16()), name


def test_the_converted_directory_has_what_its_manifest_lists(converted):
    folder, _ = converted
    listed = json.loads((folder / "model" / MANIFEST).read_text())["files"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(listed)
    assert ModelDirectory(folder / "model").hashes()


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.999])
def test_a_truncated_file_is_one_sentence_and_leaves_nothing(converted, tmp_path, keep):
    folder, _ = converted
    data = (folder / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(EngineError, match=r"cut\.gguf"):
        convert(tmp_path / "cut.gguf", tmp_path / "out" / "model", "abc")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"as_architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"tensors": {"rope_freqs": (8,)}}, "rope_freqs.weight has no place"),
        ({"tensors": {"blk.0.ffn_gate_exps": (2, 32)}}, "blk.0.ffn_gate_exps.weight has no place"),
        ({"fields": {"expert_count": 8}}, "mixture of experts"),
        ({"fields": {"rope.scaling.type": "yarn"}}, "rope scaling 'yarn'"),
        ({"fields": {"attention.value_length": 32}}, "attention.value_length"),
        ({"fields": {"rope.dimension_count": 8}}, "rope.dimension_count"),
    ],
)
def test_what_is_not_served_is_refused_by_name_and_leaves_nothing(tiny, tmp_path, changes, words):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), **changes)
    assert words in refusal(tmp_path / "a.gguf", CapabilityError)
    with pytest.raises(CapabilityError):
        convert(tmp_path / "a.gguf", tmp_path / "out" / "model", "abc")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("key", ["embedding_length", "block_count", "attention.head_count", "context_length"])
def test_a_missing_field_is_named(tiny, tmp_path, key):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), fields={key: None})
    assert f"llama.{key} is missing" in refusal(tmp_path / "a.gguf", EngineError)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [Q.F32, Q.Q8_0])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_tensor_that_is_not_finite_is_named(tiny, tmp_path, value, kind):
    def spoil(values):
        values[3, 5] = value

    write_gguf(tmp_path / "a.gguf", tiny("llama"), kind=kind, spoil={"blk.1.attn_k": spoil})
    message = refusal(tmp_path / "a.gguf", EngineError)
    assert "tensor model.layers.1.self_attn.k_proj.weight holds NaN or infinity" in message


def test_a_tensor_of_another_shape_is_named(tiny, tmp_path):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), tensors={"blk.1.attn_v": (64, HIDDEN)})
    message = refusal(tmp_path / "a.gguf", EngineError)
    assert "model.layers.1.self_attn.v_proj.weight has shape (64, 64)" in message and "(32, 64)" in message


def test_a_missing_tensor_is_named(tiny, tmp_path):
    write_gguf(tmp_path / "a.gguf", tiny("llama"), fields={"block_count": 3})
    assert "tensor model.layers.2.input_layernorm.weight is missing (9 in all)" in refusal(
        tmp_path / "a.gguf", EngineError
    )


def test_a_cut_off_tensor_is_named_before_any_is_read(converted, tmp_path):
    folder, _ = converted
    (tmp_path / "a.gguf").write_bytes((folder / "tiny.gguf").read_bytes()[:-40])
    with pytest.raises(EngineError, match=r"tensor blk\.1\.ffn_down\.weight is cut off"):
        GgufFile(tmp_path / "a.gguf")


def test_an_unknown_block_type_is_named(tmp_path, tiny):
    write_gguf(tmp_path / "a.gguf", tiny("llama"))
    data = (tmp_path / "a.gguf").read_bytes()
    at = data.index(b"blk.0.attn_v.weight") + len(b"blk.0.attn_v.weight") + 4 + 16
    (tmp_path / "a.gguf").write_bytes(data[:at] + bytes([99]) + data[at + 1 :])
    assert "tensor blk.0.attn_v.weight has blocks of type 99" in refusal(tmp_path / "a.gguf", CapabilityError)
