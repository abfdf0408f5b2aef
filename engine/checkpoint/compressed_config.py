"""What a `quantization_config` of compressed-tensors says of each matrix. No torch: capacity reads it, too.

Modules that a group's targets name, and `ignore` does not, are stored in the group's format. A target is a module's
name, `re:` and a pattern that matches from its start, or the class `Linear`; names go before patterns, patterns before
the class, as in compressed-tensors' `quantization/lifecycle/apply.py` and `utils/match.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from evalsvc.errors import CapabilityError

from ..precision import FP8_BLOCK, INT4_GROUPS, NVFP4_BLOCK, WeightFormat

KEYS = ("quantization_config", "compression_config")
METHOD = "compressed-tensors"
PACKED, NVFP4, MXFP4 = "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"
MXFP4_BLOCK = 32
INTS, FLOATS, NAIVE = "int-quantized", "float-quantized", "naive-quantized"
FORMATS = (PACKED, INTS, FLOATS, NAIVE, NVFP4, MXFP4)
LINEAR = "Linear"
_PATTERN = "re:"
_SAME_ORDER = (None, False, "weight", "static")  # of inputs in the file
_OWN_ORDER = (True, "group", "dynamic")  # `weight_g_idx` has the group of each input
_WRITTEN = (None, "compressed", "frozen")  # states in which numbers are final


def quantization_of(config: Mapping[str, Any]) -> Any:
    """What a config.json says of how weights are stored, at its top or for the language model in it; None: nothing."""
    text = config.get("text_config")
    places = (config, text) if isinstance(text, Mapping) else (config,)
    return next((place[key] for place in places for key in KEYS if place.get(key)), None)


@dataclass(frozen=True)
class Group:
    """How the matrices that some targets name are stored.

    Attributes:
        name: In `config_groups`.
        targets: As there.
        format: One of FORMATS.
        kind: `int` or `float`.
        bits: Of a code.
        strategy: Whose numbers share a scale: `tensor`, `channel`, `group`, `block` or, under a global, `tensor_group`.
        size: Inputs of a group; 0 without groups.
        symmetric: Whether there are no zero points.
        ordered: Whether inputs may be in another order than that of their groups.
        inputs: How activations are quantized: empty, `token` or `group` and its size as they come in the same type,
            or in words.
    """

    name: str
    targets: tuple[str, ...]
    format: str
    kind: str
    bits: int
    strategy: str
    size: int
    symmetric: bool
    ordered: bool = False
    inputs: str = ""

    @property
    def held(self) -> str:
        """The plan's format whose codes and scales these are, spelled as `WeightFormat.stored`; empty: none's."""
        if self.ordered:
            return ""
        if (self.kind, self.bits, self.strategy) == ("int", 4, "group") and self.format == PACKED:
            zeros = "sym" if self.symmetric else "asym"
            return f"int4:g{self.size}:{zeros}" if self.size in INT4_GROUPS else ""
        if not self.symmetric:
            return ""
        if self.format == NVFP4:
            return "nvfp4"
        kind = "fp8" if self.kind == "float" else "int8"
        if self.strategy == "block":
            return f"{kind}:block{FP8_BLOCK}"
        whole = self.format != PACKED or self.bits == 8
        return f"{kind}:channel" if whole and self.strategy in ("channel", "tensor") else ""

    @property
    def own_format(self) -> WeightFormat | None:
        """The plan's format that `held` is with these activations; None: no plan's."""
        kind, _, per = self.held.partition(":")
        if kind == "int4" and not self.inputs:
            return WeightFormat("int4", group=self.size, symmetric=self.symmetric)
        if kind == "nvfp4" and not self.inputs:
            return WeightFormat("nvfp4", "w4a16", NVFP4_BLOCK)
        block = FP8_BLOCK if per.startswith("block") else 0
        if kind not in ("fp8", "int8") or self.inputs not in ("", f"group{FP8_BLOCK}" if block else "token"):
            return None
        return WeightFormat(kind, "w8a8" if self.inputs else "w8a16", block)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        per = f"{self.strategy} of {self.size}" if self.size else self.strategy
        order = ", inputs in another order" if self.ordered else ""
        return f"{self.format} ({self.bits} bits, one scale a {per}{'' if self.symmetric else ', zero points'}{order})"


@dataclass(frozen=True)
class CompressedConfig:
    """All groups.

    Attributes:
        groups: In the order of the file.
        ignored: Targets that are not stored in any.
        keys_and_values: Whether the files hold scales of keys and values.
    """

    groups: tuple[Group, ...]
    ignored: tuple[str, ...]
    keys_and_values: bool = False

    def group_of(self, module: str) -> Group | None:
        """The group of a matrix by its module's name; None: it is stored as plain numbers."""
        if any(_names(target, module) for target in self.ignored) or LINEAR in self.ignored:
            return None
        by_target = {target: group for group in self.groups for target in group.targets}
        order = sorted(by_target, key=lambda target: (target.startswith(_PATTERN), target))
        found = next((target for target in order if _names(target, module)), LINEAR)
        return by_target.get(found)


def read_compressed(asked: Mapping[str, Any]) -> CompressedConfig:
    """Reads a quantization_config.

    Raises:
        CapabilityError: What it asks and is not read, by name.
    """
    for key in ("sparsity_config", "transform_config", "moe_sparsity_config"):
        held = asked.get(key)
        if held and not (isinstance(held, Mapping) and held.get("format") == "dense"):
            _refuse(f"asks a {key}, which is not read")
    keys_and_values = bool(asked.get("kv_cache_scheme"))
    if asked.get("quantization_status") not in _WRITTEN:
        _refuse(f"has quantization_status {asked['quantization_status']!r}; read is 'compressed'")
    groups = asked.get("config_groups") or {}
    if not isinstance(groups, Mapping) or not (groups or keys_and_values):
        _refuse("has no config_groups")
    read = tuple(
        _group(str(name), held, asked.get("format"))
        for name, held in groups.items()
        if not isinstance(held, Mapping) or held.get("weights") is not None
    )
    return CompressedConfig(read, _targets("ignore", asked.get("ignore") or []), keys_and_values)


def _group(name: str, held: Any, whole: Any) -> Group:
    weights = held.get("weights") if isinstance(held, Mapping) else None
    if not isinstance(weights, Mapping):
        _refuse(f"has a group {name} that does not say how weights are stored")
    form = held.get("format") or whole
    if form not in FORMATS:
        _refuse(f"has format {form!r} in group {name}; read are {', '.join(FORMATS)}")
    if held.get("output_activations") is not None:
        _refuse(f"quantizes outputs in group {name}, which no plan does")
    if weights.get("dynamic"):
        _refuse(f"has dynamic weights in group {name}")
    if weights.get("actorder") not in (*_SAME_ORDER, *_OWN_ORDER):
        _refuse(f"has actorder {weights['actorder']!r} in group {name}, which is not read")
    size, strategy = weights.get("group_size"), weights.get("strategy")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    group = Group(
        name=name,
        targets=_targets(f"targets of group {name}", held.get("targets")),
        format=form,
        kind=str(weights.get("type", "int")).lower(),
        bits=weights.get("num_bits", 8),
        strategy=str(strategy).lower(),
        size=size if isinstance(size, int) and size > 0 else 0,
        symmetric=weights.get("symmetric", True) is True,
        ordered=weights.get("actorder") in _OWN_ORDER,
        inputs=_inputs(held.get("input_activations"), weights),
    )
    if not _is_read(group, weights.get("block_structure")):
        structure = f", blocks of {weights['block_structure']}" if weights.get("block_structure") else ""
        _refuse(f"stores group {name} as {group.kind} {group}{structure}, which is not read")
    return group


def _inputs(asked: Any, weights: Mapping[str, Any]) -> str:
    if not isinstance(asked, Mapping):
        return ""
    size = asked.get("group_size")
    per = f"group{size}" if size else str(asked.get("strategy"))
    alike = all(asked.get(key) == weights.get(key) for key in ("num_bits", "type"))
    if asked.get("dynamic") is True and asked.get("symmetric", True) and alike:
        return per
    dynamic = asked.get("dynamic") or False
    when = {"True": "as they come", "False": "by a stored scale"}.get(str(dynamic), str(dynamic))
    return f"{asked.get('type')} of {asked.get('num_bits')} bits, {per}, {when}"


def _is_read(group: Group, structure: Any) -> bool:
    if group.ordered and (group.kind, group.strategy) != ("int", "group"):
        return False
    sized = (group.size > 0) == (group.strategy in ("group", "tensor_group"))
    per = ("tensor", "channel", "group")
    if not sized or (group.strategy == "block") != (structure in ([FP8_BLOCK] * 2, f"{FP8_BLOCK}x{FP8_BLOCK}")):
        return False
    if group.format in (NVFP4, MXFP4):
        asked = (group.kind, group.bits, group.strategy, group.size, group.symmetric)
        per = ("tensor_group", NVFP4_BLOCK) if group.format == NVFP4 else ("group", MXFP4_BLOCK)
        return asked == ("float", 4, *per, True)
    if group.format == PACKED:
        allowed = per if group.symmetric else per[1:]  # one zero point of a tensor is not packed
        return group.kind == "int" and group.bits in (4, 8) and group.strategy in allowed
    if group.kind == "int":
        return group.format != FLOATS and group.bits in (4, 8) and group.strategy in per
    known = group.format != INTS and group.kind == "float" and group.bits == 8 and group.symmetric
    return known and group.strategy in (*per, "block")


def _targets(what: str, held: Any) -> tuple[str, ...]:
    if not isinstance(held, list) or not all(isinstance(target, str) for target in held):
        _refuse(f"has {what} that are no list of names")
    for target in held:
        try:
            re.compile(target.removeprefix(_PATTERN) if target.startswith(_PATTERN) else "")
        except re.error as error:
            _refuse(f"has {what} with a pattern {target!r} that is none ({error})")
    return tuple(held)


def _names(target: str, module: str) -> bool:
    if target.startswith(_PATTERN):
        return re.match(target.removeprefix(_PATTERN), module) is not None
    return target == module


def _refuse(what: str) -> NoReturn:
    raise CapabilityError(f"it is stored by {METHOD}, and its quantization_config {what}")
