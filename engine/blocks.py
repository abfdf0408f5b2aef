"""A tensor some rows at a time, so that what is made of it on the way stays small beside it."""

from collections.abc import Iterator, Sequence
from math import prod

import torch

BLOCK_VALUES = 2**16
DEVICE_BLOCK_VALUES = 2**24
"""On a device that is no processor: a few launches for each block, and 64 MiB in fp32."""


def row_blocks(shape: Sequence[int], multiple: int = 1) -> Iterator[slice]:
    """Slices of the outermost dimension that cover it in order, of about so many values each as the device takes.

    Args:
        shape: Of the tensor.
        multiple: All slices but the last hold a multiple of so many rows.
    """
    values = BLOCK_VALUES if torch.get_default_device().type == "cpu" else DEVICE_BLOCK_VALUES
    rows = max(multiple, values // max(1, prod(shape[1:])) // multiple * multiple)
    for start in range(0, shape[0], rows):
        yield slice(start, start + rows)
