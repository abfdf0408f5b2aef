"""Matrices whose codes lie in int32 words, held as (in, out), as GPTQ and AWQ store them.

    w[n, k] = (code[k, n] - zero[g, n]) * scale[g, n],   g = k // group, or as `g_idx` says

in the scales' type: the difference is exact, and the product is rounded once.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError
from evalsvc.kernels.int4 import ZERO_DTYPE

from ..blocks import row_blocks
from ..packed.base import Packed
from ..packed.int4 import Int4Weight
from ..packed.int8 import Int8Weight
from ..precision import WeightFormat
from .base import StoredTensor
from .words_config import Words

WORD = 32  # bits
IN_ORDER = tuple(range(8))
PLAIN = (torch.float32, torch.float16, torch.bfloat16)


def codes_along_inputs(words: Tensor, bits: int) -> Tensor:
    """Codes of words that hold one column's, the first one lowest. Shape: (words, out) -> (words * 32 / bits, out)."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)[:, None]
    return ((words[:, None] >> shifts) & (2**bits - 1)).to(ZERO_DTYPE).flatten(0, 1)


def codes_along_outputs(words: Tensor, bits: int, start: int, stop: int, order: tuple[int, ...] = IN_ORDER) -> Tensor:
    """Codes of some columns, of words that hold one row's.

    Args:
        words: Shape: (rows, ceil(out * bits / 32)).
        bits: Of a code.
        start: The first column.
        stop: The one after the last.
        order: Which column's code each place of a word holds, the lowest place first.

    Returns:
        Shape: (rows, stop - start).
    """
    each = WORD // bits
    first = start // each
    shifts = torch.tensor([bits * order.index(column) for column in range(each)], dtype=torch.int32)
    some = words[:, first : -(-stop // each), None]
    codes = ((some >> shifts) & (2**bits - 1)).to(ZERO_DTYPE).flatten(1)
    return codes[:, start - first * each : stop - first * each]


def places(zero: StoredTensor, bits: int, out: int) -> Iterator[Tensor]:
    """Zero points by their place in a word, without what is left of the last one.

    Columns lie in order, or fill their words. Shape of each: (groups, words).
    """
    words, each = zero.rows(slice(None)), WORD // bits
    for place in range(each):
        yield (words[:, : -(-(out - place) // each)] >> place * bits) & (2**bits - 1)


def need(needed: Sequence[str], codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> None:
    """Refuses codes that lie alone.

    Raises:
        EngineError: One that goes with them is missing.
    """
    for side in needed:
        if side not in sides:
            raise EngineError(f"model {codes.file}: tensor {codes.name} has no {side} beside it; fetch the model again")


def misfit(words: Words, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> EngineError:
    """That tensors are not what the quantization_config says."""
    found = ", ".join(f"{t.name.rpartition('.')[2]} {tuple(t.shape)}" for t in (codes, *sides.values()))
    reason = f"tensor {codes.name} is no {words}, which config.json says it is ({found})"
    return EngineError(f"model {codes.file}: {reason}; fetch the model again")


@dataclass(frozen=True)
class InWords(StoredTensor):
    """A matrix of codes with scales and zero points. Its shape is (out, in).

    Attributes:
        words: How it is stored.
        codes: int32.
        scale: Shape: (groups, out).
        zero: int32, along the outputs. Shape: (groups, ceil(out * bits / 32)).
        group: Of each input, where that is not its number over the group's size. Shape: (in,).
    """

    words: Words
    codes: StoredTensor
    scale: StoredTensor
    zero: StoredTensor
    group: Tensor | None

    @abstractmethod
    def numbers(self, start: int, stop: int) -> Tensor:
        """Codes of some outputs. Shape: (in, outputs), int16."""

    @abstractmethod
    def zeros(self, start: int, stop: int) -> Tensor:
        """Zero points of some outputs. Shape: (groups, outputs), int16."""

    def scales(self, start: int, stop: int) -> Tensor:
        """Of some outputs. Shape: (groups, outputs)."""
        return self.scale.rows(slice(None))[:, start:stop]

    def rows(self, some: slice) -> Tensor:
        """As the libraries of these files decode them."""
        start, stop, _ = some.indices(self.shape[0])
        codes, zeros, scales = self.numbers(start, stop), self.zeros(start, stop), self.scales(start, stop)
        if self._whole:
            parts = codes.unflatten(0, (len(scales), -1))
            return ((parts - zeros[:, None]).to(self.dtype) * scales[:, None]).flatten(0, 1).T
        group = torch.arange(self.shape[1]) // self.words.size if self.group is None else self.group
        return ((codes - zeros[group]).to(self.dtype) * scales[group]).T

    def own_format(self) -> WeightFormat:
        """As in `StoredTensor`."""
        found = self.words.own_format
        if found is not None and self._whole:
            return found
        ordered = ", inputs in another order" if self.group is not None else ""
        cut = "" if self._whole or ordered else f", the last group of {self.shape[1]} inputs cut short"
        reason = f"tensor {self.name} is stored as {self.words}{ordered}{cut}, which is no plan's format"
        raise CapabilityError(f"model {self.file}: {reason}; name a weights format in place of `stored`")

    @property
    def _whole(self) -> bool:
        return self.group is None and self.shape[1] % (self.words.size or 1) == 0

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        """As in `StoredTensor`. int4 has scales of 16 bits; those of int8 are widened."""
        own = self.words.own_format
        if own is None or form != own.stored or not self._whole:
            return None
        start, stop, _ = some.indices(self.shape[0])
        scale = own_memory(self.scales(start, stop).T)
        self._check_finite(scale, "")
        if own.kind == "int8":
            return Int8Weight(self._signed(start, stop), scale.float())
        if self.dtype == torch.float32:
            return None
        zero = None if own.symmetric else own_memory(self.zeros(start, stop).T)
        return Int4Weight(self.packed_words(start, stop), scale, zero)

    def _signed(self, start: int, stop: int) -> Tensor:
        codes = torch.empty(stop - start, self.shape[1], dtype=torch.int8)
        for some in row_blocks(codes.shape):
            first, last, _ = some.indices(len(codes))
            codes[some] = (self.numbers(start + first, start + last) - 2 ** (self.words.bits - 1)).T
        return codes

    @abstractmethod
    def packed_words(self, start: int, stop: int) -> Tensor:
        """Codes of some outputs as int4 packs them, in memory of their own. Shape: (outputs, in / 8), int32."""


def own_memory(view: Tensor) -> Tensor:
    """A contiguous copy, whatever the view is."""
    return view.clone(memory_format=torch.contiguous_format)
