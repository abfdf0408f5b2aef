"""W4A16: bf16 activations times int4 weights in groups, symmetric, or with minima or zero points.

    w[n, k] = bf16((code - 8) * s[n, g])   or   bf16(code * s[n, g] + l[n, g])   or   bf16((code - z[n, g]) * s[n, g])
    g = k // group
    y[m, n] = sum over k of x[m, k] * w[n, k], in fp32

`evalsvc.kernels.int4` has the bytes, `evalsvc.kernels.linear_nibbles` the kernel, `evalsvc.kernels.launch` the order of
sums. Weights are rounded to bf16 before the product, as kernels of this kind serve them.
"""

from torch import Tensor

from evalsvc.errors import CapabilityError

from .compiling import Signature
from .experts import by_expert, check_counts
from .int4 import ZERO_DTYPE, int4_values
from .launch import check
from .linear_nibbles import ASYMMETRIC, SYMMETRIC, ZEROS, linear_nibbles, nibble_shape, signature


def linear_int4(
    x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor | None = None, counts: Tensor | None = None
) -> Tensor:
    """The product.

    Args:
        x: bf16. Shape: (rows, in).
        packed: int32. Shape: (out, in / 8), or (experts, out, in / 8).
        scale: bf16 or fp16. Shape: as `packed`, but its last dimension in / group; groups are multiples of 8.
        offset: Minima in bf16 or zero points in int16, as `scale`; None when symmetric.
        counts: int32. Shape: (experts,). Rows of each expert, which `x` has in the order of experts; None without.

    Returns:
        fp32. Shape: (rows, out).

    Raises:
        CapabilityError: Arguments that the kernel does not take.
    """
    _check(x, packed, scale, offset, counts)
    kind = SYMMETRIC if offset is None else ZEROS if offset.dtype == ZERO_DTYPE else ASYMMETRIC
    return linear_nibbles(x, packed, scale, offset, kind, counts)


def linear_int4_torch(
    x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor | None = None, counts: Tensor | None = None
) -> Tensor:
    """The twin of `linear_int4`."""
    _check(x, packed, scale, offset, counts)
    if counts is not None:
        held = zip(packed, scale, [None] * len(packed) if offset is None else offset, strict=True)
        return by_expert(x, counts, [lambda rows, of=of: linear_int4_torch(rows, *of) for of in held], packed.shape[1])
    return x.float() @ int4_values(packed, scale, offset).bfloat16().float().T


def _check(x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor | None, counts: Tensor | None) -> None:
    of = () if counts is None else ("experts",)
    tensors = {"x": (x, ("rows", "in"), ("bf16",)), "packed": (packed, (*of, "out", x.shape[-1] // 8), ("int32",))}
    tensors["scale"] = (scale, (*of, "out", "groups"), ("bf16", "fp16"))
    if offset is not None:
        tensors["offset"] = (offset, (*of, "out", "groups"), ("bf16", "int16"))
    sizes = check("linear_int4", **tensors)
    if sizes["groups"] == 0 or sizes["in"] % (8 * sizes["groups"]):
        raise CapabilityError(
            f"linear_int4: {sizes['groups']} groups do not cut {sizes['in']} inputs into multiples of 8"
        )
    check_counts("linear_int4", x, counts, sizes)


def signatures() -> list[Signature]:
    """What is launched by default: an 8B model's largest matrices, few rows and many."""
    few, many = nibble_shape(1, 4096, 14336), nibble_shape(512, 4096, 14336)
    return [
        signature("linear_int4:g128:sym:few_rows", SYMMETRIC, 128, few, False),
        signature("linear_int4:g128:sym:many_rows", SYMMETRIC, 128, many, False),
        signature("linear_int4:g32:asym:few_rows", ASYMMETRIC, 32, few, False),
        signature("linear_int4:g32:asym:many_rows", ASYMMETRIC, 32, many, False),
        signature("linear_int4:g128:sym:experts:few_rows", SYMMETRIC, 128, few, True),
        signature("linear_int4:g128:asym:experts:many_rows", ASYMMETRIC, 128, many, True),
        signature("linear_int4:g128:zeros:few_rows", ZEROS, 128, few, False),
        signature("linear_int4:g128:zeros:many_rows", ZEROS, 128, many, False),
    ]
