"""What a GGUF file says before its tensors: fields, and where each tensor lies. The tensors stay unread.

magic "GGUF", version, tensor count, field count | fields | tensor table | padding | tensors
string: length (u64), UTF-8.   field: key, type, value.   array: element type, count (u64), elements.
tensor: name, count of dimensions, dimensions (fastest first), block type, offset from the start of the tensors
"""

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsvc.errors import CapabilityError, EngineError

_U32, _U64, _TABLE_END = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ")
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies.

    Attributes:
        name: As the file spells it.
        shape: As torch counts, outermost first.
        kind: Number of its block type.
        start: Offset from the start of the file, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufHeader:
    """Fields and tensor table of one file.

    Attributes:
        path: The file.
        fields: Key to value; an array is a list.
        tensors: In the file's order.
        tokenizer_hash: sha256 of the bytes of all fields that begin with `tokenizer.`.
    """

    path: Path
    fields: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    tokenizer_hash: str

    @property
    def architecture(self) -> str:
        """What kind of model it is."""
        return str(self.fields.get("general.architecture"))

    def number(self, key: str, default: float | None = None) -> float:
        """A field of the architecture that is a number.

        Raises:
            EngineError: It is missing and has no default, or it is something else.
        """
        full = f"{self.architecture}.{key}"
        value = self.fields.get(full, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            shown = "missing" if value is None else f"a {type(value).__name__}, not a number"
            raise EngineError(f"model {self.path}: field {full} is {shown}; fetch or convert it again")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """As `number`, for a whole number above zero."""
        value = self.number(key, default)
        if value < 1 or value != int(value):
            raise EngineError(f"model {self.path}: field {self.architecture}.{key} is {value}, not a count above zero")
        return int(value)

    def token_id(self, role: str) -> int | None:
        """The id of the token in a role (`bos`, `eos`, `eot`, `unknown`, `padding`); None when the file has none."""
        return self.fields.get(f"tokenizer.ggml.{role}_token_id")

    def eos_token_id(self) -> int | list[int] | None:
        """Ids that end an answer: of a sequence, and of a turn."""
        ids = list(dict.fromkeys(i for i in (self.token_id("eos"), self.token_id("eot")) if i is not None))
        return ids if len(ids) > 1 else ids[0] if ids else None


def read_header(path: Path) -> GgufHeader:
    """Reads a file's fields and tensor table.

    Raises:
        EngineError: Not a GGUF file, or one that ends too early.
        CapabilityError: A version, byte order or split that is not served.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return _Reader(path, held).header()
    except struct.error:
        raise _cut_off(path) from None
    except (OSError, ValueError) as error:  # a file of zero bytes is a ValueError
        raise EngineError(f"model {path}: cannot be read as GGUF ({error}); fetch it again") from None


class _Reader:
    def __init__(self, path: Path, held: mmap.mmap):
        self.path, self.held, self.at = path, held, 0

    def header(self) -> GgufHeader:
        if self.held[:4] != b"GGUF":
            raise EngineError(f"model {self.path}: does not begin with GGUF's mark; is it another kind of file?")
        self.at = 4
        version = self._number(_U32)
        if version not in _VERSIONS:
            shown = "of the other byte order" if version & 0xFFFF == 0 else f"of version {version}"
            raise CapabilityError(f"model {self.path}: GGUF {shown} is not served; served: version 2 and 3")
        n_tensors, n_fields = self._number(_U64), self._number(_U64)
        fields: dict[str, Any] = {}
        digest = hashlib.sha256()
        for _ in range(n_fields):
            start = self.at
            key = self._string()
            fields[key] = self._value(self._number(_U32), key)
            if key.startswith("tokenizer."):
                digest.update(self.held[start : self.at])
        if fields.get("split.count", 1) != 1:
            raise CapabilityError(f"model {self.path}: GGUF split into several files is not served; merge them first")
        return GgufHeader(self.path, fields, self._table(n_tensors, fields), digest.hexdigest())

    def _table(self, count: int, fields: dict[str, Any]) -> tuple[GgufTensor, ...]:
        found: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._string()
            if name in found:
                raise EngineError(f"model {self.path}: tensor {name} is listed twice; fetch it again")
            shape = tuple(reversed(self._numbers("Q", self._number(_U32))))
            kind, offset = _TABLE_END.unpack(self._bytes(_TABLE_END.size))
            found[name] = shape, kind, offset
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise EngineError(f"model {self.path}: alignment {alignment!r} is none; fetch it again")
        data = -(-self.at // alignment) * alignment
        return tuple(GgufTensor(name, shape, kind, data + at) for name, (shape, kind, at) in found.items())

    def _value(self, kind: int, key: str) -> Any:
        if kind in _NUMBERS:
            return self._numbers(_NUMBERS[kind], 1)[0]
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, count = self._number(_U32), self._number(_U64)
            if element in _NUMBERS:
                return list(self._numbers(_NUMBERS[element], count))
            if element == _STRING:
                return self._strings(count)
        raise EngineError(f"model {self.path}: field {key!r} has a type that GGUF does not define; fetch it again")

    def _numbers(self, code: str, count: int) -> tuple:
        size = struct.calcsize(f"<{code}") * count
        return struct.unpack(f"<{count}{code}", self._bytes(size))

    def _number(self, layout: struct.Struct) -> int:
        return layout.unpack(self._bytes(layout.size))[0]

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """A vocabulary has 10^5 of these, so this is one loop without calls of our own."""
        held, at, end, size = self.held, self.at, len(self.held), _U64.unpack_from
        found: list[str] = []
        for _ in range(count):
            (length,) = size(held, at)
            at += 8 + length
            if at > end:
                raise _cut_off(self.path)
            found.append(held[at - length : at].decode())
        self.at = at
        return found

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.held):
            raise _cut_off(self.path)
        return self.held[self.at - size : self.at]


def _cut_off(path: Path) -> EngineError:
    return EngineError(f"model {path}: ends inside its header; it is truncated, fetch it again")
