"""What products over the experts of a mixture share."""

from collections.abc import Callable

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError


def by_expert(x: Tensor, counts: Tensor, product: Callable[..., Tensor], *held: Tensor | None) -> Tensor:
    """Each expert's product over its rows: what the twin of a grouped kernel does.

    Args:
        x: Rows in the order of experts. Shape: (rows, in).
        counts: Rows of each. Shape: (experts,).
        product: Takes an expert's rows and its part of each of `held`.
        held: Weights. Shape: (experts, ...), of the first one (experts, out, ...); None is none of every expert.

    Returns:
        fp32. Shape: (rows, out).
    """
    assert held[0] is not None
    y = torch.zeros((len(x), held[0].shape[1]), dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            own = (part if part is None else part[expert] for part in held)
            y[start : start + count] = product(x[start : start + count], *own)
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
