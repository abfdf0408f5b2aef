"""Experts of one layer, each packed for itself, and the product over those that a batch hits.

A token's answer does not depend on its neighbours: an expert that gets one token computes it twice (as
`batch.never_one_row` has it for a whole batch), the weighted sum is taken in fp32 in ascending order of experts, and
routers compute tiles of ROUTER_ROWS tokens. Torch's fp32 product of a row has other bits among 2 rows than among 64; at
ROUTER_ROWS, filled up with the last row, it had the same ones at every place in the tile.
"""

from collections.abc import Iterator
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import CapabilityError
from evalsvc.kernels.dispatch import ran

from .matrix import PlanMatrix
from .packed.base import Packed
from .precision import WeightFormat

ROUTER_ROWS = 32
_GATES = ("gate", "router", "shared_expert_gate", "weights_proj")
_WEIGHTS = ("gate_up_proj", "down_proj")


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the experts of a layer in the form that transformers gives all of them."""
    return hasattr(module, "is_transposed") and hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")


def is_router(name: str, module: nn.Module) -> bool:
    """Whether a module chooses experts, how much of a shared one is added, or which keys are read.

    It is held as the model has it.
    """
    kind = type(module).__name__.lower()
    return "router" in kind or (isinstance(module, nn.Linear) and name.rpartition(".")[2] in _GATES)


def check_experts(name: str, module: Any) -> None:
    """Refuses experts of another arithmetic than gate, up and down.

    Raises:
        CapabilityError: Experts without a gate, or with a norm of their own.
    """
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        raise CapabilityError(f"{name} holds experts without a gate or with a norm of their own")


def matrices_of(module: Any) -> dict[str, tuple[int, int]]:
    """Names and shapes (out, in) of the matrices of one expert; gate and up are one where they are interleaved."""
    down, gate_up = module.down_proj.shape[1:], module.gate_up_proj.shape[1:]
    if module.is_transposed:
        down, gate_up = down[::-1], gate_up[::-1]
    if not module.is_concatenated:
        return {"gate_up_proj": tuple(gate_up), "down_proj": tuple(down)}
    half = (gate_up[0] // 2, gate_up[1])
    return {"gate_proj": half, "up_proj": half, "down_proj": tuple(down)}


class PlanExperts(nn.Module):
    """Experts in a plan's weights format.

    Attributes:
        definition: transformers' own module without its weights: the gate's arithmetic.
        matrices: By expert and name, as in `matrices_of`.
    """

    def __init__(self, definition: Any):
        super().__init__()
        self.count, self.concatenated = len(definition.down_proj), definition.is_concatenated
        self._alike: bool | None = None
        self.matrices: dict[tuple[int, str], PlanMatrix] = {}
        self._stacked: dict[str, list[Tensor]] = {}
        self.gate_up_proj_bias: Tensor | None = None
        self.down_proj_bias: Tensor | None = None
        for name, parameter in definition.named_parameters(recurse=False):
            if name not in _WEIGHTS:
                delattr(self, name)
                self.register_parameter(name, parameter)
        self.definition = copy(definition)
        self.definition._parameters = {}

    def pack(self, expert: int, part: str, weight: Tensor | Packed, fmt: WeightFormat, name: str) -> None:
        """Holds one matrix of one expert in the format.

        Args:
            weight: Shape: (out, in).
            fmt: The format.
            name: For errors.

        Raises:
            ConfigError: The format does not fit the matrix's shape.
        """
        self.matrices[expert, part] = PlanMatrix(weight, fmt, name)

    @property
    def asks(self) -> bool:
        """Whether `forward` asks which experts were hit: where a matrix has no Triton product, or experts differ."""
        if self._alike is None:
            forms = {(part, matrix.fmt.kernel, _form(matrix)) for (_, part), matrix in self.matrices.items()}
            launched = all(matrix.launch is not None for matrix in self.matrices.values())
            self._alike = launched and len(forms) == len({part for part, *_ in forms})
        return not self._alike

    def named_matrices(self) -> Iterator[tuple[str, PlanMatrix]]:
        """Every matrix as `EXPERT.NAME`."""
        for (expert, part), matrix in sorted(self.matrices.items()):
            yield f"{expert}.{part}", matrix

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """The weighted sum of each token's experts.

        Args:
            x: Shape: (tokens, hidden).
            top_k_index: Experts of each token. Shape: (tokens, k).
            top_k_weights: Their weights, of the same shape.

        Returns:
            Shape and dtype of `x`.
        """
        if not self.asks:
            return self._together(x, top_k_index, top_k_weights)
        total = torch.zeros(x.shape, dtype=torch.float32)
        for expert in top_k_index.unique().tolist():
            rows, ranks = (top_k_index == expert).nonzero(as_tuple=True)
            company = rows.repeat(2) if len(rows) == 1 else rows
            out = self._expert(expert, x[company])[: len(rows)]
            total.index_add_(0, rows, out.float() * top_k_weights[rows, ranks, None].float())
        return total.to(x.dtype)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        bias = None if self.gate_up_proj_bias is None else self.gate_up_proj_bias[expert]
        if self.concatenated:
            biases = (None, None) if bias is None else bias.chunk(2)
            parts = zip(("gate_proj", "up_proj"), biases, strict=True)
            halves = [self.matrices[expert, part](x, b) for part, b in parts]
            hidden = torch.cat(halves, dim=-1)
        else:
            hidden = self.matrices[expert, "gate_up_proj"](x, bias)
        gated = self.definition._apply_gate(hidden)
        return self.matrices[expert, "down_proj"](
            gated, None if self.down_proj_bias is None else self.down_proj_bias[expert]
        )

    def _together(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """As `forward`, all experts in one product a matrix, without asking a GPU which ones were hit."""
        tokens, k = top_k_index.shape
        chosen, place = top_k_index.sort(dim=1)  # a token's experts are added in ascending order
        weights = top_k_weights.gather(1, place).float()
        order = chosen.flatten().argsort(stable=True)
        expert = chosen.flatten()[order]
        counts = (expert[:, None] == torch.arange(self.count, device=x.device)).sum(0, dtype=torch.int32)
        rows = x[order // k]
        bias = None if self.gate_up_proj_bias is None else self.gate_up_proj_bias[expert]
        if self.concatenated:
            biases = (None, None) if bias is None else bias.chunk(2, dim=1)
            parts = zip(("gate_proj", "up_proj"), biases, strict=True)
            hidden = torch.cat([self._of_all(part, rows, counts, b) for part, b in parts], dim=-1)
        else:
            hidden = self._of_all("gate_up_proj", rows, counts, bias)
        bias = None if self.down_proj_bias is None else self.down_proj_bias[expert]
        out = self._of_all("down_proj", self.definition._apply_gate(hidden), counts, bias)
        by_token = torch.empty_like(out).index_copy_(0, order, out).view(tokens, k, -1)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for rank in range(k):
            total += by_token[:, rank].float() * weights[:, rank, None]
        return total.to(x.dtype)

    def _of_all(self, part: str, rows: Tensor, counts: Tensor, bias: Tensor | None) -> Tensor:
        from .launches import GROUPED, stack

        if part not in self._stacked:
            mine = [self.matrices[expert, part] for expert in range(self.count)]
            self._stacked[part], views = stack([matrix.packed for matrix in mine])
            for matrix, view in zip(mine, views, strict=True):
                matrix.packed = view
        kernel = self.matrices[0, part].fmt.kernel
        ran(f"linear.{kernel}.triton")
        y = GROUPED[kernel](rows.contiguous(), counts, *self._stacked[part])
        return (y if bias is None else y + bias).to(rows.dtype)


def _form(matrix: PlanMatrix) -> tuple[Any, ...]:
    """What matrices have alike that lie stacked: a checkpoint's own may differ in groups and in types of scales."""
    return tuple((tensor.dtype, tensor.shape) for tensor in matrix.packed_tensors())


def hold_routers(model: PreTrainedModel) -> None:
    """From here on every router computes tiles of ROUTER_ROWS tokens."""
    for name, module in model.named_modules():
        if is_router(name, module):
            module.forward = partial(_in_tiles, module.forward)


def _in_tiles(forward: Any, x: Tensor, *rest: Any) -> Any:
    flat = x.reshape(-1, x.shape[-1])
    pad = -len(flat) % ROUTER_ROWS
    padded = torch.cat([flat, flat[-1:].expand(pad, -1)])
    parts = [forward(tile, *rest) for tile in padded.split(ROUTER_ROWS)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)[: len(flat)]
    return tuple(torch.cat(of)[: len(flat)] for of in zip(*parts, strict=True))
