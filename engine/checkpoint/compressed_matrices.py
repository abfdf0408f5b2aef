"""Matrices as compressed-tensors stores them, decoded in its own order of operations and rounding.

    pack-quantized:        w = (code - zero) * scale, codes of 4 or 8 bits in int32 words, the first one lowest
    int- and float-:       w = (code - zero) * scale, codes in int8 or e4m3
    nvfp4-pack-quantized:  w = e2m1 * (scale / global)

in the scale's type, nvfp4 in fp32 and then bf16 (`quantization/lifecycle/forward_helpers.py` there). Packed zero points
have their codes along the outputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError
from evalsvc.kernels.fp8 import dequantize_e4m3, e4m3_as_bf16
from evalsvc.kernels.fp8_block import BLOCK, blocks_of, expand
from evalsvc.kernels.int4 import ZERO_DTYPE
from evalsvc.kernels.nvfp4 import E2M1_VALUES

from ..packed.base import Packed
from ..packed.fp8 import Fp8BlockWeight, Fp8Weight
from ..packed.int4 import Int4Weight
from ..packed.int8 import Int8Weight
from ..packed.nvfp4 import Nvfp4Weight
from ..precision import NVFP4_BLOCK, WeightFormat
from .base import StoredTensor
from .compressed_config import PACKED, Group

WORD = 32  # bits
_PLAIN = (torch.float32, torch.float16, torch.bfloat16)
_E4M3_NAN = 0x7F


def unpack(words: Tensor, bits: int, inputs: int) -> Tensor:
    """Codes of int32 words, the first one lowest, as signed numbers.

    Args:
        words: Shape: (rows, ceil(inputs * bits / 32)), int32.
        bits: Of a code; divides 32.
        inputs: Codes of a row.

    Returns:
        Shape: (rows, inputs), int8.
    """
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    codes = (words[..., None] >> shifts) & (2**bits - 1)
    return (codes.flatten(-2)[:, :inputs] - 2 ** (bits - 1)).to(torch.int8)


def whole(side: StoredTensor) -> Tensor:
    """All of a small tensor."""
    return side.rows(slice(None))


def numel(side: StoredTensor) -> int:
    """Numbers in a tensor."""
    return torch.Size(side.shape).numel()


def own_format(of: StoredTensor, group: Group) -> WeightFormat:
    """The plan's format that a matrix of a group is in.

    Raises:
        CapabilityError: No plan's.
    """
    if group.own_format is not None:
        return group.own_format
    reason = (
        f"{of.name} is stored as {group} with activations {group.inputs or 'unquantized'}, which is no plan's format"
    )
    raise CapabilityError(f"model {of.file}: tensor {reason}; name a weights format in place of `stored`")


def _of_rows(side: StoredTensor, some: slice) -> Tensor:
    """Some rows of a side, or the one number that it has for all of them."""
    return whole(side).reshape(1, 1) if numel(side) == 1 else side.rows(some)


@dataclass(frozen=True)
class Codes(StoredTensor):
    """A matrix of codes with scales.

    Attributes:
        group: How it is stored.
        codes: Shape: as its own, or of words.
        scale: Shape: () or (1,) of a tensor, (out, 1), (out, groups) or one for each block.
        zero: Zero points where the group has some.
        order: The group of each input, where that is not its number over the group's size. Shape: (in,).
    """

    group: Group
    codes: StoredTensor
    scale: StoredTensor
    zero: StoredTensor | None
    order: Tensor | None = None

    def fits(self) -> bool:
        """Whether types and shapes are the group's."""
        group, (out, inputs) = self.group, self.shape
        code = torch.int8 if group.kind == "int" else torch.float8_e4m3fn
        if self.codes.dtype != (torch.int32 if group.format == PACKED else code) or self.scale.dtype not in _PLAIN:
            return False
        if group.size and inputs % group.size:
            return False
        expected = {
            "channel": (out, 1),
            "group": (out, inputs // max(1, group.size)),
            "block": (blocks_of(out), blocks_of(inputs)),
        }
        found = numel(self.scale) == 1 if group.strategy == "tensor" else self.scale.shape == expected[group.strategy]
        return found and (group.symmetric or self._zero_fits())

    def _zero_fits(self) -> bool:
        assert self.zero is not None
        if self.group.format != PACKED:
            return self.zero.dtype == torch.int8 and self.zero.shape == self.scale.shape
        out, groups = self.scale.shape
        return self.zero.dtype == torch.int32 and self.zero.shape == (-(-out * self.group.bits // WORD), groups)

    def _numbers(self, some: slice) -> Tensor:
        """Codes of some rows. Shape: (rows, in); int8, or bf16 of e4m3."""
        codes = self.codes.rows(some)
        if self.group.format == PACKED:
            return unpack(codes, self.group.bits, self.shape[1])
        return codes if self.group.kind == "int" else e4m3_as_bf16(codes)

    def _zeros(self, start: int, stop: int) -> Tensor:
        """Zero points of some rows, shaped as their scales; int8."""
        assert self.zero is not None
        if self.group.format != PACKED:
            return _of_rows(self.zero, slice(start, stop))
        each = WORD // self.group.bits
        first = start // each
        words = self.zero.rows(slice(first, -(-stop // each)))
        return unpack(words.T, self.group.bits, stop - first * each).T[start - first * each :]

    def rows(self, some: slice) -> Tensor:
        """As the library decompresses them."""
        start, stop, _ = some.indices(self.shape[0])
        numbers = self._numbers(slice(start, stop)).to(self.dtype)
        if self.group.strategy == "block":
            blocks, skipped = self.scale.rows(slice(start // BLOCK, blocks_of(stop))), start % BLOCK
            return numbers * expand(expand(blocks, skipped + stop - start, 0), self.shape[1], 1)[skipped:]
        scale = _of_rows(self.scale, slice(start, stop))
        if self.order is not None:
            zeros = 0 if self.group.symmetric else self._zeros(start, stop).to(self.dtype)[:, self.order]
            return (numbers - zeros) * scale[:, self.order]
        numbers = numbers.unflatten(1, (scale.shape[1], -1))
        if not self.group.symmetric:
            numbers = numbers - self._zeros(start, stop).to(self.dtype)[..., None]
        return (numbers * scale[..., None]).flatten(1)

    def own_format(self) -> WeightFormat:
        """As in `StoredTensor`."""
        return own_format(self, self.group)

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        """As in `StoredTensor`. int4 has scales of 16 bits; those of others are widened to fp32, or repeated."""
        if form != self.group.held or (form.startswith("int4") and self.dtype == torch.float32):
            return None
        start, stop, _ = some.indices(self.shape[0])
        rows = slice(start, stop)
        if self.group.strategy == "block":
            return self._of_blocks(start, stop)
        scale = _of_rows(self.scale, rows)
        self._check_finite(scale, "")
        if form.startswith("int4"):
            middle = 2 ** (self.group.bits - 1)  # packed codes and zero points are both more by so much
            zero = None if self.group.symmetric else (self._zeros(start, stop).to(ZERO_DTYPE) + middle).contiguous()
            return Int4Weight(self.codes.rows(rows).clone(), scale.clone(), zero)
        scale = scale.float().expand(stop - start, 1).clone()
        if form.startswith("int8"):
            return Int8Weight(self._numbers(rows).clone(), scale)
        return Fp8Weight(self._e4m3(rows), scale)

    def _of_blocks(self, start: int, stop: int) -> Fp8BlockWeight:
        if start % BLOCK:
            raise CapabilityError(f"model {self.file}: a matrix of {self.name} begins within a block of {BLOCK}")
        scale = self.scale.rows(slice(start // BLOCK, blocks_of(stop)))
        self._check_finite(scale, "")
        return Fp8BlockWeight(self._e4m3(slice(start, stop)), scale.float().clone())

    def _e4m3(self, rows: slice) -> Tensor:
        codes = self.codes.rows(rows).clone()
        if int((codes.view(torch.uint8) & _E4M3_NAN).max()) == _E4M3_NAN:
            raise EngineError(f"model {self.file}: tensor {self.name} holds NaN or infinity")
        return codes


@dataclass(frozen=True)
class Nvfp4(StoredTensor):
    """A matrix in nvfp4.

    Attributes:
        group: How it is stored.
        codes: Shape: (out, in / 2), uint8.
        scale: Shape: (out, in / 16), e4m3.
        divisor: One number, fp32.
    """

    group: Group
    codes: StoredTensor
    scale: StoredTensor
    divisor: StoredTensor

    def fits(self) -> bool:
        """Whether types and shapes belong together."""
        types = (self.codes.dtype, self.scale.dtype, self.divisor.dtype)
        blocks = (self.shape[0], self.shape[1] // NVFP4_BLOCK)
        known = types == (torch.uint8, torch.float8_e4m3fn, torch.float32) and numel(self.divisor) == 1
        return known and self.shape[1] % NVFP4_BLOCK == 0 and self.scale.shape == blocks

    def rows(self, some: slice) -> Tensor:
        """As the library decompresses them."""
        codes, scale = self.codes.rows(some), dequantize_e4m3(self.scale.rows(some)) / whole(self.divisor).reshape(1)
        table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
        values = table[torch.stack([codes & 0xF, codes >> 4], dim=-1).flatten(1).int()]
        return (values.unflatten(1, (-1, NVFP4_BLOCK)) * scale[..., None]).flatten(1).to(torch.bfloat16)

    def own_format(self) -> WeightFormat:
        """As in `StoredTensor`."""
        return own_format(self, self.group)

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        """As in `StoredTensor`."""
        if form != "nvfp4":
            return None
        codes, scale, divisor = self.codes.rows(some), self.scale.rows(some), whole(self.divisor).reshape(1)
        self._check_finite(dequantize_e4m3(scale) / divisor, "")
        return Nvfp4Weight(codes.clone(), scale.clone(), divisor.clone())
