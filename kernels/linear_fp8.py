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
from .experts import by_expert, check_counts
from .fp8 import dequantize_e4m3
from .fp8_block import BLOCK, blocks_of, expand
from .jit import constexpr, dot, interpreting, jit, tl, to_bf16
from .launch import Shape, add_parts, check, cut_rows, shape_for
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
        held = zip(codes, scale, strict=True)
        products = [lambda rows, q=q, s=s: linear_fp8_torch(rows, q, s, per, skipped) for q, s in held]
        return by_expert(x, counts, products, codes.shape[1])
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
        held = zip(codes, scale, strict=True)
        products = [lambda rows, q=q, s=s: linear_fp8_w8a16_torch(rows, q, s, per) for q, s in held]
        return by_expert(x, counts, products, codes.shape[1])
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
    shape = fp8_shape(rows if counts is None else -(-rows // len(counts)), out, inputs, kind, fp8)
    y = torch.empty((shape.parts if shape.split else 1, rows, out), dtype=torch.float32, device=x.device)
    if rows == 0:
        return y[0]
    n_tiles, tiles = cut_rows(rows, shape.rows, counts, x_scale)
    _linear[(n_tiles, -(-out // shape.out), len(y))](
        x if kind == W8A16 else x.view(torch.uint8),
        x_scale,
        codes.view(torch.uint8),
        scale,
        y,
        *tiles,
        rows,
        out,
        inputs,
        skipped,
        scale.shape[-2] if per != "tensor" else 1,
        KIND=kind,
        ONE_SCALE=per == "tensor",
        NATIVE=fp8,
        GROUPED=counts is not None,
        **shape.constants,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return add_parts(y)


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
    of = () if counts is None else ("experts",)
    inputs, out = x.shape[-1], codes.shape[-2]
    scales = {"tensor": (1,), "channel": (out, 1), "block": (blocks_of(out + skipped), blocks_of(inputs))}
    if per not in scales or (per == "block" and not blocks):
        raise CapabilityError(f"linear_fp8: scales per {per} are not among those that this product takes")
    if not 0 <= skipped < BLOCK or (skipped and per != "block"):
        raise CapabilityError(f"linear_fp8: {skipped} rows skipped; only blocks skip rows, and fewer than {BLOCK}")
    sizes = check(
        "linear_fp8",
        x=(x, ("rows", "in"), ("bf16",)),
        codes=(codes, (*of, "out", "in"), ("fp8",)),
        scale=(scale, (*of, *scales[per]), ("fp32",)),
    )
    check_counts("linear_fp8", x, counts, sizes)


def signatures() -> list[Signature]:
    """What is launched by default: an 8B model's largest matrices, few rows and many."""
    made = []
    for rows, size in ((1, "few_rows"), (512, "many_rows")):
        for kind, word in ((W8A8, "w8a8"), (W8A8_BLOCK, "w8a8:block128"), (W8A16, "w8a16")):
            for native in (True, False) if kind != W8A16 else (False,):
                form = ":native" if native else ""
                made.append(_signature(f"linear_fp8:{word}{form}:{size}", kind, native, rows, False))
    made.append(_signature("linear_fp8:w8a8:native:experts:few_rows", W8A8, True, 1, True))
    made.append(_signature("linear_fp8:w8a8:block128:native:experts:many_rows", W8A8_BLOCK, True, 512, True))
    return made


def _signature(name: str, kind: int, native: bool, rows: int, grouped: bool) -> Signature:
    shape = fp8_shape(rows, 4096, 14336, kind, native)
    tile, x = "*i32" if grouped else "*fp32", "*bf16" if kind == W8A16 else "*u8"
    types = {"x": x, "x_scale": "*fp32", "codes": "*u8", "scale": "*fp32", "y": "*fp32"}
    types |= {"tile_expert": tile, "tile_first": tile, "tile_end": tile}
    types |= dict.fromkeys(("rows", "out", "inputs", "skipped", "scale_rows"), "i32")
    constants = {"KIND": kind, "ONE_SCALE": False, "NATIVE": native, "GROUPED": grouped} | shape.constants
    aligned = tuple(n for n in types if n not in ("rows", "skipped", "scale_rows"))
    return Signature(name, _linear, types, constants, shape.warps, shape.stages, needs_fp8=native, aligned=aligned)
