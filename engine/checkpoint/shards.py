"""Tensors in safetensors files, one or several, held against the index that places them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError

from .base import StoredTensor

INDEX = "model.safetensors.index.json"
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}


def stored_tensors(folder: Path, files: Sequence[str], placed: Mapping[str, str]) -> Iterator[StoredTensor]:
    """Every tensor once. All files' headers are checked before the first one comes.

    Args:
        folder: Where the files are.
        files: Their names.
        placed: Name of each tensor to its file, as the index has it; empty without one.

    Raises:
        EngineError: A truncated or foreign file, or tensors that are not where the index says.
        CapabilityError: A tensor of a type that is not served.
    """
    holder: dict[str, str] = {}
    for file in files:
        with _open(folder / file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                if name in holder:
                    raise EngineError(
                        f"model {folder}: tensor {name} is in {holder[name]} and in {file}; fetch the model again"
                    )
                holder[name] = file
                _stored(shard, folder / file, name)
    for name, file in placed.items():
        if holder.get(name) != file:
            raise EngineError(
                f"model {folder / file}: tensor {name} is not in it, though {INDEX} places it there; "
                "fetch the model again"
            )
    for file in files:
        with _open(folder / file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                yield _stored(shard, folder / file, name)


@dataclass(frozen=True)
class _Slice(StoredTensor):
    part: Any

    def rows(self, some: slice) -> Tensor:
        with torch.device("cpu"):  # else the library brings the whole tensor to the device that is set, for each part
            part = self.part[some] if self.shape else self.part[...]
        return part.to(torch.get_default_device())


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise EngineError(
            f"model {path}: cannot be read as safetensors ({error}); it is truncated or altered, fetch the model again"
        ) from None


def _stored(shard: Any, path: Path, name: str) -> StoredTensor:
    part = shard.get_slice(name)
    dtype = part.get_dtype()
    if dtype not in _DTYPES:
        raise CapabilityError(refusal(path, name, dtype))
    return _Slice(path, name, tuple(part.get_shape()), _DTYPES[dtype], part)


def refusal(path: Path, name: str, dtype: str) -> str:
    """That numbers of a type are not served."""
    return (
        f"model {path}: tensor {name} is of type {dtype}, which is not served; served: F32, F16, BF16; "
        "give the checkpoint as it was before quantization"
    )


def name_of(dtype: torch.dtype) -> str:
    """A type as safetensors spells it."""
    return next(name for name, held in _DTYPES.items() if held == dtype)
