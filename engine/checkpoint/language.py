"""The language model of a checkpoint that holds more, and model types that transformers knows by another name.

Kimi K2 (`kimi_k2`) is a deepseek_v3; in Kimi K2.5 and later (`kimi_k25`) that is the `text_config`, its tensors are
named `language_model.*`, and the others are of a vision tower, which text never reaches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from ..packed.base import Packed
from ..precision import WeightFormat
from .base import Checkpoint, StoredTensor

LANGUAGE_TYPES = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}
_NESTED, _PREFIX, _HEAD = "text_config", "language_model.", "lm_head.weight"


def language_part(whole: Checkpoint) -> Checkpoint:
    """The checkpoint of the language model alone: `whole` itself where that is all it holds.

    Raises:
        EngineError: A config.json without the language model's configuration.
    """
    return LanguagePart(whole) if whole.config.get("model_type") in LANGUAGE_TYPES else whole


class LanguagePart:
    """See `language_part`.

    Attributes:
        path: Of the whole checkpoint.
        config: Of the language model. Whether its head is tied is what the files say: the settings of the two
            configurations contradict each other.
    """

    def __init__(self, whole: Checkpoint):
        self._whole, self.path = whole, whole.path
        model_type = whole.config["model_type"]
        nested = whole.config.get(_NESTED, whole.config if model_type == "kimi_k2" else None)
        if not isinstance(nested, dict):
            raise EngineError(f"model {self.path}: config.json of {model_type} has no {_NESTED}")
        self._prefix = _PREFIX if nested is not whole.config else ""
        self.config: dict[str, Any] = nested | {"model_type": LANGUAGE_TYPES[model_type]}
        if self._prefix:
            self.config["tie_word_embeddings"] = all(tensor.name != _HEAD for tensor in self.tensors())

    def hashes(self) -> dict[str, str]:
        """Of the whole checkpoint's files."""
        return self._whole.hashes()

    def tensors(self) -> Iterator[StoredTensor]:
        """The language model's, by its own names."""
        for stored in self._whole.tensors():
            if stored.name.startswith(self._prefix):
                name = stored.name.removeprefix(self._prefix)
                yield Renamed(stored.file, name, stored.shape, stored.dtype, stored)

    def tokenizer(self) -> Any:
        """Of the whole checkpoint."""
        return self._whole.tokenizer()

    def eos_ids(self) -> frozenset[int]:
        """Of the whole checkpoint and of the language model."""
        held = self.config.get("eos_token_id")
        ids = held if isinstance(held, list) else [] if held is None else [held]
        return self._whole.eos_ids() | frozenset(ids)


@dataclass(frozen=True)
class Renamed(StoredTensor):
    """A tensor by another name.

    Attributes:
        stored: As the file has it.
    """

    stored: StoredTensor

    def rows(self, some: slice) -> Tensor:
        """As of `stored`."""
        return self.stored.rows(some)

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        """As of `stored`."""
        return self.stored.read(dtype)

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        """As of `stored`."""
        return self.stored.packed(form, some, expert)

    def own_format(self) -> WeightFormat:
        """As of `stored`."""
        return self.stored.own_format()
