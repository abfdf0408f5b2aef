"""A model directory: config.json, safetensors, tokenizer. Every byte that answers depend on is hashed."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evalsvc.errors import CapabilityError, EngineError

from .base import StoredTensor
from .compressed_config import quantization_of
from .gptq_config import BESIDE, weights_beside, with_beside
from .shards import INDEX, stored_tensors
from .stored import decoded, scheme_of

MANIFEST = "evalsvc.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


class ModelDirectory:
    """Files of one model in one directory.

    Attributes:
        path: The directory.
        files: Names of the safetensors files.
        config: config.json as read; with the settings of GPTQ where an older folder has them in a file of their own.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise EngineError(f"model {self.path}: no such directory; give one with config.json and *.safetensors")
        self.config: dict[str, Any] = self._json("config.json")
        self._placed = self._read_index()
        self.files = sorted(set(self._placed.values())) or ["model.safetensors"]
        self._beside = [BESIDE] if quantization_of(self.config) is None and (self.path / BESIDE).is_file() else []
        if self._beside:
            settings = self._json(BESIDE)
            self.config = with_beside(self.config, settings)
            if not self._placed:
                names = weights_beside(settings)
                self.files = [next((name for name in names if (self.path / name).is_file()), names[-1])]
        for name in self.files:
            if not (self.path / name).is_file():
                raise EngineError(f"model {self.path}: {name} is missing; fetch or convert the model again")

    def _read_index(self) -> dict[str, str]:
        if not (self.path / INDEX).is_file():
            return {}
        placed = self._json(INDEX).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise EngineError(f"model {self.path}: {INDEX} places no tensors; fetch the model again")
        for name, file in placed.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise EngineError(
                    f"model {self.path}: {INDEX} places tensor {name} in {file!r}, which is no file of it"
                )
        return placed

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
        digests = {name: file_sha256(self.path / name) for name in self._hashed_files()}
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
        files = {name: file_sha256(self.path / name) for name in self._hashed_files()}
        (self.path / MANIFEST).write_text(json.dumps({"source": source, "files": files}, indent=1))

    def _hashed_files(self) -> list[str]:
        names = ["config.json", "generation_config.json", "chat_template.jinja", *_TOKENIZER_FILES]
        names += [*self._beside, *self.files]
        return [name for name in names if (self.path / name).is_file()]

    @staticmethod
    def _is_tokenizer(name: str) -> bool:
        return name in _TOKENIZER_FILES or name == "chat_template.jinja"

    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor once, as `stored_tensors` and `decoded` give them and raise.

        Raises:
            CapabilityError: Weights stored in a way that is not read.
        """
        try:
            scheme = scheme_of(self.config)
        except CapabilityError as error:
            raise CapabilityError(f"model {self.path}: {error}") from None
        return decoded(self.stored, scheme)

    def stored(self) -> Iterator[StoredTensor]:
        """Every tensor as the files hold it, codes and scales apart, as `stored_tensors` gives them and raises."""
        return stored_tensors(self.path, self.files, self._placed)

    def tokenizer(self) -> Any:
        """The tokenizer as transformers reads it; no code of the directory is run.

        Raises:
            EngineError: It cannot be read.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)
        except Exception as error:  # tokenizers raises bare Exception for a file of the wrong form
            reason = str(error).partition("\n")[0]
            raise EngineError(f"model {self.path}: the tokenizer cannot be loaded ({reason}); fetch it again") from None

    def eos_ids(self) -> frozenset[int]:
        """Ids that config.json and generation_config.json call end of sequence."""
        name = "generation_config.json"
        generation = self._json(name) if (self.path / name).is_file() else {}
        ids = [self.config.get("eos_token_id"), generation.get("eos_token_id")]
        flat = [i for entry in ids for i in (entry if isinstance(entry, list) else [entry])]
        return frozenset(i for i in flat if i is not None)


def file_sha256(path: Path) -> str:
    """sha256 of a file.

    Raises:
        EngineError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise EngineError(f"model {path}: cannot be read ({error.strerror})") from None


def _combine(digests: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
