"""Random matrices whose codes lie in int32 words, written by the definition of the format, and what they stand for.

Written from AutoAWQ's and GPTQModel's own description: GPTQ packs codes along the inputs, AWQ along the outputs with
columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest place up; zero points lie along the outputs, of GPTQ's first version less
one. Nothing here is shared with what reads them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.weights import WeightSet

PLAIN = ("norm", "embed_tokens", "lm_head", "mlp.gate.", "bias")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Kind:
    """How a matrix is written.

    Attributes:
        bits: Of a code.
        size: Inputs of a group; -1: all.
        symmetric: Whether every zero point is the middle code.
        version: `gptq`, `gptq_v2` or `awq`.
        ordered: Whether inputs are in another order than their groups.
        dtype: Of scales.
    """

    bits: int = 4
    size: int = 32
    symmetric: bool = True
    version: str = "gptq"
    ordered: bool = False
    dtype: torch.dtype = torch.float16

    def config(self, **fields: Any) -> dict[str, Any]:
        """The field of config.json."""
        asked: dict[str, Any] = {"bits": self.bits, "group_size": self.size}
        if self.version == "awq":
            asked |= {"quant_method": "awq", "zero_point": not self.symmetric, "version": "gemm"}
        else:
            asked |= {"quant_method": "gptq", "sym": self.symmetric, "desc_act": self.ordered}
            asked |= {"checkpoint_format": self.version}
        return {"quantization_config": asked | fields}


@dataclass(frozen=True)
class Numbers:
    """What a matrix is made of.

    Attributes:
        codes: Shape: (in, out).
        zeros: Shape: (groups, out).
        scales: Shape: (groups, out).
        group: Of each input. Shape: (in,).
    """

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    group: Tensor

    def exact(self) -> Tensor:
        """Shape: (out, in), fp64."""
        scales = self.scales.double()[self.group]
        return ((self.codes - self.zeros[self.group]).double() * scales).T.contiguous()

    def decoded(self) -> Tensor:
        """In the scales' type; a product of so few bits is exact in fp32, so that it is rounded once."""
        return self.exact().float().to(self.scales.dtype)


WIDE = {"hidden_size": 160, "intermediate_size": 288, "moe_intermediate_size": 192}
KINDS = {
    "4 bits": Kind(),
    "4 bits, zeros": Kind(symmetric=False),
    "4 bits, v2": Kind(version="gptq_v2"),
    "4 bits, zeros, v2": Kind(version="gptq_v2", symmetric=False),
    "4 bits, channel": Kind(size=-1),
    "4 bits, in another order": Kind(ordered=True, symmetric=False),
    "4 bits, last group cut short": Kind(size=64, symmetric=False),
    "8 bits": Kind(bits=8, size=-1),
    "8 bits, groups, zeros": Kind(bits=8, symmetric=False),
    "8 bits, zeros, v2": Kind(bits=8, size=-1, symmetric=False, version="gptq_v2"),
    "8 bits, in another order": Kind(bits=8, ordered=True),
    "awq": Kind(version="awq", symmetric=False),
    "awq, without zeros": Kind(version="awq"),
    "awq, channel": Kind(version="awq", symmetric=False, size=-1),
}
OWN = {
    "4 bits": "int4:g32:sym",
    "4 bits, v2": "int4:g32:sym",
    "4 bits, zeros": "int4:g32:asym",
    "4 bits, zeros, v2": "int4:g32:asym",
    "8 bits": "int8:channel",
    "awq": "int4:g32:asym",
    "awq, without zeros": "int4:g32:sym",
}


def numbers(kind: Kind, shape: tuple[int, int], seed: int = 0) -> Numbers:
    """Random ones, of a matrix of shape (out, in)."""
    generator = torch.Generator().manual_seed(seed)
    (out, inputs), largest = shape, 2**kind.bits
    size = inputs if kind.size == -1 else kind.size
    groups = -(-inputs // size)
    zeros = torch.full((groups, out), largest // 2)
    if not kind.symmetric:
        low = kind.version == "gptq"  # which cannot store a zero point of 0
        zeros = torch.randint(int(low), largest, (groups, out), generator=generator)
    group = torch.arange(inputs) // size
    if kind.ordered:
        group = group[torch.randperm(inputs, generator=generator)]
    return Numbers(
        codes=torch.randint(0, largest, (inputs, out), generator=generator),
        zeros=zeros,
        scales=((0.5 + torch.rand(groups, out, generator=generator)) / (2 * largest)).to(kind.dtype),
        group=group,
    )


def stored_as(kind: Kind, held: Numbers) -> dict[str, Tensor]:
    """The tensors of a file, by local name."""
    scales = held.scales.contiguous()
    if kind.version == "awq":
        qweight, qzeros = (_pack(of, kind.bits, AWQ_ORDER) for of in (held.codes, held.zeros))
        return {"qweight": qweight, "qzeros": qzeros, "scales": scales}
    less = int(kind.version == "gptq")
    qweight = _pack(held.codes.T, kind.bits).T.contiguous()
    qzeros = _pack(held.zeros - less, kind.bits)
    return {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": held.group.to(torch.int32)}


def naive(kind: Kind, files: dict[str, Tensor]) -> Tensor:
    """The matrix of a file, one number after another, one bit after another. Shape: (out, in), fp64."""
    bits, each = kind.bits, 32 // kind.bits
    awq = kind.version == "awq"
    order = AWQ_ORDER if awq else tuple(range(each))
    qweight, qzeros, scales = (files[name].tolist() for name in ("qweight", "qzeros", "scales"))
    inputs, out = len(qweight) * (1 if awq else each), len(scales[0])
    size = inputs if kind.size == -1 else kind.size
    groups = [k // size for k in range(inputs)] if awq else files["g_idx"].tolist()

    def code(word: int, place: int) -> int:
        found = 0
        for bit in range(bits):
            found += 2**bit * (((word % 2**32) // 2 ** (bits * place + bit)) % 2)
        return found

    rows = []
    for n in range(out):
        place, row = order.index(n % each), []
        for k in range(inputs):
            word, at = (qweight[k][n // each], place) if awq else (qweight[k // each][n], k % each)
            zero = code(qzeros[groups[k]][n // each], place) + (kind.version == "gptq")
            row.append((code(word, at) - zero) * scales[groups[k]][n])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def _pack(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Words along the last dimension; what is left of the last one is 0."""
    each = 32 // bits
    filled = torch.nn.functional.pad(codes.long(), (0, -codes.shape[-1] % each)).unflatten(-1, (-1, each))
    words = sum(filled[..., column] << (bits * place) for place, column in enumerate(order or range(each)))
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def one_matrix(path: Path, kind: Kind, local: dict[str, Tensor], **fields: Any) -> ModelDirectory:
    """A directory of one matrix, `layer.weight`."""
    save_file({f"layer.{leaf}": tensor for leaf, tensor in local.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(kind.config(**fields)))
    return ModelDirectory(path)


def held(path: Path, plan: str) -> WeightSet:
    return WeightSet(open_checkpoint(path), parse_plan(plan).prefill.weights, {})


def store(kind: Kind, other: dict[str, Kind | None] | None = None):
    """What a tiny model's files hold of random codes; some matrices by the end of their names otherwise."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for seed, (name, tensor) in enumerate(sorted(tensors.items())):
            module = name.removesuffix(".weight")
            of = next((k for end, k in (other or {}).items() if module.endswith(end)), kind)
            if of is None or any(part in name for part in PLAIN):
                found[name] = tensor
            else:
                local = stored_as(of, numbers(of, tuple(tensor.shape), seed))
                found |= {f"{module}.{leaf}": part for leaf, part in local.items()}
        return found

    return edit


def decode(kind: Kind):
    """What the same stands for: exact numbers in fp32."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor
            if any(part in name for part in PLAIN)
            else numbers(kind, tuple(tensor.shape), seed).exact().float()
            for seed, (name, tensor) in enumerate(sorted(tensors.items()))
        }

    return edit


def without(leaf: str):
    return lambda local: {name: tensor for name, tensor in local.items() if name != leaf}


def changed(**tensors):
    return lambda local: local | {leaf: edit(local[leaf]) for leaf, edit in tensors.items()}


def with_first(value: float):
    def edit(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return edit
