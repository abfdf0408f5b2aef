"""A GGUF file: read as it is, or decoded once into a model directory.

Blocks are decoded by the `gguf` package, to fp32, in which their values are exact. Its reader is not used: it takes
seconds for a vocabulary.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import save_file
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError

from .base import StoredTensor
from .directory import ModelDirectory, file_sha256
from .gguf_architectures import Place, config_of, place_of
from .gguf_header import GgufTensor, read_header
from .gguf_tokenizer import build_tokenizer


class GgufFile:
    """One model in one GGUF file.

    Attributes:
        path: The file.
        header: Its fields and tensor table.
        config: transformers' configuration of the model in it.
    """

    def __init__(self, path: str | Path):
        """Reads the header only.

        Raises:
            CapabilityError: An architecture, block type or tensor that is not served, by name.
            EngineError: A file that is truncated or foreign.
        """
        self.path = Path(path).expanduser()
        self.header = read_header(self.path)
        try:
            self.config: dict[str, Any] = config_of(self.header)
        except (ValueError, TypeError) as error:  # transformers validates fields with errors of its own
            reason = " ".join(str(error).split())
            raise EngineError(f"model {self.path}: its fields make no configuration ({reason})") from None
        self._check_table()

    def _check_table(self) -> None:
        end = self.path.stat().st_size
        for tensor in self.header.tensors:
            place_of(tensor.name, self.header, self.config)
            if tensor.start + _byte_count(tensor, self.path) > end:
                raise EngineError(f"model {self.path}: tensor {tensor.name} is cut off; the file is truncated")

    def hashes(self) -> dict[str, str]:
        """sha256 of the file, and of the fields in it that make the tokenizer."""
        return {"checkpoint": file_sha256(self.path), "tokenizer": self.header.tokenizer_hash}

    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor once, in fp32, named and ordered as transformers has it."""
        data = np.asarray(np.memmap(self.path, mode="r", dtype=np.uint8))  # a plain array: views of it cost less
        for tensor in self.header.tensors:
            place = place_of(tensor.name, self.header, self.config)
            raw = data[tensor.start : tensor.start + _byte_count(tensor, self.path)]
            kind = GGMLQuantizationType(tensor.kind)
            yield _Blocks(self.path, place.name, tensor.shape, torch.float32, tensor.name, raw, kind, place)

    def tokenizer(self) -> Any:
        """As `build_tokenizer`."""
        return build_tokenizer(self.header)

    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence or a turn."""
        ids = self.header.eos_token_id()
        return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


@dataclass(frozen=True)
class _Blocks(StoredTensor):
    theirs: str
    raw: np.ndarray
    kind: GGMLQuantizationType
    place: Place

    def rows(self, some: slice) -> Tensor:
        matrix = self.raw.reshape(self.shape[0] if len(self.shape) > 1 else 1, -1)
        if len(self.shape) > 1:
            matrix = matrix[some] if self.place.order is None else matrix[self.place.order[some]]
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused by name when it is read
                values = np.asarray(dequantize(matrix, self.kind))
        except (ValueError, NotImplementedError) as error:
            raise CapabilityError(f"model {self.file}: tensor {self.theirs} cannot be decoded ({error})") from None
        decoded = torch.from_numpy(values if values.flags.writeable else values.copy()).view(-1, *self.shape[1:])
        if self.place.offset:
            decoded += self.place.offset
        return decoded if len(self.shape) > 1 else decoded[some]


def _byte_count(tensor: GgufTensor, path: Path) -> int:
    try:
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    except (ValueError, KeyError):
        raise CapabilityError(
            f"model {path}: tensor {tensor.name} has blocks of type {tensor.kind}, which is not served"
        ) from None
    if not tensor.shape or tensor.shape[-1] % values:
        raise EngineError(f"model {path}: tensor {tensor.name} of shape {tensor.shape} is no whole number of blocks")
    return torch.Size(tensor.shape).numel() // values * size


def convert(source: Path, target: Path, source_sha256: str) -> None:
    """Writes config, bf16 safetensors, tokenizer and a manifest; the directory appears whole or not at all.

    Args:
        source: The GGUF file.
        target: Directory to make; must not exist.
        source_sha256: Of `source`, for the manifest.

    Raises:
        CapabilityError: As in `GgufFile`.
        EngineError: A file that cannot be read, or a directory that cannot be written.
    """
    from transformers import AutoConfig

    file = GgufFile(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tensors = {stored.name: stored.read(torch.bfloat16) for stored in file.tensors()}
        save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
        AutoConfig.for_model(**file.config).save_pretrained(work)
        file.tokenizer().save_pretrained(work)
        ModelDirectory(work).write_manifest({"file": source.name, "sha256": source_sha256})
        work.chmod(0o755)
        work.rename(target)
    except OSError as error:
        raise EngineError(f"model {target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
