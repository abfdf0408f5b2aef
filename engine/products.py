"""Products of quantized activations with packed matrices: what each reads of the packed form, and its arithmetic.

Activations are quantized for real, each token by itself, so that no neighbour in a batch changes an answer.

fp8, per channel: the product runs over the exact e4m3 values in bf16, and both scales follow it. torch's bf16 product
on CPU ends in bf16, so it is rounded once before its scales and once after. Measured on a 135M Llama, 800 tokens: KL
from the same codes with all other arithmetic in fp32 is 0.0183 nats; with an exact product, rounded once, 0.0188; with
the product's residual added by a second one, 0.0182 at twice the time. What rounding activations to e4m3 does to the
next layer's codes hides the difference, and so the plain product stays.

fp8 in blocks: `evalsvc.kernels.fp8_block`.
int8: activation scale max|x| / 127 as vLLM's dynamic quantization has it; the product is exact in int32.
nvfp4: e2m1 values times their block scales are exact in bf16; both globals follow the product. Checkpoints bring one
global for all activations of a layer, from calibration; here each token has its own, which needs none, and which no
other token of the batch reaches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from evalsvc.kernels.fp8 import absmax_scale, e4m3_as_bf16, quantize_e4m3
from evalsvc.kernels.fp8_block import block_product, round_groups
from evalsvc.kernels.int8 import INT8_MAX, quantize_int8
from evalsvc.kernels.int8_product import int8_product
from evalsvc.kernels.nvfp4 import nvfp4_values, round_nvfp4

from .packed.fp8 import Fp8BlockWeight, Fp8Weight
from .packed.int8 import Int8Weight
from .packed.nvfp4 import Nvfp4Weight


@dataclass(frozen=True)
class Product:
    """One form.

    Attributes:
        decode: Rows of the packed form -> what the product reads of them. Shape: (rows, in).
        run: Activations of shape (tokens, in), all that `decode` made, the packed form -> fp32 of shape (tokens, out).
        reads_codes: It reads the codes themselves; there is no copy.
        by_inputs: Its copy lies in memory input by input.
    """

    decode: Callable[[Any], Tensor]
    run: Callable[[Tensor, Tensor, Any], Tensor]
    reads_codes: bool = False
    by_inputs: bool = False


def _fp8(x: Tensor, weight: Tensor, packed: Fp8Weight) -> Tensor:
    scale = absmax_scale(x, dim=-1)
    codes = e4m3_as_bf16(quantize_e4m3(x, scale))
    return functional.linear(codes, weight).float() * scale * packed.scale.squeeze(1)


def _fp8_block(x: Tensor, weight: Tensor, packed: Fp8BlockWeight) -> Tensor:
    return block_product(*round_groups(x), weight.T, packed.scale)


def _int8(x: Tensor, weight: Tensor, packed: Int8Weight) -> Tensor:
    scale = absmax_scale(x, dim=-1, largest=INT8_MAX)
    return int8_product(quantize_int8(x, scale), weight).float() * scale * packed.scale.squeeze(1)


def _nvfp4(x: Tensor, weight: Tensor, packed: Nvfp4Weight) -> Tensor:
    values, divisor = round_nvfp4(x)
    return functional.linear(values, weight).float() / divisor / packed.divisor


PRODUCTS = {
    "fp8_w8a8": Product(lambda packed: e4m3_as_bf16(packed.codes), _fp8),
    "fp8_block128_w8a8": Product(lambda packed: e4m3_as_bf16(packed.codes), _fp8_block, by_inputs=True),
    "int8_w8a8": Product(lambda packed: packed.codes, _int8, reads_codes=True),
    "nvfp4_w4a4": Product(lambda packed: nvfp4_values(packed.codes, packed.scale), _nvfp4),
}
