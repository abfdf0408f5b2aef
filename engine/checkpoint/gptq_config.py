"""What a `quantization_config` of GPTQ says of each matrix. No torch: capacity reads it, too.

`dynamic` has other settings for modules whose names a pattern matches from their start, the first one that does; under
`-:` they are stored as plain numbers (GPTQModel's `quantization/config.py`). `modules_in_block_to_quantize` lists what
is quantized in each layer, and `lm_head` says whether the head is. Older folders have the same in a file of its own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from evalsvc.errors import CapabilityError

from .compressed_config import KEYS
from .words_config import Words

METHOD = "gptq"
V1, V2 = "gptq", "gptq_v2"
BESIDE = "quantize_config.json"
HEAD = "lm_head"
_BITS = (4, 8)
_SETTINGS = {"bits": 0, "group_size": 128, "sym": True, "desc_act": False}
_NOT_READ = ("is_marlin_format", "rotation", "adapter")


@dataclass(frozen=True)
class GptqConfig:
    """All of it.

    Attributes:
        words: How a matrix is stored.
        overrides: Patterns, and how matrices are stored that one matches; None: as plain numbers.
        listed: How the names of modules in layers end that are quantized; empty: all are.
        head: Whether the head is.
        version: V1, whose files hold zero points less one, or V2.
    """

    words: Words
    overrides: tuple[tuple[str, Words | None], ...]
    listed: tuple[str, ...]
    head: bool
    version: str

    def words_of(self, module: str) -> Words | None:
        """How a matrix is stored, by its module's name; None: as plain numbers."""
        inside = self.head if module == HEAD else not self.listed or module.endswith(self.listed)
        if not inside:
            return None
        return next((words for pattern, words in self.overrides if re.match(pattern, module)), self.words)


def with_beside(config: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json that says nothing of quantization stands for beside `BESIDE`, of which these are the keys."""
    return {**config, KEYS[0]: {"quant_method": METHOD, **beside}}


def weights_beside(beside: Mapping[str, Any]) -> tuple[str, ...]:
    """What such a folder's one file of weights may be called (AutoGPTQ's `save_quantized`), the likeliest first."""
    named = str(beside.get("model_file_base_name") or "").rpartition("/")[2]
    own = named or f"gptq_model-{beside.get('bits')}bit-{beside.get('group_size')}g"
    return (f"{own}.safetensors", "model.safetensors")


def read_gptq(asked: Mapping[str, Any]) -> GptqConfig:
    """Reads a quantization_config.

    Raises:
        CapabilityError: What it asks and is not read, by name.
    """
    version = asked.get("checkpoint_format") or asked.get("format") or V1
    if version not in (V1, V2):
        _refuse(f"has checkpoint_format {version!r}; read are {V1} and {V2}")
    for key in _NOT_READ:
        if asked.get(key):
            _refuse(f"asks {key}, which is not read")
    if asked.get("pack_dtype") not in (None, "int32"):
        _refuse(f"has pack_dtype {asked['pack_dtype']!r}; read is int32")
    settings = {key: asked.get(key, default) for key, default in _SETTINGS.items()}
    return GptqConfig(
        words=_words(settings, ""),
        overrides=tuple(_overrides(asked.get("dynamic") or {}, settings)),
        listed=tuple(f".{end}" for end in _flat(asked.get("modules_in_block_to_quantize") or [])),
        head=asked.get(HEAD) is True,
        version=version,
    )


def _words(settings: Mapping[str, Any], where: str) -> Words:
    bits, size, symmetric, ordered = (settings[key] for key in _SETTINGS)
    if bits not in _BITS or not isinstance(size, int) or (size < 1 and size != -1) or not isinstance(symmetric, bool):
        found = f"bits {bits!r}, group_size {size!r} and sym {symmetric!r}"
        _refuse(f"has {found}{where}; read are 4 and 8 bits in groups of any size, or of all inputs (-1)")
    return Words(METHOD, bits, max(0, size), symmetric, ordered is True and size != -1)


def _overrides(dynamic: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, Words | None]]:
    if not isinstance(dynamic, Mapping):
        _refuse("has dynamic settings that are no table of patterns")
    for key, held in dynamic.items():
        pattern = key.removeprefix("-:").removeprefix("+:")
        try:
            re.compile(pattern)
        except re.error as error:
            _refuse(f"has a pattern {key!r} in dynamic that is none ({error})")
        if key.startswith("-:"):
            yield pattern, None
        elif isinstance(held, Mapping):
            yield pattern, _words({name: held.get(name, was) for name, was in settings.items()}, f" for {key!r}")
        else:
            _refuse(f"has dynamic settings for {key!r} that are none ({held!r})")


def _flat(listed: Any) -> Iterator[str]:
    for entry in listed if isinstance(listed, list) else [None]:
        if isinstance(entry, list):
            yield from _flat(entry)
        elif isinstance(entry, str):
            yield entry
        else:
            _refuse("has modules_in_block_to_quantize that is no list of names")


def _refuse(what: str) -> NoReturn:
    raise CapabilityError(f"it is stored by {METHOD}, and its quantization_config {what}")
