"""What AWQ's files alone have: the order of columns in a word, modules that are left; and what of them is refused."""

import pytest
import torch
from torch import Tensor

from evalsvc.errors import EvalsvcError

from .wording import KINDS, Kind, Numbers, changed, held, numbers, one_matrix, store, stored_as, with_first, without


def test_a_word_is_this():
    """Bytes by hand: columns 0 to 7 with codes 0 to 7."""
    codes = torch.arange(8).expand(8, 8)
    of = Numbers(codes, torch.full((1, 8), 9), torch.ones(1, 8).half(), torch.zeros(8))
    files = stored_as(Kind(version="awq", size=-1), of)
    assert files["qweight"].tolist() == [[0x75316420]] * 8 and files["qzeros"].tolist() == [[0x99999999 - 2**32]]


@pytest.mark.parametrize("size", [32, 64, 128])
def test_groups_of_every_size_are_kept(tmp_path, size):
    kind = Kind(version="awq", symmetric=False, size=size, dtype=torch.bfloat16)
    of = numbers(kind, (24, 256))
    (found,) = one_matrix(tmp_path, kind, stored_as(kind, of)).tensors()
    packed = found.packed(f"int4:g{size}:asym")
    assert packed is not None and torch.equal(packed.dequantize().double(), of.exact())
    codes, scale, zero = packed.tensors()
    assert codes[3, 5].item() % 2**32 == sum(int(of.codes[40 + i, 3]) << 4 * i for i in range(8))
    assert torch.equal(scale, of.scales.T) and torch.equal(zero.long(), of.zeros.T)


def test_what_the_files_hold_as_plain_numbers_is_plain_whatever_is_listed(rewritten):
    """A list of modules to leave is read in several ways: the files decide."""
    kind = Kind(version="awq", symmetric=False)
    other = {"1.mlp.down_proj": None}
    path = rewritten("llama", store(kind, other), kind.config(modules_to_not_convert=["up_proj"]), hidden_size=160)
    for name, matrix in held(path, "w=stored").matrices().items():
        assert matrix.stored == ("bf16" if name == "model.layers.1.mlp.down_proj" else "int4:g32:asym")


NOT_4 = "tensor layer.qweight is no awq (4 bits, one scale a group of 32, zero points), which config.json says it is ("
REFUSED = {
    "no scales": ("awq", without("scales"), "tensor layer.qweight has no .scales beside it; fetch the model again"),
    "no zeros": ("awq", without("qzeros"), "tensor layer.qweight has no .qzeros beside it"),
    "no codes": ("awq", without("qweight"), "has no codes beside it; fetch the model again"),
    "short scales": ("awq", changed(scales=lambda t: t[:, :-8].contiguous()), NOT_4 + "qweight (96, 5), "),
    "columns that fill no word": ("awq", changed(scales=lambda t: t[:, :-3].contiguous()), NOT_4 + "qweight (96, 5), "),
    "scales of a vector": ("awq", changed(scales=lambda t: t[0].clone()), NOT_4),
    "short codes": ("awq", changed(qweight=lambda t: t[:-1].contiguous()), NOT_4 + "qweight (95, 5), "),
    "short zeros": ("awq", changed(qzeros=lambda t: t[:, :-1].contiguous()), NOT_4),
    "other groups": ("awq", changed(qzeros=lambda t: t[:-1].contiguous()), NOT_4),
    "zeros of bytes": ("awq", changed(qzeros=lambda t: t.to(torch.int8)), NOT_4),
    "not symmetric": (
        "awq, without zeros",
        changed(qzeros=with_first(0)),
        "zero points layer.qzeros are not all 8, and config.json says zero_point: false; write zero_point: true into",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(tmp_path, name):
    kind, edit, says = REFUSED[name]
    local: dict[str, Tensor] = edit(stored_as(KINDS[kind], numbers(KINDS[kind], (40, 96))))
    with pytest.raises(EvalsvcError) as error:
        list(one_matrix(tmp_path, KINDS[kind], local).tensors())
    assert says in str(error.value) and str(tmp_path) in str(error.value)
