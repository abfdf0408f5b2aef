"""fp8 in blocks of 128 x 128, as DeepSeek, Kimi K2, GLM and MiniMax publish: `X` and its multiplier `X_scale_inv`.

    w[n, k] = e4m3[n, k] * scale[n // 128, k // 128], in fp32

Beside a `weight_scale_inv` of fp32 there are some of bf16 and e8m0, which fp32 holds exactly. Experts may be stacked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError
from evalsvc.kernels.fp8_block import BLOCK, blocks_of

from ..packed.fp8 import Fp8BlockWeight
from ..precision import WeightFormat
from .base import StoredTensor

SCALES = "_scale_inv"
FORM = "fp8:block128"
_NAN = 0x7F


def check(asked: Mapping[str, Any]) -> None:
    """Refuses other fp8 than in blocks of 128 x 128 with activations scaled as they come.

    Args:
        asked: quantization_config.

    Raises:
        CapabilityError: What it asks.
    """
    block, scheme, fmt = (asked.get(key) for key in ("weight_block_size", "activation_scheme", "fmt"))
    if block != [BLOCK, BLOCK]:
        found = f"fp8 with weight_block_size {block}"
        raise CapabilityError(f"it is already quantized, in {found}; read are blocks of {[BLOCK, BLOCK]}")
    if scheme not in (None, "dynamic") or fmt not in (None, "e4m3"):
        found = f"fp8 {fmt or 'e4m3'} with {scheme} activations"
        raise CapabilityError(f"it is already quantized, in {found}; read is e4m3 with dynamic ones")


def join(name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> StoredTensor:
    """The matrix, or the stack of them, that codes and scales stand for.

    Raises:
        EngineError: Types or shapes that do not belong together.
    """
    scale = sides[SCALES]
    *stack, out, inputs = codes.shape if len(codes.shape) in (2, 3) else (0, 0)
    kinds = codes.dtype == torch.float8_e4m3fn and scale.dtype != torch.uint8
    if not kinds or scale.shape != (*stack, blocks_of(out), blocks_of(inputs)):
        found = f"{codes.name} of shape {codes.shape} and {scale.name} of shape {scale.shape}"
        raise EngineError(f"model {codes.file}: {found} are no fp8 in blocks of {BLOCK}; fetch the model again")
    return _Blocks(codes.file, name, codes.shape, torch.float32, codes, scale)


@dataclass(frozen=True)
class _Blocks(StoredTensor):
    codes: StoredTensor
    scale: StoredTensor

    def _held(self, some: slice, expert: int | None = None) -> Fp8BlockWeight:
        """Some rows of the matrix, or of one in the stack; views of the file."""
        codes, scale = self.codes, self.scale
        start, stop, _ = some.indices(self.shape[-2])
        blocks = slice(start // BLOCK, blocks_of(stop))
        if expert is None:
            return Fp8BlockWeight(codes.rows(slice(start, stop)), scale.rows(blocks).float(), start % BLOCK)
        one = slice(expert, expert + 1)
        return Fp8BlockWeight(codes.rows(one)[0, start:stop], scale.rows(one)[0, blocks].float(), start % BLOCK)

    def rows(self, some: slice) -> Tensor:
        if len(self.shape) == 2:
            return self._held(some).dequantize()
        experts = range(*some.indices(self.shape[0]))
        return torch.stack([self._held(slice(None), expert).dequantize() for expert in experts])

    def own_format(self) -> WeightFormat:
        return WeightFormat("fp8", "w8a8", BLOCK)

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Fp8BlockWeight | None:
        if form != FORM:
            return None
        held = self._held(some, expert)
        if held.skipped:
            raise CapabilityError(
                f"model {self.file}: a matrix of {self.name} begins at row {some.start}, within a block of {BLOCK}; "
                f"{form} would round it again, use another weights format"
            )
        held = replace(held, codes=held.codes.clone(), scale=held.scale.clone())
        finite = bool(held.scale.isfinite().all()) and int((held.codes.view(torch.uint8) & _NAN).max()) != _NAN
        if not finite:
            raise EngineError(f"model {self.file}: tensor {self.name} holds NaN or infinity")
        return held
