"""int8 on both sides: activations with a scale for each token, weights with one for each output.

    x code = round_half_even(clamp(x / t, -127, 127)),   t = max|x| / 127
    y[m, n] = t[m] * s[n] * sum over k of x code[m, k] * w code[n, k], exact in int32

What is not finite in a token makes its scale NaN. Sums are whole numbers, so tiles and parts change nothing.
"""

from dataclasses import replace

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError

from .compiling import Signature
from .experts import by_expert
from .fp8 import absmax_scale
from .int8 import INT8_MAX, quantize_int8
from .int8_product import int8_product
from .jit import constexpr, jit, tl
from .launch import Shape, shape_for
from .products import check_product, chosen, launch_product, mean_rows

_MOST_INPUTS = 2**17  # whose products fit int32


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
    GROUPED: constexpr,
    ROWS: constexpr,
    OUT: constexpr,
    STEP: constexpr,
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
        total = tl.zeros((OUT, ROWS), tl.int32)
        for start in range(0, inputs, STEP):
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
            total = tl.dot(held, some, total, out_dtype=tl.int32)
        theirs = tl.load(x_scale + m, mask=m < end, other=0)
        mine = tl.load(scale + of, mask=n < out, other=0)
        result = total.to(tl.float32) * theirs[None, :] * mine[:, None]
        tl.store(y + m[None, :].to(tl.int64) * out + n[:, None], result, mask=(m[None, :] < end) & (n[:, None] < out))


def linear_int8(x: Tensor, codes: Tensor, scale: Tensor, counts: Tensor | None = None) -> Tensor:
    """Rounds activations, each token by itself, and multiplies.

    Args:
        x: bf16. Shape: (rows, in).
        codes: int8. Shape: (out, in), or (experts, out, in).
        scale: fp32. Shape: (out, 1), or (experts, out, 1).
        counts: As in `linear_int4`.

    Returns:
        fp32. Shape: (rows, out).

    Raises:
        CapabilityError: Arguments that the kernel does not take.
    """
    _check(x, codes, scale, counts)
    x_scale, rounded = _rounded(x)
    rows, inputs = x.shape
    out = codes.shape[-2]
    shape = _shape(mean_rows(rows, counts), out, inputs)
    operands = rounded, x_scale, codes, scale
    return launch_product(_linear, shape, rows, out, inputs, counts, operands, _constants(shape))


def linear_int8_torch(x: Tensor, codes: Tensor, scale: Tensor, counts: Tensor | None = None) -> Tensor:
    """The twin of `linear_int8`."""
    _check(x, codes, scale, counts)
    if counts is not None:
        return by_expert(x, counts, linear_int8_torch, codes, scale)
    x_scale, rounded = _rounded(x)
    return int8_product(rounded, codes).float() * x_scale * scale.squeeze(-1)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = absmax_scale(x, dim=-1, largest=INT8_MAX)
    return torch.where(scale.isfinite(), scale, torch.nan), quantize_int8(x, scale)


def _check(x: Tensor, codes: Tensor, scale: Tensor, counts: Tensor | None) -> None:
    weights = {"codes": (codes, ("out", "in"), ("int8",)), "scale": (scale, ("out", 1), ("fp32",))}
    sizes = check_product("linear_int8", x, counts, **weights)
    if sizes["in"] >= _MOST_INPUTS:
        raise CapabilityError(f"linear_int8: sums over {sizes['in']} inputs may not fit int32")


def _shape(rows: int, out: int, inputs: int) -> Shape:
    """As `launch.shape_for`, in one part."""
    return replace(shape_for(rows, out, inputs), parts=1, split=False)


def _constants(shape: Shape) -> dict[str, int]:
    return {"ROWS": shape.rows, "OUT": shape.out, "STEP": shape.step}


def signatures() -> list[Signature]:
    """All that can be chosen."""
    types = {"x": "*i8", "x_scale": "*fp32", "codes": "*i8", "scale": "*fp32"}
    cases = [case for case in chosen(_shape) if "split" not in case.name]
    return [case.signature("linear_int8", _linear, types, _constants(case.shape)) for case in cases]
