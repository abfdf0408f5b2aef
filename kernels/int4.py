"""int4 codes, eight to an int32, least significant nibble first along the inputs, with a scale for each group of them.

    symmetric:        w = (code - 8) * scale
    with minima:      w = code * scale + minimum
    with zero points: w = (code - zero) * scale

Zero points are whole numbers, and are told from minima by their type.
"""

import torch
from torch import Tensor

ZERO_DTYPE = torch.int16  # as wide as the scale beside it


def int4_values(packed: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """What the codes stand for.

    Args:
        packed: Shape: (..., out, in / 8), int32.
        scale: Shape: (..., out, in / group), bf16 or fp16.
        offset: Minima in bf16 or zero points in int16, as `scale`; None when symmetric.

    Returns:
        fp32, exact but for the sum with a minimum. Shape: (..., out, in).
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    codes = ((packed[..., None] >> shifts) & 0xF).flatten(-2).unflatten(-1, (scale.shape[-1], -1)).float()
    wide = scale.float()[..., None]
    if offset is None:
        return ((codes - 8) * wide).flatten(-2)
    shift = offset.float()[..., None]
    return ((codes - shift) * wide if offset.dtype == ZERO_DTYPE else codes * wide + shift).flatten(-2)
