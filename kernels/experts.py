"""What products over the experts of a mixture share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError


def by_expert(x: Tensor, counts: Tensor, products: Sequence[Callable[[Tensor], Tensor]], out: int) -> Tensor:
    """Each expert's product over its rows: what the twin of a grouped kernel does.

    Args:
        x: Rows in the order of experts. Shape: (rows, in).
        counts: Rows of each. Shape: (experts,).
        products: One for each expert.
        out: Outputs of each.

    Returns:
        fp32. Shape: (rows, out).
    """
    y = torch.zeros((len(x), out), dtype=torch.float32, device=x.device)
    start = 0
    for product, count in zip(products, counts.tolist(), strict=True):
        if count:
            y[start : start + count] = product(x[start : start + count])
        start += count
    return y


def check_counts(kernel: str, x: Tensor, counts: Tensor | None, sizes: dict[str, int]) -> None:
    """Refuses rows of experts that are not as many numbers as there are experts.

    Whether they add up to the rows of `x` is not asked on a GPU, which would have to finish first.
    """
    if counts is None:
        return
    if counts.shape != (sizes["experts"],) or counts.dtype != torch.int32 or counts.device != x.device:
        raise CapabilityError(
            f"{kernel}: counts has shape {tuple(counts.shape)} and is {counts.dtype} on {counts.device}; "
            f"it takes int32 of shape ({sizes['experts']},) on {x.device}"
        )
    if counts.device.type == "cpu" and int(counts.sum()) != len(x):
        raise CapabilityError(f"{kernel}: counts add up to {int(counts.sum())}, x has {len(x)} rows")
