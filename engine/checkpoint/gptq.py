"""GPTQ's files: `X.qweight`, its codes along the inputs, `X.qzeros`, `X.scales` and the group of each input, `X.g_idx`.

Files of the format's first version hold zero points less one. One of 0 has no such code: files that have all ones in
its place are taken for 0, for 16 or for a carry into the neighbour, by one reader or another, and refused here.

So is a `g_idx` of another order than the inputs' own where `desc_act` is false: torch kernels (AutoGPTQ, GPTQModel)
follow it, vLLM does not look at it. All zeros over several groups are the inputs' own order for exllamav2, and the
first group for those torch kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError

from .base import StoredTensor
from .gptq_config import V1, V2, GptqConfig
from .words import PLAIN, WORD, InWords, codes_along_inputs, codes_along_outputs, misfit, need, own_memory, places
from .words_config import Words

CODES = (".qweight",)
SIDES = (".qzeros", ".scales", ".g_idx")
ZERO, SCALE, ORDER = SIDES
WHOLE = ".weight"


def join(config: GptqConfig, name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> StoredTensor:
    """The matrix that codes and what goes with them stand for.

    Args:
        config: The quantization_config.
        name: Of the matrix.
        codes: As stored.
        sides: By ending.

    Raises:
        CapabilityError: Zero points, or groups of inputs, that are read in several ways.
        EngineError: Tensors that are missing, or do not belong together or to the quantization_config.
    """
    words = config.words_of(name.removesuffix(WHOLE))
    if words is None:
        reason = f"tensor {codes.name} is quantized, which the quantization_config of config.json says it is not"
        raise EngineError(f"model {codes.file}: {reason}; fetch the model again")
    need((ZERO, SCALE, *([ORDER] if words.ordered else [])), codes, sides)
    if not _fits(words, codes, sides):
        raise misfit(words, codes, sides)
    shape = (codes.shape[1], codes.shape[0] * WORD // words.bits)
    _check_zeros(words, config.version, sides[ZERO], shape[0])
    group = _order(words, shape[1], sides)
    scale, added = sides[SCALE], int(config.version == V1)
    return Gptq(codes.file, name, shape, scale.dtype, words, codes, scale, sides[ZERO], group, added)


@dataclass(frozen=True)
class Gptq(InWords):
    """Such a matrix.

    Attributes:
        added: What a zero point is more than its code.
    """

    added: int

    def numbers(self, start: int, stop: int) -> Tensor:
        """As in `InWords`."""
        return codes_along_inputs(self._columns(start, stop), self.words.bits)

    def zeros(self, start: int, stop: int) -> Tensor:
        """As in `InWords`."""
        return codes_along_outputs(self.zero.rows(slice(None)), self.words.bits, start, stop) + self.added

    def packed_words(self, start: int, stop: int) -> Tensor:
        """As in `InWords`: the file's own words, turned."""
        return own_memory(self._columns(start, stop).T)

    def _columns(self, start: int, stop: int) -> Tensor:
        return self.codes.rows(slice(None))[:, start:stop]


def _fits(words: Words, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> bool:
    """Whether types and shapes are those of such a matrix."""
    zero, scale, order = (sides.get(side) for side in SIDES)
    assert zero is not None and scale is not None
    if len(codes.shape) != 2 or (codes.dtype, zero.dtype) != (torch.int32, torch.int32) or scale.dtype not in PLAIN:
        return False
    inputs, out = codes.shape[0] * WORD // words.bits, codes.shape[1]
    groups = -(-inputs // words.size) if words.size else 1
    if order is not None and (order.dtype not in (torch.int32, torch.int64) or order.shape != (inputs,)):
        return False
    return scale.shape == (groups, out) and zero.shape == (groups, -(-out * words.bits // WORD))


def _order(words: Words, inputs: int, sides: Mapping[str, StoredTensor]) -> Tensor | None:
    """The group of each input, where the file has others than the order of inputs gives.

    No group of `size` has more inputs than that, so that each has some.
    """
    if ORDER not in sides:
        return None
    stored, size = sides[ORDER], words.size or inputs
    group, where = stored.rows(slice(None)).long(), f"model {stored.file}: tensor {stored.name}"
    if int(group.min()) < 0 or int(group.max()) >= sides[SCALE].shape[0]:
        raise EngineError(f"{where} names groups that {sides[SCALE].name} does not have; fetch the model again")
    if torch.equal(group, torch.arange(inputs) // size):
        return None
    if int(group.bincount().max()) > size:
        reason = f"puts more than {size} inputs into a group, which readers take for several orders"
        raise CapabilityError(f"{where} {reason}; store the model without it if they are in order")
    if not words.ordered:
        reason = "has inputs in another order without desc_act in config.json, which readers follow or leave out"
        raise CapabilityError(f"{where} {reason}; write desc_act: true into its quantization_config if it is right")
    return group.clone()


def _check_zeros(words: Words, version: str, zero: StoredTensor, out: int) -> None:
    middle, ones = 2 ** (words.bits - 1), 2**words.bits - 1
    held, where = list(places(zero, words.bits, out)), f"model {zero.file}: zero points {zero.name}"
    if not words.symmetric:
        if version == V1 and any(bool((place == ones).any()) for place in held):
            what = f"{ones}, which readers of {V1} take for several numbers"
            raise CapabilityError(f"{where} hold {what}; store the model as {V2}")
        return
    other = V2 if version == V1 else V1
    own, foreign = (middle - (one == V1) for one in (version, other))
    if all(bool((place == own).all()) for place in held):
        return
    if all(bool((place == foreign).all()) for place in held):
        remedy = f"write checkpoint_format: {other} into its quantization_config if it is one"
        raise EngineError(f"{where} are those of a {other} file, and config.json says {version}; {remedy}")
    remedy = "write sym: false into its quantization_config if they are right"
    raise EngineError(f"{where} are not all {middle}, and config.json says sym: true; {remedy}")
