"""What a `quantization_config` of AWQ says of each matrix. No torch: capacity reads it, too.

`modules_to_not_convert` names modules that are stored as plain numbers, as transformers understands it: a name, a
pattern that matches up to a dot, or the end of a name. AutoAWQ itself takes it for any part of a name, so that only the
files say which were left; the head never is quantized.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from evalsvc.errors import CapabilityError

from .words_config import Words

METHOD = "awq"
HEAD = "lm_head"
_GEMM = "gemm"
_BITS = 4
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"


@dataclass(frozen=True)
class AwqConfig:
    """All of it.

    Attributes:
        words: How a matrix is stored.
        left: What `modules_to_not_convert` names.
    """

    words: Words
    left: tuple[str, ...]

    def words_of(self, module: str) -> Words | None:
        """How a matrix is stored, by its module's name; None: as plain numbers."""
        if module == HEAD or module.endswith(self.left or ("\0",)):
            return None
        return None if any(re.match(f"(?:{key}){_BOUNDARY}", module) for key in self.left) else self.words


def read_awq(asked: Mapping[str, Any]) -> AwqConfig:
    """Reads a quantization_config.

    Raises:
        CapabilityError: What it asks and is not read, by name.
    """
    for key in ("version", "format", "checkpoint_format"):
        layout = str(asked.get(key) or _GEMM).lower()
        if layout != _GEMM:
            _refuse(f"has {key} {layout!r}; read is {_GEMM}")
    if asked.get("backend") == "llm-awq":
        _refuse("has backend 'llm-awq', whose layout is not read")
    bits, size = asked.get("bits", asked.get("w_bit", _BITS)), asked.get("group_size", asked.get("q_group_size", 128))
    zeros = asked.get("zero_point", True)
    if bits != _BITS or not isinstance(size, int) or (size < 1 and size != -1) or not isinstance(zeros, bool):
        found = f"bits {bits!r}, group_size {size!r} and zero_point {zeros!r}"
        _refuse(f"has {found}; read are 4 bits in groups of any size, or of all inputs (-1)")
    return AwqConfig(Words(METHOD, bits, max(0, size), not zeros), tuple(_left(asked.get("modules_to_not_convert"))))


def _left(listed: Any) -> list[str]:
    if not isinstance(listed or [], list) or not all(isinstance(key, str) for key in listed or []):
        _refuse("has modules_to_not_convert that are no list of names")
    for key in listed or []:
        try:
            re.compile(key)
        except re.error as error:
            _refuse(f"has a pattern {key!r} in modules_to_not_convert that is none ({error})")
    return listed or []


def _refuse(what: str) -> NoReturn:
    raise CapabilityError(f"it is stored by {METHOD}, and its quantization_config {what}")
