"""Which part of a model each tensor of a checkpoint is: files hold experts one by one or stacked, by several names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checkpoint.base import StoredTensor
from .experts import matrices_of
from .packed.base import Packed
from .precision import WeightFormat

_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_STACKED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_OLD_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


class Placed(NamedTuple):
    """A tensor of the files and what it is.

    Attributes:
        stored: The tensor, or the part of it that is one matrix of one expert.
        name: Of the parameter; of a matrix of an expert `MODULE.EXPERT.MATRIX`.
        module: Name of the experts' module; empty for a parameter.
        expert: Number of the expert.
        part: As in `experts.matrices_of`.
    """

    stored: StoredTensor
    name: str
    module: str = ""
    expert: int = 0
    part: str = ""


def place(stored: StoredTensor, experts: Mapping[str, Any]) -> Iterator[Placed]:
    """What a tensor of the files is.

    Args:
        stored: The tensor.
        experts: Modules of experts by name, as transformers defines them.
    """
    name = stored.name.replace(".block_sparse_moe.", ".mlp.") if experts else stored.name
    one, stacked = _ONE.fullmatch(name), _STACKED.fullmatch(name)
    if one is not None and one[1] in experts:
        part = _OLD_PARTS.get(one[3], one[3])
        yield Placed(stored, f"{one[1]}.{one[2]}.{part}", one[1], int(one[2]), part)
    elif stacked is not None and stacked[1] in experts:
        yield from _unstacked(stored, stacked[1], stacked[2], experts[stacked[1]])
    else:
        yield Placed(stored, name)


def expert_shapes(experts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all matrices of all experts, by the names of `place`."""
    return {
        f"{name}.{expert}.{part}": shape
        for name, module in experts.items()
        for expert in range(len(module.down_proj))
        for part, shape in matrices_of(module).items()
    }


def _unstacked(stored: StoredTensor, name: str, leaf: str, module: Any) -> Iterator[Placed]:
    if stored.shape != tuple(getattr(module, leaf).shape):
        yield Placed(stored, f"{name}.{leaf}")
        return
    parts = ("gate_proj", "up_proj") if leaf == "gate_up_proj" and module.is_concatenated else (leaf,)
    for expert in range(stored.shape[0]):
        for half, part in enumerate(parts):
            shape = matrices_of(module)[part]
            rows = slice(half * shape[0], (half + 1) * shape[0])
            one = _OfOne(stored.file, stored.name, shape, stored.dtype, stored, expert, rows, module.is_transposed)
            yield Placed(one, f"{name}.{expert}.{part}", name, expert, part)


@dataclass(frozen=True)
class _OfOne(StoredTensor):
    whole: StoredTensor
    expert: int
    some_rows: slice
    transposed: bool

    def _matrix(self) -> Tensor:
        matrix = self.whole.rows(slice(self.expert, self.expert + 1))[0]
        return (matrix.T if self.transposed else matrix)[self.some_rows]

    def rows(self, some: slice) -> Tensor:
        return self._matrix()[some]

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        return _InMemory(self.file, self.name, self.shape, self.dtype, self._matrix()).read(dtype)

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        return None if self.transposed else self.whole.packed(form, self.some_rows, self.expert)

    def own_format(self) -> WeightFormat:
        return self.whole.own_format()


@dataclass(frozen=True)
class _InMemory(StoredTensor):
    matrix: Tensor

    def rows(self, some: slice) -> Tensor:
        return self.matrix[some]
