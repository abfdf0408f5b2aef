"""nvfp4: e2m1 codes in blocks of 16 that share an e4m3 scale, and one fp32 global over them.

e2m1: codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6, bit 3 is the sign; ties go to the even code. A byte holds two of them,
even | odd << 4.

    global = 448 * 6 / max|x|                          a divisor: the largest block scale becomes 448
    block  = e4m3(max|x of the block| / 6 * global)
    code   = e2m1(x / (block / global)),   read = e2m1 value * block / global

This is compressed-tensors' order of operations; modelopt stores 1 / global, a multiplier. An e2m1 value times an e4m3
scale has six significant bits, so it is exact in bf16. What rounds activations asks no tensor for a number: a captured
step cannot wait for one, so block scales are read by torch's own cast.
"""

import torch
from torch import Tensor

from .fp8 import E4M3_MAX, e4m3_as_bf16

BLOCK = 16
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT = 0x7F800000  # of fp32
_EIGHTH = 0x20  # 0.125 in e4m3


def global_divisor(amax: Tensor) -> Tensor:
    """The global of values whose largest magnitude is `amax`, fp32.

    1.0 for 0, NaN for what is not finite: then every value reads as NaN, and what overflowed upstream is seen.
    """
    amax = amax.float()
    divisor = (E4M3_MAX * E2M1_MAX / amax).clamp_max(torch.finfo(torch.float32).max)
    divisor = torch.where(amax == 0, torch.ones_like(amax), divisor)
    return torch.where(amax.isfinite(), divisor, torch.full_like(amax, torch.nan))


def block_scales(x: Tensor, divisor: Tensor) -> Tensor:
    """The e4m3 scale of each block.

    Args:
        x: Shape: (..., K), K a multiple of 16.
        divisor: Of `global_divisor`, broadcastable to (..., K / 16).

    Returns:
        float8_e4m3fn. Shape: (..., K / 16). 0.125 where the exact scale rounds to 0, as compressed-tensors has it; all
        values of such a block read as 0.
    """
    amax = x.float().unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    scales = (divisor * (amax / E2M1_MAX)).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return scales.masked_fill_((scales & 0x7F) == 0, _EIGHTH).view(torch.float8_e4m3fn)


def round_e2m1(x: Tensor) -> Tensor:
    """Nearest e2m1 values, ties to the even code, saturating at +-6. NaN stays NaN.

    A value of binary exponent e (0 where it is below 1) lies on a grid of steps 2^(e-1); adding and taking away
    1.5 * 2^(e+22), whose last bit is such a step, rounds to it.

    Args:
        x: fp32.
    """
    x = x.clamp(-E2M1_MAX, E2M1_MAX)
    power = (x.abs().clamp_min_(1.0).view(torch.int32) & _EXPONENT).view(torch.float32)
    return x.add(power.mul_(1.5 * 2.0**22)).sub_(power)


def ratios(x: Tensor, scales: Tensor, divisor: Tensor) -> Tensor:
    """`x / (block / global)`, what is rounded to e2m1, fp32. Args as in `block_scales`. Shape: (..., K / 16, 16)."""
    return x.float().unflatten(-1, (-1, BLOCK)) / (scales.float() / divisor)[..., None]


def quantize_nvfp4(x: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds to nvfp4.

    Args:
        x: Shape: (..., K), K a multiple of 16.
        divisor: As in `block_scales`.

    Returns:
        Bytes of two codes, uint8 of shape (..., K / 2), and block scales as of `block_scales`.
    """
    scales = block_scales(x, divisor)
    ratio = ratios(x, scales, divisor)
    doubled = round_e2m1(ratio).abs_().mul_(2).nan_to_num_(0.0)  # a NaN is told by its block's scale
    boundaries = torch.tensor([2 * value for value in E2M1_VALUES], device=x.device)
    codes = torch.bucketize(doubled, boundaries, out_int32=True).to(torch.uint8) | ratio.signbit().to(torch.uint8) << 3
    codes = codes.flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales


def nvfp4_values(codes: Tensor, scales: Tensor) -> Tensor:
    """Exact values in bf16 before the division by the global. Args as `quantize_nvfp4` returns. Shape: (..., K)."""
    table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.bfloat16, device=codes.device)
    nibbles = torch.stack([codes & 0xF, codes >> 4], dim=-1).flatten(-2).int()
    values = table[nibbles].unflatten(-1, (-1, BLOCK))
    return values.mul_(e4m3_as_bf16(scales)[..., None]).flatten(-2)


def round_nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations to nvfp4, each token with a global of its own, as values rather than bytes.

    Args:
        x: Shape: (..., K), K a multiple of 16.

    Returns:
        Exact values in bf16 before the division, of the shape of `x`, and the divisor. Shape: (..., 1), fp32.
    """
    divisor = global_divisor(x.abs().amax(-1, keepdim=True))
    scales = block_scales(x, divisor)
    values = round_e2m1(ratios(x, scales, divisor)).mul_(scales.float()[..., None])
    return values.flatten(-2).to(torch.bfloat16), divisor
