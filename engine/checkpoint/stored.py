"""Which ways of storing quantized weights are read, and the tensors that codes and scales stand for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from evalsvc.errors import CapabilityError, EngineError

from . import awq, awq_config, compressed, fp8_blocks, gptq, gptq_config, mxfp4
from .base import StoredTensor
from .compressed_config import METHOD, quantization_of, read_compressed
from .shards import name_of, refusal

Join = Callable[[str, StoredTensor, Mapping[str, StoredTensor]], StoredTensor]
PLAIN = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Scheme:
    """One way of storing.

    Attributes:
        codes: How the names of codes end, any of these.
        sides: How the names of what goes with them end: scales and the like.
        whole: How the name of the tensor that they stand for ends.
        join: That tensor, of its name, the codes, and the rest by ending.
        left_out: How the names of tensors end that are not read.
    """

    codes: tuple[str, ...]
    sides: tuple[str, ...]
    whole: str
    join: Join
    left_out: tuple[str, ...] = ()

    def stem(self, name: str) -> str | None:
        """What a name of codes begins with; None: it is none."""
        return next((name.removesuffix(end) for end in self.codes if name.endswith(end)), None)


MXFP4 = Scheme((mxfp4.CODES,), (mxfp4.SCALES,), "", mxfp4.join)
FP8 = Scheme(("",), (fp8_blocks.SCALES,), "", fp8_blocks.join)


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """How the weights are stored that a config.json describes; None: as plain numbers.

    Raises:
        CapabilityError: In a way that is not read.
    """
    asked = quantization_of(config)
    if asked is None:
        return None
    if not isinstance(asked, Mapping):
        raise CapabilityError(f"its quantization_config is {asked!r}; read is a table of settings")
    method = asked.get("quant_method")
    if method == "mxfp4":
        return MXFP4
    if method == "fp8":
        fp8_blocks.check(asked)
        return FP8
    if method == METHOD:
        read = read_compressed(asked)
        left_out = (*compressed.LEFT_OUT, *(compressed.KEYS_AND_VALUES if read.keys_and_values else ()))
        join = partial(compressed.join, read)
        return Scheme(compressed.CODES, compressed.SIDES, compressed.WHOLE, join, left_out)
    if method == gptq_config.METHOD:
        return Scheme(gptq.CODES, gptq.SIDES, gptq.WHOLE, partial(gptq.join, gptq_config.read_gptq(asked)))
    if method == awq_config.METHOD:
        return Scheme(awq.CODES, awq.SIDES, awq.WHOLE, partial(awq.join, awq_config.read_awq(asked)))
    raise CapabilityError(
        f"the checkpoint is already quantized in a way that is not read (quant_method {method!r}); "
        f"read: fp8 in blocks of 128, mxfp4, {METHOD}, gptq, awq; give the bf16 or fp32 original"
    )


def decoded(tensors: Callable[[], Iterator[StoredTensor]], scheme: Scheme | None) -> Iterator[StoredTensor]:
    """Every tensor of a model once, in the order of the files.

    Args:
        tensors: What the files hold, from the first one on.
        scheme: How the quantized ones are stored.

    Raises:
        CapabilityError: Numbers of a type that is not served.
        EngineError: Codes and scales that do not belong together.
    """
    sides = {t.name: t for t in tensors() if t.name.endswith(scheme.sides)} if scheme else {}
    left = set(sides)
    for stored in tensors():
        if stored.name in sides or (scheme and stored.name.endswith(scheme.left_out)):
            continue
        stem = scheme.stem(stored.name) if scheme else None
        found = {end: sides[stem + end] for end in scheme.sides if stem + end in sides} if scheme and stem else {}
        if scheme and stem and found:
            left -= {stem + end for end in found}
            yield scheme.join(stem + scheme.whole, stored, found)
        elif stored.dtype in PLAIN:
            yield stored
        else:
            raise CapabilityError(_refusal(stored, scheme))
    for name in sorted(left):
        raise EngineError(f"model {sides[name].file}: tensor {name} has no codes beside it; fetch the model again")


def _refusal(stored: StoredTensor, scheme: Scheme | None) -> str:
    kind = name_of(stored.dtype)
    if scheme is None:
        return refusal(stored.file, stored.name, kind)
    return f"model {stored.file}: tensor {stored.name} of type {kind} has no {scheme.sides[0]} beside it"
