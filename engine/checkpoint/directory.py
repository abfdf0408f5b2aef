"""A model directory: config.json, safetensors, tokenizer. Every byte that answers depend on is hashed."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from evalsvc.errors import EngineError

MANIFEST = "evalsvc.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


class Checkpoint:
    """Files of one model.

    Attributes:
        path: The directory.
        files: Names of the safetensors files.
        config: config.json as read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise EngineError(f"model {self.path}: no such directory; give one with config.json and *.safetensors")
        self.config: dict[str, Any] = self._json("config.json")
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            self.files = sorted(set(self._json(index.name).get("weight_map", {}).values()))
        else:
            self.files = ["model.safetensors"]
        for name in self.files:
            if not (self.path / name).is_file():
                raise EngineError(f"model {self.path}: {name} is missing; fetch or convert the model again")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            held = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise EngineError(f"model {self.path}: {name} is missing; is this a model directory?") from None
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise EngineError(f"model {self.path}: {name} cannot be read ({error}); fetch the model again") from None
        if not isinstance(held, dict):
            raise EngineError(f"model {self.path}: {name} is not a JSON object; fetch the model again")
        return held

    def hashes(self) -> dict[str, str]:
        """sha256 of the weights (with config) and of the tokenizer (with chat template).

        Raises:
            EngineError: A file differs from the manifest that was written when the directory was converted.
        """
        manifest = self._json(MANIFEST).get("files") if (self.path / MANIFEST).is_file() else {}
        if manifest is None:
            raise EngineError(f"model {self.path}: {MANIFEST} lists no files; delete it or prepare the model again")
        digests = {name: _sha256(self.path / name) for name in self._hashed_files()}
        for name, expected in manifest.items():
            if digests.get(name) != expected:
                raise EngineError(
                    f"model {self.path}: {name} is not the file that was converted (sha256 differs or it is missing); "
                    "delete the directory and prepare the model again"
                )
        tokenizer = {name: digest for name, digest in digests.items() if self._is_tokenizer(name)}
        weights = {name: digest for name, digest in digests.items() if name not in tokenizer}
        return {"checkpoint": _combine(weights), "tokenizer": _combine(tokenizer)}

    def write_manifest(self, source: dict[str, str]) -> None:
        """Records what this directory was converted from and the sha256 of each file."""
        files = {name: _sha256(self.path / name) for name in self._hashed_files()}
        (self.path / MANIFEST).write_text(json.dumps({"source": source, "files": files}, indent=1))

    def _hashed_files(self) -> list[str]:
        names = ["config.json", "generation_config.json", "chat_template.jinja", *_TOKENIZER_FILES, *self.files]
        return [name for name in names if (self.path / name).is_file()]

    @staticmethod
    def _is_tokenizer(name: str) -> bool:
        return name in _TOKENIZER_FILES or name == "chat_template.jinja"

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor, one at a time, mapped from the file.

        Raises:
            EngineError: A truncated or foreign file, or a tensor that holds NaN or infinity, by name.
        """
        for file in self.files:
            try:
                with safe_open(self.path / file, framework="pt") as shard:
                    for name in shard.keys():  # noqa: SIM118 (not a dict)
                        tensor = shard.get_tensor(name)
                        if tensor.is_floating_point() and not tensor.isfinite().all():
                            raise EngineError(f"model {self.path / file}: tensor {name} holds NaN or infinity")
                        yield name, tensor
            except (SafetensorError, OSError) as error:
                raise EngineError(
                    f"model {self.path / file}: cannot be read as safetensors ({error}); it is truncated or altered, "
                    "fetch the model again"
                ) from None


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise EngineError(f"model {path}: cannot be read ({error.strerror})") from None


def _combine(digests: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
