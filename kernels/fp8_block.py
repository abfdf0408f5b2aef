"""fp8 with a weight scale for each block of 128 x 128, and activation scales for each token and 128 inputs.

    w[n, k] = e4m3 * s[n // 128, k // 128],   x[m, k] = e4m3 * t[m, k // 128]
    y[m, n] = sum over groups g of t[m, g] * s[n // 128, g] * (sum over k in g of x code * w code)

As DeepSeek-V3 serves it (arXiv 2412.19437, 3.3). K need not be a multiple of 128: the last group and the last block
hold what is left and have scales of their own. Sums within a group and over groups are in fp32; on CPU a group's sum
is rounded to bf16 in between, as torch's product gives it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .fp8 import amax_scale, e4m3_as_bf16, quantize_e4m3

BLOCK = 128


def blocks_of(size: int) -> int:
    """Blocks that cover `size`."""
    return -(-size // BLOCK)


def expand(scale: Tensor, size: int, dim: int) -> Tensor:
    """A scale for each of `size` elements along `dim`, from one for each block."""
    return scale.repeat_interleave(BLOCK, dim=dim).narrow(dim, 0, size)


def block_amax(x: Tensor) -> Tensor:
    """Largest magnitude of each group of 128 along the last dimension, fp32. Shape: (..., K) -> (..., blocks)."""
    magnitude = x.float().abs()
    padded = functional.pad(magnitude, (0, -magnitude.shape[-1] % BLOCK))
    return padded.unflatten(-1, (-1, BLOCK)).amax(-1)


def round_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations to e4m3, each token and group with a scale of its own.

    Args:
        x: Shape: (rows, K).

    Returns:
        Exact values of the codes in bf16, of the shape of `x`, and the scales, fp32. Shape: (rows, blocks).
    """
    scale = amax_scale(block_amax(x), 448.0)
    return e4m3_as_bf16(quantize_e4m3(x, expand(scale, x.shape[1], 1))), scale


def block_product(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """The product of the formula above.

    Args:
        x: Exact values of codes, bf16. Shape: (rows, K).
        x_scale: fp32. Shape: (rows, blocks of K).
        w: Exact values of codes, bf16, contiguous along its rows. Shape: (K, out).
        w_scale: fp32. Shape: (blocks of out, blocks of K).

    Returns:
        fp32. Shape: (rows, out).
    """
    inputs, out = w.shape
    whole = inputs // BLOCK
    split = whole * BLOCK
    scale = expand(w_scale, out, 0).T.contiguous()  # (blocks of K, out)
    y = torch.zeros(len(x), out, device=x.device)
    if whole:
        groups = x[:, :split].unflatten(1, (whole, BLOCK)).transpose(0, 1)
        sums = torch.bmm(groups, w[:split].view(whole, BLOCK, out))
        for g in range(whole):
            y.add_(sums[g].float().mul_(scale[g]).mul_(x_scale[:, g : g + 1]))
    if split < inputs:
        y.add_((x[:, split:] @ w[split:]).float().mul_(scale[whole]).mul_(x_scale[:, whole:]))
    return y
