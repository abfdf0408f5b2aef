"""Scales of keys and values that a compressed-tensors checkpoint holds: its `kv_cache_scheme` says what of.

    stored = round(x / scale),   read = code * scale

`layers.N.self_attn.k_scale` and `v_scale`, in older files `k_proj.output_scale` and `v_proj.output_scale`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError, EngineError

from ..precision import KVFormat
from .compressed_config import quantization_of
from .directory import ModelDirectory

_NAME = re.compile(r".*\blayers\.(\d+)\.self_attn\.(?:([kv])_scale|([kv])_proj\.output_scale)")
_KINDS = {"fp8": "float", "int8": "int"}
_PER = {"tensor": "tensor", "head": "attn_head"}


def stored_scales(path: Path, fmt: KVFormat) -> dict[str, list[Any]]:
    """A checkpoint's scales, by `k` and `v`: of each layer a number, or a list with one for each head.

    Args:
        path: A model directory.
        fmt: What they are to be used for.

    Raises:
        ConfigError: The checkpoint has none, or has them for another format, or is none.
    """
    try:
        return _stored(ModelDirectory(path), fmt)
    except EngineError as error:  # its words are of the model that is served
        raise ConfigError(f"scales {path}: {str(error).removeprefix(f'model {path}: ')}") from None


def _stored(directory: ModelDirectory, fmt: KVFormat) -> dict[str, list[Any]]:
    path = directory.path
    asked = quantization_of(directory.config)
    scheme = asked.get("kv_cache_scheme") if isinstance(asked, Mapping) else None
    if not isinstance(scheme, Mapping):
        raise ConfigError(f"scales {path}: the quantization_config of config.json has no kv_cache_scheme")
    _check(scheme, path, fmt)
    found: dict[str, dict[int, Any]] = {"k": {}, "v": {}}
    for stored in directory.stored():
        named = _NAME.fullmatch(stored.name)
        if named is not None:
            numbers = stored.read().flatten().tolist()
            alone = fmt.per == "tensor" and len(numbers) == 1
            by_layer, layer = found[named[2] or named[3]], int(named[1])
            if layer in by_layer:
                reason = f"its files hold several scales of layer {layer}, one of them {stored.name}"
                raise ConfigError(f"scales {path}: {reason}; give those of the language model in a JSON file")
            by_layer[layer] = numbers[0] if alone else numbers
    for part, by_layer in found.items():
        if not by_layer or sorted(by_layer) != list(range(len(by_layer))):
            reason = f"its files do not hold the {part}_scale of every layer"
            raise ConfigError(f"scales {path}: {reason}; fetch the model again")
    return {part: [by_layer[layer] for layer in sorted(by_layer)] for part, by_layer in found.items()}


def _check(scheme: Mapping[str, Any], path: Path, fmt: KVFormat) -> None:
    kind, bits, per = (str(scheme.get(key)) for key in ("type", "num_bits", "strategy"))
    if scheme.get("dynamic") or scheme.get("symmetric", True) is not True:
        what = "dynamic" if scheme.get("dynamic") else "not symmetric"
        raise ConfigError(f"scales {path}: its kv_cache_scheme is {what}, so that it has none to give")
    if (kind, bits, per) != (_KINDS[fmt.kind], "8", _PER[fmt.per]):
        plans = {
            (k, "8", p): f"; write kv={own}:{whose}:given" for own, k in _KINDS.items() for whose, p in _PER.items()
        }
        found = f"its kv_cache_scheme is {kind} of {bits} bits, one scale a {per}, and not kv={fmt}"
        raise ConfigError(f"scales {path}: {found}{plans.get((kind, bits, per), '')}")
