"""The product with 4-bit weights: activations in bf16, weights decoded in registers, sums in fp32.

    y[m, n] = sum over k of x[m, k] * bf16(value(code[n, k], scale[n, k // group], ...))

Eight codes lie in an int32, least significant nibble first along K, as `engine/packed` stores them. `linear_int4.py`
and `linear_nvfp4.py` say what a value is. Tiles are held transposed, outputs first: decoded weights are the operand
that tensor cores read from registers, and few rows are their narrow side.
"""

from dataclasses import replace

from torch import Tensor

from .compiling import Signature
from .decoding import e2m1_value, e4m3_value
from .jit import constexpr, dot, jit, tl, to_bf16
from .launch import FEW_ROWS, Shape, shape_for
from .products import chosen, launch_product, mean_rows

SYMMETRIC, ASYMMETRIC, E2M1, ZEROS = 0, 1, 2, 3


@jit
def _values(words, scale, offset, KIND: constexpr):
    """Words of shape (OUT, STEP / 8) and what goes with each of them -> values of shape (OUT, STEP), bf16."""
    codes = (words[:, :, None] >> (tl.arange(0, 8) * 4)[None, None, :]) & 0xF
    if KIND == 2:
        values = e2m1_value(codes) * e4m3_value(scale)[:, :, None]
    elif KIND == 1:
        values = codes.to(tl.float32) * scale.to(tl.float32)[:, :, None] + offset.to(tl.float32)[:, :, None]
    elif KIND == 3:
        values = (codes - offset.to(tl.int32)[:, :, None]).to(tl.float32) * scale.to(tl.float32)[:, :, None]
    else:
        values = (codes - 8).to(tl.float32) * scale.to(tl.float32)[:, :, None]
    return to_bf16(tl.reshape(values, (values.shape[0], values.shape[1] * 8)))


@jit
def _linear(
    x,
    words,
    scale,
    offset,
    y,
    tile_expert,
    tile_first,
    tile_end,
    rows,
    out,
    inputs,
    GROUP: constexpr,
    KIND: constexpr,
    GROUPED: constexpr,
    ROWS: constexpr,
    OUT: constexpr,
    PARTS: constexpr,
    STEP: constexpr,
    SPLIT: constexpr,
):
    tile = tl.program_id(0)
    first, end = tile * ROWS, rows
    n = tl.program_id(1) * OUT + tl.arange(0, OUT)
    of = n.to(tl.int64)
    if GROUPED:
        first, end = tl.load(tile_first + tile), tl.load(tile_end + tile)
        of += tl.load(tile_expert + tile).to(tl.int64) * out
    if first < end:
        m = first + tl.arange(0, ROWS)
        k = tl.arange(0, STEP)
        word = tl.arange(0, STEP // 8)
        span = tl.cdiv(tl.cdiv(inputs, 128), PARTS) * 128
        own = tl.program_id(2)
        total = tl.zeros((OUT, ROWS), tl.float32)
        for part in range(own if SPLIT else 0, own + 1 if SPLIT else PARTS):
            acc = tl.zeros((OUT, ROWS), tl.float32)
            for start in range(part * span, tl.minimum((part + 1) * span, inputs), STEP):
                inside = (n[:, None] < out) & (start + word[None, :] * 8 < inputs)
                at = of[:, None] * (inputs // GROUP) + (start + word[None, :] * 8) // GROUP
                held = tl.load(words + of[:, None] * (inputs // 8) + start // 8 + word[None, :], mask=inside, other=0)
                each = tl.load(scale + at, mask=inside, other=0)
                least = tl.load(offset + at, mask=inside, other=0) if KIND == 1 or KIND == 3 else each
                some = tl.load(
                    x + m[None, :].to(tl.int64) * inputs + start + k[:, None],
                    mask=(m[None, :] < end) & (start + k[:, None] < inputs),
                    other=0,
                )
                acc = dot(_values(held, each, least, KIND), some, acc)
            total += acc
        if SPLIT:
            y += own.to(tl.int64) * rows * out
        tl.store(y + m[None, :].to(tl.int64) * out + n[:, None], total, mask=(m[None, :] < end) & (n[:, None] < out))


def linear_nibbles(
    x: Tensor, words: Tensor, scale: Tensor, offset: Tensor | None, kind: int, counts: Tensor | None = None
) -> Tensor:
    """Launches the product; arguments were checked by `linear_int4` or `linear_nvfp4`.

    Args:
        x: bf16. Shape: (rows, in).
        words: int32. Shape: (out, in / 8), or (experts, out, in / 8).
        scale: One for each group of inputs. Shape: as `words`, but its last dimension in / group.
        offset: As `scale`, where `kind` is ASYMMETRIC (minima) or ZEROS (zero points).
        kind: What a code's value is.
        counts: Rows of each expert, where there are experts; rows are sorted by them.

    Returns:
        fp32. Shape: (rows, out).
    """
    rows, inputs = x.shape
    out, group = words.shape[-2], inputs // scale.shape[-1]
    shape, least = nibble_shape(mean_rows(rows, counts), out, inputs), scale if offset is None else offset
    constants = {"GROUP": group, "KIND": kind} | shape.constants
    return launch_product(_linear, shape, rows, out, inputs, counts, (x, words, scale, least), constants)


def nibble_shape(rows: int, out: int, inputs: int) -> Shape:
    """As `launch.shape_for`; what is decoded has to fit registers.

    So steps are shorter where rows are many, and where few rows' inputs are not split, which have eight warps: four
    spill (nvfp4 on sm_90, int4 on sm_100).
    """
    shape = shape_for(rows, out, inputs, many_step=64)
    return shape if rows > FEW_ROWS or shape.split else replace(shape, warps=8)


def nibble_signatures(name: str, kind: int, group: int) -> list[Signature]:
    """The product of one kind in all shapes, for `compiling`."""
    scale = {E2M1: "*u8", ZEROS: "*fp16"}.get(kind, "*bf16")
    types = {"x": "*bf16", "words": "*i32", "scale": scale, "offset": "*i16" if kind == ZEROS else scale}
    constants = {"GROUP": group, "KIND": kind}
    return [case.signature(name, _linear, types, constants | case.shape.constants) for case in chosen(nibble_shape)]
