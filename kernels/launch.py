"""What launchers of products share: refusals by name, tiles of rows, and the order in which sums are taken.

Inputs are cut into parts of whole blocks of BLOCK, by the matrix's shape alone. A part is summed in ascending steps,
parts are added in ascending order. Few rows have a program for each part, whose sums are added afterwards; many rows
have one program that goes through all parts: the same sums in the same order, so that a row's neighbours do not choose
its arithmetic.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError

from .jit import constexpr, jit, tl

BLOCK = 128  # inputs; steps divide it
FEW_ROWS = 16
_BLOCK_OUT = 64
_PROGRAMS = 256  # two for each multiprocessor of a large GPU
_MOST_PARTS = 8
_SUMS = 1024  # that a program adds
_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
}


def check(kernel: str, **tensors: tuple[Tensor, tuple[str | int, ...], tuple[str, ...]]) -> dict[str, int]:
    """Refuses tensors that a kernel does not take.

    Args:
        kernel: Whose arguments they are.
        tensors: Argument to the tensor, its dimensions (a size, or a name that has one size everywhere), its dtypes.

    Returns:
        Sizes by the names of dimensions.

    Raises:
        CapabilityError: Another dtype, shape or device, or not contiguous; the message says which.
    """
    sizes: dict[str, int] = {}
    device = next(iter(tensors.values()))[0].device
    for name, (tensor, dimensions, dtypes) in tensors.items():
        known = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in dimensions)
        fits = tensor.ndim == len(known) and all(
            isinstance(want, str) or want == has for want, has in zip(known, tensor.shape, strict=True)
        )
        if not fits:
            raise CapabilityError(f"{kernel}: {name} has shape {tuple(tensor.shape)}; it takes {known}")
        if tensor.dtype not in [_DTYPES[dtype] for dtype in dtypes]:
            raise CapabilityError(f"{kernel}: {name} is {tensor.dtype}; it takes {' or '.join(dtypes)}")
        if tensor.device != device:
            raise CapabilityError(f"{kernel}: {name} is on {tensor.device}, the arguments before it are on {device}")
        if not tensor.is_contiguous():
            raise CapabilityError(f"{kernel}: {name} is not contiguous")
        sizes |= {d: size for d, size in zip(dimensions, tensor.shape, strict=True) if isinstance(d, str)}
    return sizes


@dataclass(frozen=True)
class Shape:
    """How a product is cut.

    Attributes:
        rows: Of a tile of activations.
        out: Outputs of a tile.
        parts: Of the inputs.
        step: Inputs of one product of tiles.
        split: A program for each part.
        warps, stages: As in `compiling.Signature`.
    """

    rows: int
    out: int
    parts: int
    step: int
    split: bool
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, Any]:
        """What kernels take of it."""
        return {"ROWS": self.rows, "OUT": self.out, "PARTS": self.parts, "STEP": self.step, "SPLIT": self.split}


def shape_for(
    rows: int, out: int, inputs: int, few_step: int = BLOCK, many_step: int = BLOCK, many_warps: int = 4
) -> Shape:
    """The shape of a product, for few rows or for many.

    Args:
        rows: Activations; of an expert, on average.
        out: Outputs.
        inputs: Inputs.
        few_step: Inputs of one product of tiles, where rows are few.
        many_step: Where they are many; `many_warps` the warps of a block there.
    """
    parts, most = 1, min(_PROGRAMS // -(-out // _BLOCK_OUT), inputs // (4 * BLOCK), _MOST_PARTS)
    while 2 * parts <= most:
        parts *= 2
    if rows <= FEW_ROWS:
        return Shape(FEW_ROWS, _BLOCK_OUT, parts, few_step, parts > 1, 4, 4)
    return Shape(64, _BLOCK_OUT, parts, many_step, False, many_warps, 3)


@dataclass(frozen=True)
class Tiles:
    """Rows sorted by expert, cut into tiles of one expert each.

    Attributes:
        expert: Of each tile. Shape: (tiles,), int32.
        first: Its first row; `end`: behind its expert's last one. A tile without rows has first = end.
    """

    expert: Tensor
    first: Tensor
    end: Tensor


def tiles_of(counts: Tensor, rows: int, tile_rows: int) -> Tiles:
    """Cuts rows by expert, without waiting for a GPU to say how many there are.

    Args:
        counts: Rows of each expert, in the order of experts. Shape: (experts,), int32.
        rows: Their sum.
        tile_rows: Most rows of a tile.
    """
    per_expert = (counts + (tile_rows - 1)) // tile_rows
    stop, end = per_expert.cumsum(0), counts.cumsum(0)
    tile = torch.arange(rows // tile_rows + len(counts), device=counts.device)
    expert = torch.searchsorted(stop, tile, right=True).clamp_(max=len(counts) - 1)
    first = (end - counts)[expert] + (tile - (stop - per_expert)[expert]) * tile_rows
    last = end[expert]
    return Tiles(*(part.to(torch.int32) for part in (expert, torch.minimum(first, last), last)))


def cut_rows(rows: int, tile_rows: int, counts: Tensor | None, unused: Tensor) -> tuple[int, tuple[Tensor, ...]]:
    """How many tiles there are, and expert, first row and end of each; `unused` thrice where there are no experts."""
    if counts is None:
        return -(-rows // tile_rows), (unused, unused, unused)
    tiles = tiles_of(counts, rows, tile_rows)
    return len(tiles.first), (tiles.expert, tiles.first, tiles.end)


@jit
def _add_parts(parts, out, size, PARTS: constexpr, SIZE: constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    total = tl.load(parts + at, mask=at < size, other=0)
    for part in range(1, PARTS):
        total += tl.load(parts + part * tl.cast(size, tl.int64) + at, mask=at < size, other=0)
    tl.store(out + at, total, mask=at < size)


def add_parts(parts: Tensor) -> Tensor:
    """Sums over the first dimension in ascending order. Shape: (parts, rows, out), fp32 -> (rows, out)."""
    if len(parts) == 1:
        return parts[0]
    out = torch.empty_like(parts[0])
    if out.numel():
        _add_parts[(-(-out.numel() // _SUMS),)](parts, out, out.numel(), PARTS=len(parts), SIZE=_SUMS, num_warps=4)
    return out


def signatures() -> list[Any]:
    """All that can be chosen, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .compiling import Signature

    types = {"parts": "*fp32", "out": "*fp32", "size": "i32"}
    found = []
    for parts in (2, 4, 8):
        constants = {"PARTS": parts, "SIZE": _SUMS}
        found.append(Signature(f"add_parts; {parts}", _add_parts, types, constants, aligned=("parts", "out")))
    return found
