"""int4 codes, eight to an int32, least significant nibble first along the inputs, with a scale for each group of them.

symmetric: w = (code - 8) * scale,   asymmetric: w = code * scale + minimum
"""

import torch
from torch import Tensor


def int4_values(packed: Tensor, scale: Tensor, minimum: Tensor | None) -> Tensor:
    """What the codes stand for.

    Args:
        packed: Shape: (..., out, in / 8), int32.
        scale: Shape: (..., out, in / group), bf16.
        minimum: As `scale`, or None when symmetric.

    Returns:
        fp32. Shape: (..., out, in).
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    codes = ((packed[..., None] >> shifts) & 0xF).flatten(-2).unflatten(-1, (scale.shape[-1], -1)).float()
    if minimum is None:
        return ((codes - 8) * scale.float()[..., None]).flatten(-2)
    return (codes * scale.float()[..., None] + minimum.float()[..., None]).flatten(-2)
