"""Activations to e4m3 in one pass: a scale for each token, or for each token and 128 inputs.

    scale = max|x| / 448 over a token or a group (1 for 0),   code = e4m3(clamp(x / scale, -448, 448))

What is not finite becomes NaN, as in `evalsvc.kernels.fp8`; bytes and scales are torch's.
"""

import torch
from torch import Tensor

from .compiling import Signature
from .decoding import e4m3_code
from .fp8 import absmax_scale, amax_scale, quantize_e4m3
from .fp8_block import BLOCK, block_amax, blocks_of, expand
from .jit import constexpr, jit, tl
from .launch import check

_SIZE = 1024  # numbers that a program holds at once


@jit
def _round_tokens(x, codes, scale, inputs, GROUP: constexpr, SIZE: constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * GROUP
    last = tl.minimum(first + GROUP, inputs) if GROUP else inputs  # GROUP 0: a token has one scale
    at = tl.arange(0, SIZE)
    peak = tl.zeros((SIZE,), tl.float32)
    broken = tl.zeros((SIZE,), tl.int32)
    for start in range(first, last, SIZE):
        part = tl.load(x + row * inputs + start + at, mask=start + at < last, other=0).to(tl.float32)
        peak = tl.maximum(peak, tl.where(part == part, tl.abs(part), 0.0))
        broken = tl.maximum(broken, tl.where(part == part, 0, 1))
    amax = tl.max(peak, 0) + tl.zeros((SIZE,), tl.float32)
    ratio = tl.div_rn(amax, tl.full((SIZE,), 448.0, tl.float32))
    each = tl.where(amax == 0, 1.0, tl.maximum(ratio, 1.1754943508222875e-38))
    each = tl.where(tl.max(broken, 0) != 0, float("nan"), each)
    tl.store(scale + row * tl.num_programs(1) + tl.program_id(1) + at, each, mask=at == 0)
    for start in range(first, last, SIZE):
        part = tl.load(x + row * inputs + start + at, mask=start + at < last, other=0).to(tl.float32)
        ratio = tl.div_rn(part, each)
        bound = tl.minimum(tl.maximum(ratio, -448.0), 448.0) + ratio * 0  # NaN where the ratio is not finite
        tl.store(codes + row * inputs + start + at, e4m3_code(bound), mask=start + at < last)


def round_fp8(x: Tensor, in_groups: bool) -> tuple[Tensor, Tensor]:
    """Rounds activations, each token by itself.

    Args:
        x: bf16 or fp32. Shape: (tokens, in).
        in_groups: A scale for each 128 inputs of a token.

    Returns:
        float8_e4m3fn of the shape of `x`, and scales, fp32. Shape: (tokens, 1) or (tokens, ceil(in / 128)).

    Raises:
        CapabilityError: Arguments that the kernel does not take.
    """
    check("round_fp8", x=(x, ("tokens", "in"), ("bf16", "fp32")))
    tokens, inputs = x.shape
    codes = torch.empty((tokens, inputs), dtype=torch.uint8, device=x.device)
    scale = torch.empty((tokens, blocks_of(inputs) if in_groups else 1), dtype=torch.float32, device=x.device)
    group, size = (BLOCK, BLOCK) if in_groups else (0, _SIZE)
    if tokens:
        _round_tokens[scale.shape](x, codes, scale, inputs, GROUP=group, SIZE=size, num_warps=4)
    return codes.view(torch.float8_e4m3fn), scale


def round_fp8_torch(x: Tensor, in_groups: bool) -> tuple[Tensor, Tensor]:
    """The twin of `round_fp8`."""
    if in_groups:
        scale = amax_scale(block_amax(x), 448.0)
        return quantize_e4m3(x, expand(scale, x.shape[1], 1)), scale
    scale = absmax_scale(x, dim=-1)
    return quantize_e4m3(x, scale), scale


def signatures() -> list[Signature]:
    """What is launched by default."""
    types = {"x": "*bf16", "codes": "*u8", "scale": "*fp32", "inputs": "i32"}
    made = [("round_fp8:token", 0, _SIZE), ("round_fp8:group128", BLOCK, BLOCK)]
    return [Signature(n, _round_tokens, types, {"GROUP": g, "SIZE": s}, aligned=tuple(types)) for n, g, s in made]
