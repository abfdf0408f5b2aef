"""nvfp4 weights: W4A16 with activations in bf16, and W4A4's form with activations rounded to nvfp4 as well.

    w[n, k] = e2m1 * e4m3 block scale (exact in bf16) / global
    W4A16:  y[m, n] = (sum over k of x[m, k] * value[n, k]) / global
    W4A4:   y[m, n] = (sum over k of x value[m, k] * value[n, k]) / x global[m] / global

`evalsvc.kernels.nvfp4` has the bytes, `evalsvc.kernels.linear_nibbles` the kernel: eight codes read as one int32 lie as
int4's do. W4A4's sums run over exact values in bf16, everywhere: the same arithmetic as fp4 hardware up to the order of
sums in fp32, not its speed.
"""

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError

from .compiling import Signature
from .experts import by_expert
from .linear_nibbles import E2M1, linear_nibbles, nibble_signatures
from .nvfp4 import BLOCK, nvfp4_values, round_nvfp4
from .products import check_product


def linear_nvfp4(x: Tensor, codes: Tensor, scale: Tensor, divisor: Tensor, counts: Tensor | None = None) -> Tensor:
    """W4A16.

    Args:
        x: bf16. Shape: (rows, in).
        codes: uint8, two codes each. Shape: (out, in / 2), or (experts, out, in / 2).
        scale: float8_e4m3fn. Shape: as `codes`, but its last dimension in / 16.
        divisor: The global, fp32. Shape: (1,), or (experts, 1).
        counts: As in `linear_int4`.

    Returns:
        fp32. Shape: (rows, out).

    Raises:
        CapabilityError: Arguments that the kernel does not take.
    """
    _check(x, codes, scale, divisor, counts)
    y = linear_nibbles(x, codes.view(torch.int32), scale.view(torch.uint8), None, E2M1, counts)
    return y.div_(_divisors(divisor, counts, len(x)))


def linear_nvfp4_torch(
    x: Tensor, codes: Tensor, scale: Tensor, divisor: Tensor, counts: Tensor | None = None
) -> Tensor:
    """The twin of `linear_nvfp4`."""
    _check(x, codes, scale, divisor, counts)
    if counts is not None:
        return by_expert(x, counts, linear_nvfp4_torch, codes, scale, divisor)
    return x.float() @ nvfp4_values(codes, scale).float().T / divisor


def linear_nvfp4_w4a4(x: Tensor, codes: Tensor, scale: Tensor, divisor: Tensor, counts: Tensor | None = None) -> Tensor:
    """W4A4's form: each token rounded to nvfp4 with a global of its own. As `linear_nvfp4`."""
    values, mine = round_nvfp4(x)
    return linear_nvfp4(values, codes, scale, divisor, counts).div_(mine)


def linear_nvfp4_w4a4_torch(
    x: Tensor, codes: Tensor, scale: Tensor, divisor: Tensor, counts: Tensor | None = None
) -> Tensor:
    """The twin of `linear_nvfp4_w4a4`."""
    values, mine = round_nvfp4(x)
    return linear_nvfp4_torch(values, codes, scale, divisor, counts) / mine


def _divisors(divisor: Tensor, counts: Tensor | None, rows: int) -> Tensor:
    if counts is None:
        return divisor
    return divisor.repeat_interleave(counts, dim=0, output_size=rows)


def _check(x: Tensor, codes: Tensor, scale: Tensor, divisor: Tensor, counts: Tensor | None) -> None:
    inputs = x.shape[-1]
    if inputs % BLOCK:
        raise CapabilityError(f"linear_nvfp4: x has {inputs} inputs; blocks of {BLOCK} do not fill them")
    check_product(
        "linear_nvfp4",
        x,
        counts,
        codes=(codes, ("out", inputs // 2), ("uint8",)),
        scale=(scale, ("out", inputs // BLOCK), ("fp8",)),
        divisor=(divisor, (1,), ("fp32",)),
    )


def signatures() -> list[Signature]:
    """All that can be chosen."""
    return nibble_signatures("linear_nvfp4", E2M1, BLOCK)
