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
from .experts import by_expert
from .int4 import ZERO_DTYPE, int4_values
from .linear_nibbles import ASYMMETRIC, SYMMETRIC, ZEROS, linear_nibbles, nibble_signatures
from .products import Weights, check_product


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
        return by_expert(x, counts, linear_int4_torch, packed, scale, offset)
    return x.float() @ int4_values(packed, scale, offset).bfloat16().float().T


def _check(x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor | None, counts: Tensor | None) -> None:
    weights: dict[str, Weights] = {"packed": (packed, ("out", x.shape[-1] // 8), ("int32",))}
    weights["scale"] = (scale, ("out", "groups"), ("bf16", "fp16"))
    if offset is not None:
        weights["offset"] = (offset, ("out", "groups"), ("bf16", "int16"))
    sizes = check_product("linear_int4", x, counts, **weights)
    if sizes["groups"] == 0 or sizes["in"] % (8 * sizes["groups"]):
        raise CapabilityError(
            f"linear_int4: {sizes['groups']} groups do not cut {sizes['in']} inputs into multiples of 8"
        )


def signatures() -> list[Signature]:
    """All that can be chosen but for groups: the smallest and the largest that plans have, and no power of two."""
    kinds = {"sym": SYMMETRIC, "asym": ASYMMETRIC, "zeros": ZEROS}
    cases = [(32, "asym"), (40, "zeros"), *((128, word) for word in kinds)]
    return [s for g, word in cases for s in nibble_signatures(f"linear_int4:g{g}:{word}", kinds[word], g)]
