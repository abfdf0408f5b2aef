"""fp8 weights: W8A8 with a scale for each token, or for each token and 128 inputs, and W8A16.

    W8A8, one scale, or one for each output:   y[m, n] = t[m] * s[n] * sum over k of x code[m, k] * w code[n, k]
    W8A8, blocks of 128 x 128:                 y[m, n] = sum over g of t[m, g] * s[n // 128, g] * (sum over k in g ...)
    W8A16:                                     y[m, n] = sum over k of x[m, k] * bf16(w code[n, k] * s[n])

Where hardware multiplies fp8 (sm_89 on), it does; its sums are held in fewer bits than fp32's, so no more than 128
inputs are summed there before their sum is added in fp32, as DeepSeek-V3 does (arXiv 2412.19437, 3.3.2). Elsewhere the
codes' exact values are multiplied in bf16. `evalsvc.kernels.launch` has the order of sums; tiles are held transposed,
outputs first.
"""

from typing import Literal

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError

from .compiling import FP8_ARCHITECTURE, Signature
from .decoding import e4m3_value
from .experts import by_expert
from .fp8 import dequantize_e4m3
from .fp8_block import BLOCK, blocks_of, expand
from .jit import constexpr, dot, interpreting, jit, tl, to_bf16
from .launch import Shape, shape_for
from .products import check_product, chosen, launch_product, mean_rows
from .round_fp8 import round_fp8, round_fp8_torch

Scales = Literal["tensor", "channel", "block"]
W8A8, W8A8_BLOCK, W8A16 = 0, 1, 2


@jit
def _linear(
    x,
    x_scale,
    codes,
    scale,
    y,
    tile_expert,
    tile_first,
    tile_end,
    rows,
    out,
    inputs,
    skipped,
    scale_rows,
    KIND: constexpr,
    ONE_SCALE: constexpr,
    NATIVE: constexpr,
    GROUPED: constexpr,
    ROWS: constexpr,
    OUT: constexpr,
    PARTS: constexpr,
    STEP: constexpr,
    SPLIT: constexpr,
):
    tile = tl.program_id(0)
    first, end = tile * ROWS, rows
    expert = tl.program_id(0) * 0
    if GROUPED:
        first, end, expert = tl.load(tile_first + tile), tl.load(tile_end + tile), tl.load(tile_expert + tile)
    n = tl.program_id(1) * OUT + tl.arange(0, OUT)
    of = n.to(tl.int64) + expert.to(tl.int64) * out
    if first < end:
        m = first + tl.arange(0, ROWS)
        k = tl.arange(0, STEP)
        groups = tl.cdiv(inputs, 128)
        span = tl.cdiv(groups, PARTS) * 128
        own = tl.program_id(2)
        at = expert * scale_rows
        if KIND == 1:
            at = (at + (n + skipped) // 128) * groups
        elif not ONE_SCALE:
            at = at + n
        else:
            at = at + n * 0
        each = tl.load(scale + at, mask=n < out, other=0)
        total = tl.zeros((OUT, ROWS), tl.float32)
        for part in range(own if SPLIT else 0, own + 1 if SPLIT else PARTS):
            acc = tl.zeros((OUT, ROWS), tl.float32)
            for start in range(part * span, tl.minimum((part + 1) * span, inputs), STEP):
                held = tl.load(
                    codes + of[:, None] * inputs + start + k[None, :],
                    mask=(n[:, None] < out) & (start + k[None, :] < inputs),
                    other=0,
                )
                some = tl.load(
                    x + m[None, :].to(tl.int64) * inputs + start + k[:, None],
                    mask=(m[None, :] < end) & (start + k[:, None] < inputs),
                    other=0,
                )
                if KIND == 2:
                    acc = dot(to_bf16(e4m3_value(held) * each[:, None]), some, acc)
                else:
                    zero = tl.zeros((OUT, ROWS), tl.float32)
                    if NATIVE:
                        found = tl.dot(
                            held.to(tl.float8e4nv, bitcast=True),
                            some.to(tl.float8e4nv, bitcast=True),
                            zero,
                            max_num_imprecise_acc=128,
                        )
                    else:
                        found = dot(to_bf16(e4m3_value(held)), to_bf16(e4m3_value(some)), zero)
                    if KIND == 1:
                        mine = tl.load(scale + at + start // 128, mask=n < out, other=0)
                        theirs = tl.load(x_scale + m * groups + start // 128, mask=m < end, other=0)
                        found = found * mine[:, None] * theirs[None, :]
                    acc += found
            total += acc
        if KIND == 0:
            total = total * tl.load(x_scale + m, mask=m < end, other=0)[None, :] * each[:, None]
        if SPLIT:
            y += own.to(tl.int64) * rows * out
        tl.store(y + m[None, :].to(tl.int64) * out + n[:, None], total, mask=(m[None, :] < end) & (n[:, None] < out))


def linear_fp8(
    x: Tensor, codes: Tensor, scale: Tensor, per: Scales, skipped: int = 0, counts: Tensor | None = None
) -> Tensor:
    """W8A8: activations are rounded, each token by itself, and multiplied.

    Args:
        x: bf16. Shape: (rows, in).
        codes: float8_e4m3fn. Shape: (out, in), or (experts, out, in).
        scale: fp32. Shape: (1,) of a tensor, (out, 1) of channels, (blocks of out, blocks of in) of blocks of
            128 x 128; with experts one more dimension before.
        per: Which of them it is.
        skipped: Rows of the first block that lie before `codes`.
        counts: As in `linear_int4`.

    Returns:
        fp32. Shape: (rows, out).

    Raises:
        CapabilityError: Arguments that the kernel does not take.
    """
    _check(x, codes, scale, per, skipped, counts)
    rounded, x_scale = round_fp8(x, in_groups=per == "block")
    return _launch(W8A8_BLOCK if per == "block" else W8A8, rounded, x_scale, codes, scale, per, skipped, counts)


def linear_fp8_torch(
    x: Tensor, codes: Tensor, scale: Tensor, per: Scales, skipped: int = 0, counts: Tensor | None = None
) -> Tensor:
    """The twin of `linear_fp8`."""
    _check(x, codes, scale, per, skipped, counts)
    if counts is not None:
        return by_expert(x, counts, lambda rows, q, s: linear_fp8_torch(rows, q, s, per, skipped), codes, scale)
    rounded, x_scale = round_fp8_torch(x, in_groups=per == "block")
    values = dequantize_e4m3(rounded)
    if per != "block":
        return values @ dequantize_e4m3(codes).T * x_scale * scale.squeeze(-1)
    return values * expand(x_scale, x.shape[1], 1) @ _in_blocks(codes, scale, skipped).T


def linear_fp8_w8a16(x: Tensor, codes: Tensor, scale: Tensor, per: Scales, counts: Tensor | None = None) -> Tensor:
    """W8A16: weights are decoded to bf16, activations are not rounded. As `linear_fp8`, without blocks."""
    _check(x, codes, scale, per, 0, counts, blocks=False)
    return _launch(W8A16, x, scale, codes, scale, per, 0, counts)


def linear_fp8_w8a16_torch(
    x: Tensor, codes: Tensor, scale: Tensor, per: Scales, counts: Tensor | None = None
) -> Tensor:
    """The twin of `linear_fp8_w8a16`."""
    _check(x, codes, scale, per, 0, counts, blocks=False)
    if counts is not None:
        return by_expert(x, counts, lambda rows, q, s: linear_fp8_w8a16_torch(rows, q, s, per), codes, scale)
    return x.float() @ (dequantize_e4m3(codes) * scale).bfloat16().float().T


def _in_blocks(codes: Tensor, scale: Tensor, skipped: int) -> Tensor:
    by_row = expand(scale, skipped + len(codes), 0)[skipped:]
    return dequantize_e4m3(codes) * expand(by_row, codes.shape[1], 1)


def _launch(
    kind: int,
    x: Tensor,
    x_scale: Tensor,
    codes: Tensor,
    scale: Tensor,
    per: Scales,
    skipped: int,
    counts: Tensor | None,
) -> Tensor:
    rows, inputs = x.shape
    out = codes.shape[-2]
    fp8 = kind != W8A16 and native(x.device)
    shape = fp8_shape(mean_rows(rows, counts), out, inputs, kind, fp8)
    operands = x if kind == W8A16 else x.view(torch.uint8), x_scale, codes.view(torch.uint8), scale
    numbers = skipped, scale.shape[-2] if per != "tensor" else 1
    constants = {"KIND": kind, "ONE_SCALE": per == "tensor", "NATIVE": fp8} | shape.constants
    return launch_product(_linear, shape, rows, out, inputs, counts, operands, constants, numbers)


def native(device: torch.device) -> bool:
    """Whether the device multiplies fp8."""
    if device.type != "cuda" or interpreting():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= FP8_ARCHITECTURE


def fp8_shape(rows: int, out: int, inputs: int, kind: int, native: bool) -> Shape:
    """As `launch.shape_for`: steps are as long as blocks, but where decoded codes would not fit registers.

    With many rows, sums that are scaled block by block and weights decoded by scale are held by twice the threads.
    """
    return shape_for(rows, out, inputs, many_step=BLOCK if native else 64, many_warps=4 if kind == W8A8 else 8)


def _check(
    x: Tensor, codes: Tensor, scale: Tensor, per: Scales, skipped: int, counts: Tensor | None, blocks: bool = True
) -> None:
    inputs, out = x.shape[-1], codes.shape[-2]
    scales = {"tensor": (1,), "channel": (out, 1), "block": (blocks_of(out + skipped), blocks_of(inputs))}
    if per not in scales or (per == "block" and not blocks):
        raise CapabilityError(f"linear_fp8: scales per {per} are not among those that this product takes")
    if not 0 <= skipped < BLOCK or (skipped and per != "block"):
        raise CapabilityError(f"linear_fp8: {skipped} rows skipped; only blocks skip rows, and fewer than {BLOCK}")
    weights = {"codes": (codes, ("out", "in"), ("fp8",)), "scale": (scale, scales[per], ("fp32",))}
    check_product("linear_fp8", x, counts, **weights)


def signatures() -> list[Signature]:
    """All that can be chosen."""
    made = []
    for kind, word in ((W8A8, "w8a8"), (W8A8_BLOCK, "w8a8:block128"), (W8A16, "w8a16")):
        for native in (True, False) if kind != W8A16 else (False,):
            for one_scale in (True, False) if kind != W8A8_BLOCK else (False,):
                name = f"linear_fp8:{word}{':tensor' * one_scale}{':native' * native}"
                made += _signatures(name, kind, native, one_scale)
    return made


def _signatures(name: str, kind: int, native: bool, one_scale: bool) -> list[Signature]:
    types = {"x": "*bf16" if kind == W8A16 else "*u8", "x_scale": "*fp32", "codes": "*u8", "scale": "*fp32"}
    constants = {"KIND": kind, "ONE_SCALE": one_scale, "NATIVE": native}
    numbers, lacks_fp8 = ("skipped", "scale_rows"), not native and kind != W8A16
    return [
        case.signature(name, _linear, types, constants | case.shape.constants, numbers, native, lacks_fp8)
        for case in chosen(lambda rows, out, inputs: fp8_shape(rows, out, inputs, kind, native))
    ]
