"""AWQ's files: `X.qweight`, `X.qzeros`, both with codes along the outputs, and `X.scales`.

A word holds eight columns, from its lowest place up the columns 0, 2, 4, 6, 1, 3, 5, 7 of them; outputs fill theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from ..blocks import row_blocks
from .awq_config import AwqConfig
from .base import StoredTensor
from .words import PLAIN, WORD, InWords, codes_along_outputs, misfit, need, places
from .words_config import Words

CODES = (".qweight",)
SIDES = (".qzeros", ".scales")
ZERO, SCALE = SIDES
WHOLE = ".weight"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def join(config: AwqConfig, name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> StoredTensor:
    """The matrix that codes and what goes with them stand for.

    Args:
        config: The quantization_config.
        name: Of the matrix.
        codes: As stored.
        sides: By ending.

    Raises:
        EngineError: Tensors that are missing, or do not belong together or to the quantization_config.
    """
    words = config.words
    need(SIDES, codes, sides)
    zero, scale = sides[ZERO], sides[SCALE]
    if not _fits(words, codes, zero, scale):
        raise misfit(words, codes, sides)
    middle, out = 2 ** (words.bits - 1), scale.shape[1]
    if words.symmetric and not all(bool((place == middle).all()) for place in places(zero, words.bits, out)):
        reason = f"zero points {zero.name} are not all {middle}, and config.json says zero_point: false"
        remedy = "write zero_point: true into its quantization_config if they are right"
        raise EngineError(f"model {zero.file}: {reason}; {remedy}")
    return Awq(codes.file, name, (out, codes.shape[0]), scale.dtype, words, codes, scale, zero, None)


@dataclass(frozen=True)
class Awq(InWords):
    """Such a matrix."""

    def numbers(self, start: int, stop: int) -> Tensor:
        """As in `InWords`."""
        return codes_along_outputs(self.codes.rows(slice(None)), self.words.bits, start, stop, ORDER)

    def zeros(self, start: int, stop: int) -> Tensor:
        """As in `InWords`."""
        return codes_along_outputs(self.zero.rows(slice(None)), self.words.bits, start, stop, ORDER)

    def packed_words(self, start: int, stop: int) -> Tensor:
        """As in `InWords`."""
        each = WORD // self.words.bits
        packed = torch.zeros(stop - start, self.shape[1] // each, dtype=torch.int32)
        for some in row_blocks((len(packed), self.shape[1])):
            first, last, _ = some.indices(len(packed))
            codes = self.numbers(start + first, start + last).T
            for place in range(each):
                packed[some] |= codes[:, place::each].to(torch.int32) << (self.words.bits * place)
        return packed


def _fits(words: Words, codes: StoredTensor, zero: StoredTensor, scale: StoredTensor) -> bool:
    """Whether types and shapes are those of such a matrix."""
    if (codes.dtype, zero.dtype) != (torch.int32, torch.int32) or scale.dtype not in PLAIN:
        return False
    if {len(tensor.shape) for tensor in (codes, zero, scale)} != {2} or codes.shape[0] % (words.size or 1):
        return False
    inputs, (groups, out) = codes.shape[0], scale.shape
    if groups != inputs // (words.size or inputs):
        return False
    return (codes.shape[1] * WORD, tuple(zero.shape)) == (out * words.bits, (groups, codes.shape[1]))
