"""What YAML takes in silence for something else than a person wrote: refused before it is read."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from evalsvc.complained import Place
from evalsvc.complaints import dotted, shown
from evalsvc.errors import ConfigError

_MOST = 1_000_000  # values that a file may stand for, where its aliases repeat them
_TAG = "tag:yaml.org,2002:"
_TEXTS = (f"{_TAG}str", f"{_TAG}merge", f"{_TAG}value")
_READ_AS = {f"{_TAG}bool": "a truth value", f"{_TAG}null": "null", f"{_TAG}timestamp": "a date"}


def refuse_traps(root: yaml.Node, path: str | Path, *, unshown: Sequence[str] = (), finite: bool = False) -> None:
    """Refuses what would be read as something else: aliases that swell, keys twice, keys and numbers of YAML's own.

    Args:
        root: The document.
        path: Its file.
        unshown: Keys of the document inside which no complaint shows a value.
        finite: Whether numbers that are none, or without end, are refused too.

    Raises:
        ConfigError: Names file, line and key.
    """
    refuse_swollen(root, path)
    _Walk(path, frozenset(unshown), finite).step(root, ())


def refuse_swollen(root: yaml.Node, path: str | Path) -> None:
    """Refuses aliases that hold themselves, or that stand for far more than was written.

    Raises:
        ConfigError: Names file and line.
    """
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise ConfigError(f"{path}:{node.start_mark.line + 1}: an alias stands inside what it stands for")
            return known
        sizes[id(node)] = None
        inner = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        sizes[id(node)] = total = 1 + sum(map(size, inner))
        return total

    if (total := size(root)) > max(_MOST, 10 * len(sizes)):
        raise ConfigError(f"{path}: its aliases stand for {total:,} values, of which {_MOST:,} are read at most")


@dataclass
class _Walk:
    """Through all nodes of a document, each once."""

    path: str | Path
    unshown: frozenset[str]
    finite: bool
    seen: set[int] = field(default_factory=set)

    def step(self, node: yaml.Node, place: Place) -> None:
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            self._number(node, place)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, place)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.step(value, (*place, index))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> None:
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):  # no key of a mapping, which the constructor says
                continue
            merged = key.tag == f"{_TAG}merge"  # `<<`: what it holds stands here
            inner = place if merged else (*place, key.value)
            named = dotted((key.value,), hidden=self._hides(place))
            if key.value in lines:
                raise self._refusal(key, f"key '{named}' stands already in line {lines[key.value]}")
            if key.tag not in _TEXTS:
                read = f" (YAML reads it as {_READ_AS[key.tag]})" if key.tag in _READ_AS else ""
                raise self._refusal(
                    key, f"key '{dotted(inner, hidden=self._hides(inner))}' is no text{read}; put it in quotes"
                )
            lines[key.value] = key.start_mark.line + 1
            self.step(value, inner)

    def _number(self, node: yaml.ScalarNode, place: Place) -> None:
        whole = node.tag == f"{_TAG}int"
        if not whole and node.tag != f"{_TAG}float":
            return
        construct = yaml.constructor.SafeConstructor()
        read = construct.construct_yaml_int(node) if whole else construct.construct_yaml_float(node)
        hides = self._hides(place)
        at, text = f"'{dotted(place, hidden=hides)}': " if place else "", "a number" if hides else node.value
        if re.search("[:_]", node.value) or (whole and re.match(r"[-+]?0\d", node.value)):
            known = "another" if hides else shown(read)
            remedy = "write it in digits alone, without `:`, `_` and leading zeros, or in quotes where a text is meant"
            raise self._refusal(node, f"{at}{text} is {known} to YAML; {remedy}")
        if self.finite and not whole and not math.isfinite(read):
            raise self._refusal(node, f"{at}{text} is no finite number; write one, or put it in quotes as a text")

    def _hides(self, place: Place) -> bool:
        return bool(place) and place[0] in self.unshown

    def _refusal(self, node: yaml.Node, sentence: str) -> ConfigError:
        return ConfigError(f"{self.path}:{node.start_mark.line + 1}: {sentence}")
