"""What GPTQ's files alone have: versions, settings for some modules, heads, biases; and what of them is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.gptq_config import BESIDE
from evalsvc.errors import EvalsvcError
from evalsvc.kernels.dispatch import VARIABLE

from .wording import (
    KINDS,
    WIDE,
    Kind,
    Numbers,
    changed,
    held,
    numbers,
    one_matrix,
    store,
    stored_as,
    with_first,
    without,
)


def test_words_are_these():
    """Bytes by hand: codes 0 to 7 of a column, the first one lowest; zero points of 8 less one."""
    of = Numbers(torch.arange(8)[:, None].expand(8, 8), torch.full((1, 8), 8), torch.ones(1, 8).half(), torch.zeros(8))
    files = stored_as(Kind(size=-1), of)
    assert files["qweight"].tolist() == [[0x76543210] * 8] and files["qzeros"].tolist() == [[0x77777777]]
    assert stored_as(Kind(size=-1, version="gptq_v2"), of)["qzeros"].tolist() == [[0x88888888 - 2**32]]


def test_other_settings_for_some_modules_are_followed(rewritten):
    """GPTQModel's `dynamic`: patterns from the start of a name; `-:` leaves a module out."""
    other = {"1.mlp.down_proj": Kind(bits=8, size=-1), "self_attn.o_proj": None}
    dynamic = {
        r"-:.*\.o_proj": {},
        r"+:model\.layers\.1\.mlp\.down": {"bits": 8, "group_size": -1},
        r"model\.layers\.1\..*": {},
    }
    path = rewritten("llama", store(Kind(), other), Kind().config(dynamic=dynamic), hidden_size=160)
    found = {name: matrix.stored for name, matrix in held(path, "w=stored").matrices().items()}
    for name, form in found.items():
        layer_1 = name == "model.layers.1.mlp.down_proj"
        assert form == ("int8:channel" if layer_1 else "bf16" if name.endswith("o_proj") else "int4:g32:sym"), name


def test_a_head_is_read_where_the_configuration_says_that_it_is_quantized(rewritten):
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(Kind())(tensors)
        rows = numbers(Kind(), tuple(found.pop("lm_head.weight").shape), 5)
        return found | {f"lm_head.{leaf}": tensor for leaf, tensor in stored_as(Kind(), rows).items()}

    path = rewritten("llama", edit, Kind().config(lm_head=True))
    shape = tuple(load_file(path / "model.safetensors")["lm_head.scales"].shape)
    head = numbers(Kind(), (shape[1], 32 * shape[0]), 5)
    weights = held(path, "w=stored")
    assert torch.equal(weights.linears["lm_head"].matrix.dequantized().double(), head.exact())
    plain = held(path, "w=bf16").model.get_output_embeddings().weight
    assert torch.equal(plain, head.decoded().bfloat16())


@pytest.mark.parametrize(
    ("base", "file"),
    [(None, "gptq_model-4bit-32g"), ("own", "own"), ("../own", "own"), (None, "model"), ("gone", "model")],
)
def test_an_older_folder_has_its_settings_in_a_file_of_their_own(rewritten, base, file):
    path = rewritten("llama", store(Kind(ordered=True)), Kind(ordered=True).config())
    before, hashes = held(path, "w=bf16").model.state_dict(), ModelDirectory(path).hashes()
    config = json.loads((path / "config.json").read_text())
    settings = config.pop("quantization_config") | {"model_name_or_path": None, "model_file_base_name": base}
    del settings["quant_method"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EvalsvcError, match="is of type I32, which is not served"):
        held(path, "w=bf16")
    (path / BESIDE).write_text(json.dumps(settings))
    (path / "model.safetensors").rename(path / f"{file}.safetensors")
    for name, tensor in held(path, "w=bf16").model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    own = ModelDirectory(path).hashes()
    assert own != hashes
    (path / BESIDE).write_text(json.dumps(settings | {"damp_percent": 0.2}))
    assert ModelDirectory(path).hashes() != own, "answers depend on it"
    (path / BESIDE).write_text("[]")
    with pytest.raises(EvalsvcError, match=f"{BESIDE} is not a JSON object; fetch the model again"):
        ModelDirectory(path)


def test_settings_beside_a_config_that_has_them_are_left_out(rewritten):
    path = rewritten("llama", store(Kind()), Kind().config())
    before = ModelDirectory(path).hashes()
    (path / BESIDE).write_text(json.dumps({"bits": 8, "group_size": -1}))
    assert ModelDirectory(path).hashes() == before and held(path, "w=stored").matrices()


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_that_the_model_does_not_have_is_left_out_where_it_adds_nothing(rewritten, value):
    name = "model.layers.0.mlp.up_proj"

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(Kind())(tensors)
        return found | {f"{name}.bias": torch.full(found[f"{name}.scales"].shape[1:], value).half()}

    path = rewritten("llama", edit, Kind().config())
    if value:
        with pytest.raises(EvalsvcError, match=rf"unexpected tensor {name}\.bias"):
            held(path, "w=stored")
    else:
        assert held(path, "w=stored").linears[name].bias is None


def test_experts_with_scales_of_several_types_are_not_stacked(rewritten, monkeypatch):
    """One expert is plain in the files: it is packed with scales in bf16, the others keep theirs in fp16."""
    odd = "model.layers.1.mlp.experts.2.up_proj"
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asks = []
    for other in ({}, {odd: None}):
        config = Kind().config(dynamic={f"-:{name}$": {} for name in other})
        path = rewritten("qwen3_moe", store(Kind(), other), config, folder=f"without {len(other)}", **WIDE)
        experts = held(path, "w=int4:g32").experts["model.layers.1.mlp.experts"]
        asks.append(experts.asks)
    assert asks == [False, True]
    types = [experts.matrices[expert, "up_proj"].packed_tensors()[1].dtype for expert in (1, 2)]
    assert types == [torch.float16, torch.bfloat16]


# -- what is refused ---------------------------------------------------------------------------------------------------


NOT_4 = (
    "tensor layer.qweight is no gptq (4 bits, one scale a group of 32), which config.json says it is (qweight (12, 40)"
)
REFUSED = {
    "no scales": ("4 bits", without("scales"), "tensor layer.qweight has no .scales beside it; fetch the model again"),
    "no zeros": ("4 bits", without("qzeros"), "tensor layer.qweight has no .qzeros beside it"),
    "no order": ("4 bits, in another order", without("g_idx"), "tensor layer.qweight has no .g_idx beside it"),
    "no codes": ("4 bits", without("qweight"), "has no codes beside it; fetch the model again"),
    "short scales": ("4 bits", changed(scales=lambda t: t[:-1].contiguous()), NOT_4),
    "short codes": ("4 bits", changed(qweight=lambda t: t[:-1].contiguous()), "(qweight (11, 40), "),
    "short zeros": ("4 bits", changed(qzeros=lambda t: t[:, :-1].contiguous()), NOT_4),
    "short order": ("4 bits", changed(g_idx=lambda t: t[:-1].contiguous()), NOT_4),
    "zeros of bytes": ("4 bits", changed(qzeros=lambda t: t.to(torch.int8)), NOT_4),
    "scales of bytes": ("4 bits", changed(scales=lambda t: t.to(torch.int8)), NOT_4),
    "codes of 64 bits": ("4 bits", changed(qweight=lambda t: t.long()), NOT_4),
    "other groups": (
        "4 bits",
        changed(g_idx=with_first(3)),
        "tensor layer.g_idx names groups that layer.scales does not",
    ),
    "no group": ("4 bits", changed(g_idx=with_first(-1)), "tensor layer.g_idx names groups that layer.scales does not"),
    "order without desc_act": (
        "4 bits",
        changed(g_idx=lambda t: t.flip(0)),
        "tensor layer.g_idx has inputs in another order without desc_act in config.json, which readers follow or leave "
        "out; write desc_act: true into its quantization_config if it is right",
    ),
    "no order of several groups": (
        "4 bits",
        changed(g_idx=torch.zeros_like),
        "tensor layer.g_idx puts more than 32 inputs into a group, which readers take for several orders",
    ),
    "groups of several sizes": (
        "4 bits, in another order",
        changed(g_idx=lambda t: t.sort().values.roll(1).index_fill(0, torch.tensor([0]), 0)),
        "tensor layer.g_idx puts more than 32 inputs into a group",
    ),
    "labelled v1": (
        "4 bits",
        changed(qzeros=lambda t: t + 0x11111111),
        "zero points layer.qzeros are those of a gptq_v2 file, and config.json says gptq; "
        "write checkpoint_format: gptq_v2 into its quantization_config if it is one",
    ),
    "labelled v2": (
        "4 bits, v2",
        changed(qzeros=lambda t: t - 0x11111111),
        "are those of a gptq file, and config.json",
    ),
    "not symmetric": (
        "4 bits",
        changed(qzeros=with_first(0x77777776)),
        "layer.qzeros are not all 8, and config.json says",
    ),
    "a zero of 0 in v1": (
        "4 bits, zeros",
        changed(qzeros=with_first(0x1F111111)),
        "zero points layer.qzeros hold 15, which readers of gptq take for several numbers; store the model as gptq_v2",
    ),
    "a zero of 0 in v1 of 8 bits": ("8 bits, groups, zeros", changed(qzeros=with_first(0xFF)), "layer.qzeros hold 255"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(tmp_path, name):
    kind, edit, says = REFUSED[name]
    local = edit(stored_as(KINDS[kind], numbers(KINDS[kind], (40, 96))))
    with pytest.raises(EvalsvcError) as error:
        list(one_matrix(tmp_path, KINDS[kind], local).tensors())
    assert says in str(error.value) and str(tmp_path) in str(error.value)


def test_an_order_that_is_said_is_followed_where_it_is_said(tmp_path):
    """`desc_act` of a pattern alone; without groups there is none to say."""
    of = numbers(KINDS["4 bits, in another order"], (40, 96))
    local = stored_as(KINDS["4 bits, in another order"], of)
    (found,) = one_matrix(tmp_path, Kind(symmetric=False), local, dynamic={"lay": {"desc_act": True}}).tensors()
    assert torch.equal(found.read(), of.decoded())
    kind = Kind(bits=8, size=-1)
    local = stored_as(kind, numbers(kind, (40, 96)))
    for files in (local, without("g_idx")(local)):
        (found,) = one_matrix(tmp_path, kind, files, desc_act=True).tensors()
        assert found.own_format().stored == "int8:channel" and found.packed("int8:channel") is not None


def test_zero_points_of_columns_that_do_not_fill_a_word_are_read(tmp_path):
    """What is left of the last word means nothing."""
    for kind in (Kind(), Kind(symmetric=False), Kind(bits=8, size=-1)):
        of = numbers(kind, (37, 96))
        files = stored_as(kind, of)
        files["qzeros"][:, -1] |= -(2 ** (kind.bits * (37 % (32 // kind.bits))))
        (found,) = one_matrix(tmp_path, kind, files).tensors()
        assert torch.equal(found.read(), of.decoded())


def test_a_quantized_matrix_that_is_left_out_is_refused(tmp_path):
    local = stored_as(Kind(), numbers(Kind(), (40, 96)))
    with pytest.raises(
        EvalsvcError, match=r"layer\.qweight is quantized, which the quantization_config of config\.json"
    ):
        list(one_matrix(tmp_path, Kind(), local, dynamic={"-:lay": {}}).tensors())
