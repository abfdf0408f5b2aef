"""Reading a stored tensor: exact, finite, and in memory of its own."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from evalsvc.engine import blocks
from evalsvc.engine.checkpoint.base import StoredTensor
from evalsvc.engine.checkpoint.shards import stored_tensors
from evalsvc.errors import EngineError


@dataclass(frozen=True)
class Held(StoredTensor):
    values: Tensor

    def rows(self, some: slice) -> Tensor:
        return self.values[some]


def held(values: Tensor) -> Held:
    return Held(Path("m/a.safetensors"), "layer.weight", tuple(values.shape), values.dtype, values)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 24)


@pytest.mark.parametrize("shape", [(7, 8), (100,), (1, 100), (3, 2, 4), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_values_come_and_none_is_a_view_of_the_file(shape, dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    kept = values.clone()
    got = held(values).read()
    values.zero_()
    assert got.dtype == dtype and torch.equal(got, kept)


def test_a_rounded_tensor_is_rounded_once():
    values = torch.randn(50, 9, generator=torch.Generator().manual_seed(2))
    assert torch.equal(held(values).read(torch.bfloat16), values.bfloat16())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 3, 55])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_value_that_is_not_finite_is_seen_in_every_block(value, place, dtype):
    values = torch.randn(7, 8).to(dtype)
    values.view(-1)[place] = value
    with pytest.raises(EngineError, match=r"m/a\.safetensors: tensor layer\.weight holds NaN or infinity$"):
        held(values).read(torch.bfloat16)


def test_a_value_that_rounding_makes_infinite_is_seen():
    values = torch.zeros(7, 8)
    values[5, 5] = torch.finfo(torch.float32).max
    assert held(values).read().isfinite().all()
    with pytest.raises(EngineError, match="once rounded to bfloat16"):
        held(values).read(torch.bfloat16)


@pytest.mark.parametrize("place", [None, 0, 30, 55])
def test_what_a_tensor_holds_is_compared_in_every_block(place):
    values = torch.randn(7, 8, generator=torch.Generator().manual_seed(3))
    other = values.bfloat16()
    if place is not None:
        other.view(-1)[place] += 1
    assert held(values).holds(other) == (place is None)
    assert held(values).holds(values)


def test_some_rows_are_read_from_the_file_and_then_brought_to_the_device(tmp_path, monkeypatch):
    """Else a GPU gets each tensor whole, once for every block of rows that is read of it."""
    values = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    save_file({"a": values, "b": values.sum()}, tmp_path / "model.safetensors")
    whole, real = [], torch.asarray
    monkeypatch.setattr(torch, "asarray", lambda *given, **asked: whole.append(real(*given, **asked)) or whole[-1])
    matrix, number = stored_tensors(tmp_path, ["model.safetensors"], {})
    with torch.device("meta"):
        assert matrix.rows(slice(2, 4)).is_meta and number.rows(slice(None)).is_meta
    assert torch.equal(matrix.rows(slice(2, 4)), values[2:4])
    assert len(whole) == 3 and {tensor.device.type for tensor in whole} == {"cpu"}
