"""What kernels of products share: what they refuse, their launch, and which of them can be chosen."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .compiling import Signature
from .experts import check_counts
from .launch import Shape, add_parts, check, cut_rows

Weights = tuple[Tensor, tuple[str | int, ...], tuple[str, ...]]


def check_product(kernel: str, x: Tensor, counts: Tensor | None, **weights: Weights) -> dict[str, int]:
    """As `launch.check`, of activations and of weights, which have a first dimension of experts where `counts` has.

    Args:
        kernel: Whose arguments they are.
        x: Activations.
        counts: Rows of each expert, where there are experts.
        weights: As `launch.check` takes them, without experts.
    """
    of = () if counts is None else ("experts",)
    grouped = {name: (tensor, (*of, *shape), dtypes) for name, (tensor, shape, dtypes) in weights.items()}
    sizes = check(kernel, x=(x, ("rows", "in"), ("bf16",)), **grouped)
    check_counts(kernel, x, counts, sizes)
    return sizes


def mean_rows(rows: int, counts: Tensor | None) -> int:
    """Rows of an expert on average, or all where there are no experts."""
    return rows if counts is None else -(-rows // len(counts))


def launch_product(
    kernel: Any,
    shape: Shape,
    rows: int,
    out: int,
    inputs: int,
    counts: Tensor | None,
    operands: tuple[Tensor, ...],
    constants: Mapping[str, Any],
    numbers: tuple[int, ...] = (),
) -> Tensor:
    """Launches a product over tiles of rows and of outputs, and over parts of the inputs where they are split.

    Args:
        kernel: Takes `operands`, results, each tile's expert, first row and end, rows, outputs, inputs and `numbers`.
        shape: How it is cut.
        rows: Of activations.
        out: Outputs.
        inputs: Inputs.
        counts: Rows of each expert, where there are experts.
        operands: Activations and weights.
        constants: What is compiled in, but whether there are experts.
        numbers: What else the kernel takes.

    Returns:
        fp32. Shape: (rows, out).
    """
    device = operands[0].device
    y = torch.empty((shape.parts if shape.split else 1, rows, out), dtype=torch.float32, device=device)
    if rows == 0:
        return y[0]
    n_tiles, tiles = cut_rows(rows, shape.rows, counts, y)
    kernel[(n_tiles, -(-out // shape.out), len(y))](
        *operands, y, *tiles, rows, out, inputs, *numbers,
        GROUPED=counts is not None, **constants, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    return add_parts(y)


@dataclass(frozen=True)
class Chosen:
    """A way in which a product is launched by default.

    Attributes:
        name: Says which.
        shape: How it is cut.
        grouped: Whether there are experts.
    """

    name: str
    shape: Shape
    grouped: bool

    def signature(
        self,
        kernel: str,
        fn: Any,
        operands: Mapping[str, str],
        constants: Mapping[str, Any],
        numbers: tuple[str, ...] = (),
        needs_fp8: bool = False,
        lacks_fp8: bool = False,
    ) -> Signature:
        """The kernel so launched, for `compiling`; arguments as in `launch_product`, types of operands as Triton's."""
        tile = "*i32" if self.grouped else "*fp32"
        pointers = {**operands, "y": "*fp32", "tile_expert": tile, "tile_first": tile, "tile_end": tile}
        types = pointers | dict.fromkeys(("rows", "out", "inputs", *numbers), "i32")
        compiled, aligned = {"GROUPED": self.grouped, **constants}, (*pointers, "out", "inputs")
        depth = self.shape.warps, self.shape.stages
        return Signature(f"{kernel}:{self.name}", fn, types, compiled, *depth, needs_fp8, lacks_fp8, aligned)


def chosen(shape_for: Callable[[int, int, int], Shape]) -> Iterator[Chosen]:
    """Few rows whose inputs are split or are not, and many, of one matrix or of experts'."""
    cases = ("few_rows; split", 1, 4096), ("few_rows; whole", 1, 131072), ("many_rows; whole", 512, 4096)
    for name, rows, out in cases:
        for grouped in (False, True):
            yield Chosen(f"{name}{', experts' * grouped}", shape_for(rows, out, 14336), grouped)
