"""A tensor some rows at a time, so that what is made of it on the way stays small beside it."""

from collections.abc import Iterator, Sequence
from math import prod

BLOCK_VALUES = 2**16


def row_blocks(shape: Sequence[int], multiple: int = 1) -> Iterator[slice]:
    """Slices of the outermost dimension that cover it in order, of about `BLOCK_VALUES` values each.

    Args:
        shape: Of the tensor.
        multiple: All slices but the last hold a multiple of so many rows.
    """
    rows = max(multiple, BLOCK_VALUES // max(1, prod(shape[1:])) // multiple * multiple)
    for start in range(0, shape[0], rows):
        yield slice(start, start + rows)
