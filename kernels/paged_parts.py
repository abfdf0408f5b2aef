"""What kernels over pages share: parts of a head, values of codes, scores.

Triton's tiles have sides of powers of two, heads do not: a head of 80, 96, 192 or 576 is read in two parts, the largest
power of two and what is left of it, padded to a power of two from 16 on.

e4m3 is exact in fp16, too, and one instruction makes two of them, while bf16 takes three: such pages are multiplied in
fp16. Then queries and weights are brought into its range by powers of two, which is exact but for what is 2^-24 below
the largest of a row.

Where the hardware has no fp8, codes are read as bytes: `decoding.e4m3_value`. int8 is exact in bf16, and -128 is NaN.
"""

from .decoding import e4m3_value
from .jit import INTERPRETED, constexpr, dot, jit, tl, to_bf16

FP32, BF16, E4M3, E4M3_BYTES, INT8 = range(5)
"""How pages are held, as a kernel's constant."""
NO_SCALE, ONE, BY_HEAD, BY_TOKEN = range(4)
"""Whose elements share a scale, as a kernel's constant."""
MASKED = -1e30
LOG2_E = 1.4426950408889634

_MASKED, _LOG2_E = constexpr(MASKED), constexpr(LOG2_E)
_BF16, _E4M3, _BYTES, _INT8 = (constexpr(kind) for kind in (BF16, E4M3, E4M3_BYTES, INT8))
_ONE, _BY_HEAD, _BY_TOKEN = (constexpr(kind) for kind in (ONE, BY_HEAD, BY_TOKEN))


@jit
def read_tile(pages, rows, seen, first, DIM: constexpr, SIZE: constexpr, KIND: constexpr, WIDE: constexpr):
    """Unscaled values of some slots' elements first..first+SIZE-1, 0 where not seen or behind DIM.

    Args:
        pages: Pointer.
        rows: Where each slot's head begins. Shape: (keys,), int64.
        seen: Shape: (keys,).
        WIDE: Whether in fp32, else in the type of products: bf16, fp16 for e4m3.

    Returns:
        Shape: (keys, SIZE).
    """
    at = first + tl.arange(0, SIZE)
    mask = seen[:, None] & (at < DIM)[None, :]
    nothing = 0 if KIND >= _BYTES else 0.0
    raw = tl.load(pages + rows[:, None] + at[None, :], mask=mask, other=nothing)
    if KIND == _BYTES:
        value = e4m3_value(raw)
    elif KIND == _INT8:
        value = tl.where(raw == -128, float("nan"), raw.to(tl.float32))
    elif KIND == _E4M3 and INTERPRETED:  # the interpreter makes 480 of NaN
        value = e4m3_value(raw.to(tl.uint8, bitcast=True))
    else:
        value = raw
    if WIDE:
        value = value.to(tl.float32)
    elif KIND == _E4M3:
        value = value.to(tl.float16)
    else:
        value = value.to(tl.bfloat16)
    return value


@jit
def power_below(x):
    """The power of two at or below a number from 0 on, within 2^-100 and 2^100."""
    bits = tl.minimum(tl.maximum(x.to(tl.int32, bitcast=True) & 0x7F800000, 27 << 23), 227 << 23)
    return bits.to(tl.float32, bitcast=True)


@jit
def inverse(power):
    """1 / a power of two, exactly."""
    return ((254 << 23) - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@jit
def largest(query):
    """Largest magnitude of each row. Shape: (rows,), fp32."""
    return tl.max(tl.abs(query.to(tl.float32)), 1)


@jit
def in_half(query, unit):
    """Queries in fp16, their largest between 256 and 512: times `unit / 256` they are what they were."""
    return (query.to(tl.float32) * (256.0 * inverse(unit))[:, None]).to(tl.float16)


@jit
def add_values(acc, weight, value, shrink, unit, HALF: constexpr, WIDE: constexpr):
    """`acc * shrink + weight value`, weights in the type of products.

    Args:
        unit: A power of two that the largest of `weight` is below twice; read where HALF.
    """
    if HALF:
        part = dot((weight * (16384.0 * inverse(unit))).to(tl.float16), value, tl.zeros(acc.shape, tl.float32))
        acc = acc * shrink[:, None] + part * (unit * 0.00006103515625)
    elif WIDE:
        acc = dot(weight, value, acc * shrink[:, None])
    else:
        acc = dot(to_bf16(weight), value, acc * shrink[:, None])
    return acc


@jit
def read_query(q, rows, mine, first, DIM: constexpr, SIZE: constexpr, WIDE: constexpr):
    """Elements first..first+SIZE-1 of queries, 0 where not mine or behind DIM. Args as in `read_tile`."""
    at = first + tl.arange(0, SIZE)
    value = tl.load(q + rows[:, None] + at[None, :], mask=mine[:, None] & (at < DIM)[None, :], other=0.0)
    return value.to(tl.float32) if WIDE else value


@jit
def write_rows(out, rows, mine, first, value, DIM: constexpr, SIZE: constexpr, FP32: constexpr):
    """Stores rows' elements first..first+SIZE-1, in fp32 or bf16. Args as in `read_tile`."""
    at = first + tl.arange(0, SIZE)
    value = value if FP32 else to_bf16(value)
    tl.store(out + rows[:, None] + at[None, :], value, mask=mine[:, None] & (at < DIM)[None, :])


@jit
def sound_slots(stamps, tags, slot, position, compared):
    """Which of the slots that are compared are stamped with what is expected there.

    Args:
        tags: Pointers to each slot's expected tag. Shape: (keys,), as all but `stamps`.
    """
    tag = tl.load(tags, mask=compared, other=0)
    same = tl.load(stamps + slot * 2, mask=compared, other=0) == tag
    return same & (tl.load(stamps + slot * 2 + 1, mask=compared, other=-1) == position) & compared


@jit
def report(faults, sound, worst, counted, compared):
    """Adds what a program found to what others found: `evalsvc.kernels.page_table.Guarding`."""
    tl.atomic_add(sound, tl.sum(counted, 0), mask=compared)
    tl.atomic_max(faults, tl.max(2147483647 - worst, 0), mask=compared)


@jit
def scale_scores(score, scale, slots, seen, head, kv_heads, KIND: constexpr):
    """Multiplies (rows, keys) by each key's scale."""
    if KIND == _BY_TOKEN:
        score = score * tl.load(scale + slots * kv_heads + head, mask=seen, other=0.0)[None, :]
    elif KIND == _BY_HEAD:
        score = score * tl.load(scale + head)
    elif KIND == _ONE:
        score = score * tl.load(scale)
    return score


@jit
def scale_sums(acc, scale, head, KIND: constexpr):
    """Multiplies sums of values by a scale that all their keys share."""
    if KIND == _BY_HEAD:
        acc = acc * tl.load(scale + head)
    elif KIND == _ONE:
        acc = acc * tl.load(scale)
    return acc


@jit
def scores_base2(score, scaling, softcap, CAPPED: constexpr):
    """Scores as exponents of base 2: scaling, and a soft cap where there is one.

    tanh(x) = sign(x) (1 - t) / (1 + t) with t = exp(-2 |x|), which neither overflows nor cancels.
    """
    if CAPPED:
        x = score * (scaling / softcap)
        t = tl.exp2(tl.abs(x) * -2.8853900817779268)
        bent = (1 - t) / (1 + t)
        return tl.where(x < 0, -bent, bent) * (softcap * 1.4426950408889634)
    return score * (scaling * 1.4426950408889634)


@jit
def weigh(score, seen, peak, total):
    """One block's step of a softmax that has seen others.

    Args:
        score: Exponents of base 2. Shape: (rows, keys).
        seen: Shape: (rows, keys) or broadcastable.
        peak: Largest score so far. Shape: (rows,). `total` alike: weights so far, relative to it.

    Returns:
        Weights, exactly 0 where not seen; the new peak and total; what earlier sums shrink by.
    """
    score = tl.where(seen, score, _MASKED)
    highest = tl.maximum(peak, tl.max(score, 1))
    weight = tl.where(seen, tl.exp2(score - highest[:, None]), 0.0)
    shrink = tl.exp2(peak - highest)
    return weight, highest, total * shrink + tl.sum(weight, 1), shrink


@jit
def read_queries(q, lines, mine, DIM: constexpr, D: constexpr, D_REST: constexpr, WIDE: constexpr, HALF: constexpr):
    """Queries in two parts as they are multiplied, and a power of two that they were divided by where HALF.

    Args:
        lines: Which heads of which tokens, counted through. Shape: (rows,), int64.
        mine: Rows that are there. Shape: (rows,).
    """
    query = read_query(q, lines * DIM, mine, 0, DIM, D, WIDE)
    rest = read_query(q, lines * DIM, mine, D, DIM, D_REST, WIDE) if D_REST else query
    unit = tl.full((query.shape[0],), 1.0, tl.float32)
    if HALF:
        most = largest(query)
        if D_REST:
            most = tl.maximum(most, largest(rest))
        unit = power_below(most)
        query = in_half(query, unit)
        rest = in_half(rest, unit) if D_REST else query
    return query, rest, unit


@jit
def attend_block(
    k, v, k_scale, v_scale, slot, loaded, seen, head, kv_heads, query, query_rest, unit, scaling, softcap,
    peak, total, acc, acc_rest,
    DIM: constexpr, D: constexpr, D_REST: constexpr, V_DIM: constexpr, V: constexpr, V_REST: constexpr,
    KIND: constexpr, SCALE: constexpr, WIDE: constexpr, HALF: constexpr, CAPPED: constexpr,
):  # fmt: skip
    """One block of keys.

    Args:
        slot: Of each key. Shape: (keys,), int64.
        loaded: Keys that some row sees. Shape: (keys,).
        seen: Which row sees which. Shape: (rows, keys) or broadcastable.
        peak: As in `weigh`, with `total`.
        acc: Sums of weighed values. Shape: (rows, V). `acc_rest` alike, of the second part where there is one.
    """
    line = slot * kv_heads + head
    key = read_tile(k, line * DIM, loaded, 0, DIM, D, KIND, WIDE)
    score = dot(query, tl.trans(key), tl.zeros((query.shape[0], slot.shape[0]), tl.float32))
    if D_REST:
        key_rest = read_tile(k, line * DIM, loaded, D, DIM, D_REST, KIND, WIDE)
        score = dot(query_rest, tl.trans(key_rest), score)
    if HALF:
        score = score * (unit * 0.00390625)[:, None]
    score = scale_scores(score, k_scale, slot, loaded, head, kv_heads, SCALE)
    weight, peak, total, shrink = weigh(scores_base2(score, scaling, softcap, CAPPED), seen, peak, total)
    bound = 1.0
    if SCALE == _BY_TOKEN:
        each = tl.load(v_scale + line, mask=loaded, other=0.0)
        weight = weight * each[None, :]
        if HALF:
            bound = power_below(tl.max(each, 0))
    value = read_tile(v, line * V_DIM, loaded, 0, V_DIM, V, KIND, WIDE)
    acc = add_values(acc, weight, value, shrink, bound, HALF, WIDE)
    if V_REST:
        value_rest = read_tile(v, line * V_DIM, loaded, V, V_DIM, V_REST, KIND, WIDE)
        acc_rest = add_values(acc_rest, weight, value_rest, shrink, bound, HALF, WIDE)
    return peak, total, acc, acc_rest


@jit
def finish(
    out, sinks, lines, heads, mine, peak, total, acc, acc_rest,
    V_DIM: constexpr, V: constexpr, V_REST: constexpr, SINKS: constexpr, FP32: constexpr,
):  # fmt: skip
    """Divides sums by weights, a sink's included, and stores them.

    Args:
        lines: As in `read_queries`.
        heads: Each row's head. Shape: (rows,).
    """
    highest, sink = peak, peak
    if SINKS:
        sink = tl.load(sinks + heads, mask=mine, other=0.0).to(tl.float32) * _LOG2_E
        highest = tl.maximum(peak, sink)
    weight = tl.exp2(peak - highest)
    total = total * weight
    if SINKS:
        total += tl.exp2(sink - highest)
    write_rows(out, lines * V_DIM, mine, 0, acc * weight[:, None] / total[:, None], V_DIM, V, FP32)
    if V_REST:
        write_rows(out, lines * V_DIM, mine, V, acc_rest * weight[:, None] / total[:, None], V_DIM, V_REST, FP32)
