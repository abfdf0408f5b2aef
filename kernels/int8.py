"""Symmetric int8: codes -127..127 are values, -128 is NaN.

stored = round_half_even(clamp(x / scale, -127, 127)),   read = stored * scale

The code that a symmetric range leaves over says what no other code can: that what was stored was not finite.
"""

import torch
from torch import Tensor

INT8_MAX = 127.0
INT8_NAN = -128


def quantize_int8(x: Tensor, scale: Tensor | float) -> Tensor:
    """Rounds `x / scale` to int8, saturating at +-127.

    Infinity and NaN become INT8_NAN, never a plausible 127: what overflowed upstream has to be seen where logits are
    checked.

    Args:
        x: Any values.
        scale: Broadcastable to `x`, positive.

    Returns:
        int8 tensor of the shape of `x`.
    """
    ratio = x.float() / scale
    finite = ratio.isfinite()
    return ratio.round_().clamp_(-INT8_MAX, INT8_MAX).masked_fill_(~finite, INT8_NAN).to(torch.int8)


def dequantize_int8(codes: Tensor) -> Tensor:
    """Exact values of codes in fp32, unscaled; INT8_NAN becomes NaN."""
    values = codes.float()
    if codes.numel() and int(codes.min()) == INT8_NAN:
        values.masked_fill_(codes == INT8_NAN, torch.nan)
    return values
