"""Writes new keys and values into pages, in the type of the pages.

bf16, fp32:             pages[slot] = x
fp8, int8, fixed:       pages[slot] = code(x / scale)
fp8, int8, token-head:  scale[slot, head] = max|x| / largest code;  pages[slot] = code(x / scale)

On a GPU one kernel stores keys, values and who wrote them, to the bit what torch stores: divisions are rounded to
nearest, and codes come from arithmetic on bits that needs no fp8 in hardware.
"""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from .decoding import e4m3_code
from .dispatch import ran
from .fp8 import E4M3_MAX, absmax_scale, as_bytes, quantize_e4m3
from .int8 import INT8_MAX, quantize_int8
from .jit import constexpr, jit, tl, to_bf16
from .page_table import QUERIES, place_problems, refuse, type_problems
from .paged_launch import scale_kind
from .paged_parts import BF16, BY_HEAD, BY_TOKEN, E4M3_BYTES, FP32, INT8, NO_SCALE, ONE

_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.uint8: E4M3_BYTES, torch.int8: INT8}
_LARGEST = {torch.float8_e4m3fn: E4M3_MAX, torch.int8: INT8_MAX}
_ROUND = {torch.float8_e4m3fn: quantize_e4m3, torch.int8: quantize_int8}


def kv_encode(dtype: torch.dtype, scales: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """What pages store of one layer's keys (or values).

    Args:
        dtype: Of the pages: fp32, bf16, float8_e4m3fn or int8.
        scales: As of `kv_write`; of one a token and head only the shape is looked at.
        x: Shape: (tokens, kv_heads, head_dim).

    Returns:
        Codes, shaped as `x`; and each token's and head's scale, shape (tokens, kv_heads), None where scales are fixed.
    """
    if dtype not in _LARGEST:
        return x.to(dtype), None
    if scales is None:
        raise ValueError(f"{dtype} pages need scales")
    if scales.ndim == 2:
        scale = absmax_scale(x, -1, _LARGEST[dtype])
        return _ROUND[dtype](x, scale), scale.squeeze(-1)
    return _ROUND[dtype](x, scales if scales.ndim == 0 else scales[:, None]), None


def kv_write(pages: Tensor, scales: Tensor | None, slots: Tensor, x: Tensor) -> None:
    """Stores one layer's new keys (or values).

    Args:
        pages: Shape: (slots, kv_heads, head_dim); fp32, bf16, float8_e4m3fn or int8. Written in place.
        scales: fp32; None for fp32 and bf16 pages. One for the layer: a scalar. One a head: shape (kv_heads,). One a
            token and head: shape (slots, kv_heads), written in place.
        slots: Shape: (tokens,); where each token goes.
        x: Shape: (tokens, kv_heads, head_dim).
    """
    ran("kv_write.torch")
    codes, scale = kv_encode(pages.dtype, scales, x)
    as_bytes(pages)[slots] = as_bytes(codes)
    if scales is not None and scale is not None:
        scales[slots] = scale


_BF16, _FP32, _BYTES, _INT8 = (constexpr(kind) for kind in (BF16, FP32, E4M3_BYTES, INT8))
_NO_SCALE, _ONE, _BY_HEAD, _BY_TOKEN = (constexpr(kind) for kind in (NO_SCALE, ONE, BY_HEAD, BY_TOKEN))
_SMALLEST = constexpr(torch.finfo(torch.float32).tiny)


@jit
def _scale_of(x, LARGEST: constexpr):
    """Scale that maps the largest magnitude to the largest code; 1 for zeros, NaN where a number is NaN."""
    amax = tl.max(tl.abs(x), 0)
    broken = tl.max((x != x).to(tl.int32), 0) == 1
    scale = tl.where(amax == 0, 1.0, tl.maximum(tl.div_rn(amax, LARGEST), _SMALLEST))
    return tl.where(broken, float("nan"), scale)


@jit
def _store(
    x, at, pages, scales, slot, head, kv_heads, DIM: constexpr, KIND: constexpr, SCALE: constexpr, LARGEST: constexpr
):
    """Stores one token's numbers `x`, in fp32, of one head."""
    target = pages + (slot * kv_heads + head) * DIM + at
    if SCALE == _NO_SCALE:
        tl.store(target, x if KIND == _FP32 else to_bf16(x), mask=at < DIM)
    else:
        if SCALE == _BY_TOKEN:
            scale = _scale_of(x, LARGEST)
            tl.store(scales + slot * kv_heads + head, scale)
        elif SCALE == _BY_HEAD:
            scale = tl.load(scales + head)
        else:
            scale = tl.load(scales)
        ratio = tl.div_rn(x, scale + tl.zeros(x.shape, tl.float32))
        nothing = ratio * 0  # NaN where the ratio is not finite
        bounded = tl.minimum(tl.maximum(ratio, -LARGEST), LARGEST)
        if KIND == _INT8:
            whole = (bounded + 12582912.0) - 12582912.0  # 1.5 * 2^23: its last bit is 1
            tl.store(target, tl.where(nothing == 0, whole, -128.0).to(tl.int8), mask=at < DIM)
        else:
            tl.store(target, e4m3_code(bounded + nothing), mask=at < DIM)


@jit
def _write(
    k, v, k_pages, v_pages, k_scale, v_scale, slots, stamps, new,
    kv_heads, k_token, k_head, v_token, v_head,
    DIM: constexpr, SIZE: constexpr, V_DIM: constexpr, V_SIZE: constexpr,
    KIND: constexpr, SCALE: constexpr, LARGEST: constexpr, STAMPED: constexpr,
):  # fmt: skip
    """One token's key and value of one head; the first head's program stamps the slot."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    at, v_at = tl.arange(0, SIZE), tl.arange(0, V_SIZE)
    key = tl.load(k + token * k_token + head * k_head + at, mask=at < DIM, other=0.0).to(tl.float32)
    value = tl.load(v + token * v_token + head * v_head + v_at, mask=v_at < V_DIM, other=0.0).to(tl.float32)
    _store(key, at, k_pages, k_scale, slot, head, kv_heads, DIM, KIND, SCALE, LARGEST)
    _store(value, v_at, v_pages, v_scale, slot, head, kv_heads, V_DIM, KIND, SCALE, LARGEST)
    if STAMPED:
        both = tl.arange(0, 2)
        tl.store(stamps + slot * 2 + both, tl.load(new + token * 2 + both), mask=both * 0 == head)


def write_tokens(
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    stamps: Tensor | None = None,
    new: Tensor | None = None,
) -> None:
    """Stores one layer's new keys and values, and who wrote them.

    Args:
        k_pages: Shape: (slots, kv_heads, head_dim); fp32, bf16, float8_e4m3fn or int8. Written in place.
        v_pages: Alike. Shape: (slots, kv_heads, v_dim).
        k_scale: As in `kv_write`. `v_scale` alike.
        slots: Shape: (tokens,), int64; where each token goes.
        k: fp32 or bf16, each head's numbers side by side. Shape: (tokens, kv_heads, head_dim). `v` alike.
        stamps: Written in place; None: no stamps. Shape: (slots, 2), int32.
        new: Tag and position of each token. Shape: (tokens, 2), int32.

    Raises:
        CapabilityError: What is not served, named.
    """
    _check(k_pages, v_pages, k_scale, v_scale, slots, k, v, stamps, new)
    ran("kv_write.triton")
    tokens, kv_heads, dim = k.shape
    if tokens == 0:
        return
    keys, values = as_bytes(k_pages), as_bytes(v_pages)
    _write[(tokens, kv_heads)](
        k, v, keys, values, k if k_scale is None else k_scale, v if v_scale is None else v_scale, slots,
        slots if stamps is None else stamps, slots if new is None else new,
        kv_heads, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        **_sizes(dim, v.shape[2]), KIND=_KINDS[keys.dtype], SCALE=scale_kind(k_scale),
        LARGEST=_LARGEST.get(k_pages.dtype, 0.0), STAMPED=stamps is not None, num_warps=1,
    )  # fmt: skip


def write_tokens_torch(
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    stamps: Tensor | None = None,
    new: Tensor | None = None,
) -> None:
    """As `write_tokens`, in torch."""
    _check(k_pages, v_pages, k_scale, v_scale, slots, k, v, stamps, new)
    kv_write(k_pages, k_scale, slots, k)
    kv_write(v_pages, v_scale, slots, v)
    if stamps is not None and new is not None:
        stamps[slots] = new


def _check(
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    stamps: Tensor | None,
    new: Tensor | None,
) -> None:
    tokens = len(slots)
    held = {"k_pages": k_pages, "v_pages": v_pages, "slots": slots, "stamps": stamps, "new": new}
    held |= {"k_scale": k_scale, "v_scale": v_scale}
    found = type_problems(k_pages, v_pages, k_scale, v_scale) | {
        f"k is {k.dtype} and v {v.dtype}; served: {', '.join(map(str, QUERIES))}": {k.dtype, v.dtype} - {*QUERIES}
        != set(),
        f"slots are {slots.dtype}, not torch.int64": slots.dtype != torch.int64,
        "stamps and what is new of them belong together": (stamps is None) != (new is None),
    }
    for name, x, pages in (("k", k, k_pages), ("v", v, v_pages)):
        wanted = (tokens, *pages.shape[1:])
        found[f"{name} has shape {tuple(x.shape)}, not {wanted}"] = tuple(x.shape) != wanted
        found[f"the numbers of a head of {name} do not lie side by side"] = x.stride(-1) != 1
        found[f"{name} is on {x.device}, its pages on {pages.device}"] = x.device != pages.device
    shapes = ((), k_pages.shape[1:2], k_pages.shape[:2])
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            known = ", ".join(str(tuple(shape)) for shape in shapes)
            found[f"{name} has shape {tuple(scale.shape)}; served: {known}"] = scale.shape not in shapes
    if stamps is not None and new is not None:
        found[f"stamps have shape {tuple(stamps.shape)}"] = tuple(stamps.shape) != (len(k_pages), 2)
        found[f"new stamps have shape {tuple(new.shape)}"] = tuple(new.shape) != (tokens, 2)
        found["stamps are not torch.int32"] = {stamps.dtype, new.dtype} != {torch.int32}
    given = {name: tensor for name, tensor in held.items() if tensor is not None}
    refuse("kv_write", found | place_problems(given, "k_pages", k_pages))


def _sizes(dim: int, v_dim: int) -> dict[str, int]:
    wide, v_wide = (1 << (size - 1).bit_length() for size in (dim, v_dim))
    return {"DIM": dim, "SIZE": wide, "V_DIM": v_dim, "V_SIZE": v_wide}


def signatures() -> list[Any]:
    """All that can be chosen, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .compiling import Signature
    from .paged_cases import HEADS, POINTERS

    numbers = dict.fromkeys(("kv_heads", "k_token", "k_head", "v_token", "v_head"), "i32")
    kinds = {"bf16": (BF16, 0.0), "fp32": (FP32, 0.0), "e4m3": (E4M3_BYTES, E4M3_MAX), "int8": (INT8, INT8_MAX)}
    scales = {"scale of a head": BY_HEAD, "scale of a token and head": BY_TOKEN}
    found = []
    for (word, (kind, largest)), (head, sizes) in product(kinds.items(), HEADS.items()):
        for scaled, scale in (scales if largest else {"no scale": NO_SCALE}).items():
            number = "*fp32" if kind == FP32 else "*bf16"
            types = dict.fromkeys(("k", "v"), number) | dict.fromkeys(("k_pages", "v_pages"), POINTERS[kind])
            types |= dict.fromkeys(("k_scale", "v_scale"), "*fp32" if scale else number)
            types |= {"slots": "*i64", "stamps": "*i32", "new": "*i32"}
            constants = _sizes(*sizes) | {"KIND": kind, "SCALE": scale, "LARGEST": largest, "STAMPED": True}
            name, aligned = f"kv_write {word}, {scaled}; {head}", tuple(types)
            found.append(Signature(name, _write, types | numbers, constants, num_warps=1, aligned=aligned))
    return found
