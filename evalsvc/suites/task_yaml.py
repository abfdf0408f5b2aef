"""Task files in lm-eval's YAML, read so that every complaint can name file and line.

lm-eval's own loader forgets lines and runs `!function`; this one does neither. Two differences in meaning: a key that
lm-eval does not know is refused, and relative data files start from the folder of the YAML that names them
(lm-eval starts from the working directory).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evalsvc.errors import CapabilityError, ConfigError

CODE = "code in task files is not supported in this version"


@dataclass(frozen=True)
class TaskFile:
    """One task as written, includes merged.

    Attributes:
        path: The file.
        config: Its keys.
        origin: File and line that each key comes from.
    """

    path: Path
    config: dict[str, Any]
    origin: dict[str, tuple[Path, int]]

    def at(self, key: str) -> str:
        """`file:line` of a key, or the file alone when the key is absent."""
        path, line = self.origin.get(key, (self.path, 0))
        return f"{path}:{line}" if line else str(path)


def find_task_files(folder: Path) -> list[Path]:
    """The task files under a folder, sorted; names that begin with `_` are bases to include.

    Raises:
        ConfigError: There are none.
    """
    found = sorted(p for p in folder.rglob("*.yaml") if not p.name.startswith("_"))
    if not found:
        raise ConfigError(f"{folder}: holds no task files (*.yaml)")
    return found


def read_task_file(path: Path, known_keys: Sequence[str]) -> TaskFile:
    """Reads one task with what it includes.

    Raises:
        ConfigError: Broken YAML, an unknown or repeated key, code, no `task`, an include that is missing or a cycle.
        CapabilityError: A group, or a task written in Python.
    """
    file = _read(path.resolve(), ())
    for key in file.config:
        if key == "group":
            raise CapabilityError(f"{file.at(key)}: groups of tasks are not served: name their tasks instead")
        if key == "class":
            raise CapabilityError(f"{file.at(key)}: a task written in Python is not served: {CODE}")
        if key not in known_keys:
            raise ConfigError(f"{file.at(key)}: lm-eval knows no key {key!r} in a task file")
    if not isinstance(file.config.get("task"), str):
        raise ConfigError(f"{file.at('task')}: a task file needs the key `task` with the task's name")
    return file


def _read(path: Path, above: tuple[Path, ...]) -> TaskFile:
    if path in above:
        raise ConfigError(f"{above[-1]}: the include of {path} is a cycle")
    node = _compose(path, included_by=above[-1] if above else None)
    _check(node, path)
    own = yaml.SafeLoader("").construct_document(node)
    origin = {k.value: (path, k.start_mark.line + 1) for k, _ in node.value}
    config: dict[str, Any] = {}
    merged: dict[str, tuple[Path, int]] = {}
    includes = own.pop("include", [])
    for include in includes if isinstance(includes, list) else [includes]:
        inner = _read((path.parent / str(include)).resolve(), (*above, path))
        config |= inner.config
        merged |= inner.origin
    config.pop("task_list", None)
    return TaskFile(path, config | own, merged | origin)


def _compose(path: Path, included_by: Path | None) -> yaml.MappingNode:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        by = f" (included by {included_by})" if included_by else ""
        raise ConfigError(f"{path}: cannot be read as a task file{by}: {getattr(error, 'strerror', error)}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: broken YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:1: a task file is a mapping of keys")
    return node


def _check(node: yaml.Node, path: Path) -> None:
    where = f"{path}:{node.start_mark.line + 1}"
    if node.tag.startswith("!"):
        raise ConfigError(f"{where}: {node.tag} is refused: {CODE}")
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise ConfigError(f"{where}: the tag {node.tag} is refused")
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check(child, path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: a key has to be a word")
            if key.value in seen:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: the key {key.value!r} is repeated")
            seen.add(key.value)
            _check(value, path)


def local_data(file: TaskFile) -> dict[str, Any] | None:
    """`dataset_kwargs` with absolute data files; None where the data are not local files.

    Raises:
        ConfigError: A data file is missing, or is JSON Lines with a broken line.
    """
    kwargs = file.config.get("dataset_kwargs")
    if not isinstance(kwargs, dict) or "data_files" not in kwargs:
        return None
    base = file.origin["dataset_kwargs"][0].parent
    return kwargs | {"data_files": _absolute(kwargs["data_files"], base, file.at("dataset_kwargs"))}


def _absolute(named: Any, base: Path, where: str) -> Any:
    if isinstance(named, dict):
        return {split: _absolute(value, base, where) for split, value in named.items()}
    if isinstance(named, list):
        return [_absolute(value, base, where) for value in named]
    if not isinstance(named, str):
        raise ConfigError(f"{where}: data_files names files, not {named!r}")
    if "://" in named:
        return named
    for path in _matching(base / named, where):
        if path.suffix == ".jsonl":
            _check_lines(path)
    return str((base / named).resolve())


def _matching(pattern: Path, where: str) -> Iterator[Path]:
    if pattern.is_file():
        return iter([pattern])
    anchor = Path(pattern.anchor or ".")
    found = list(anchor.glob(str(pattern.relative_to(anchor)))) if set(str(pattern)) & set("*?[") else []
    if not found:
        raise ConfigError(f"{where}: no data file {pattern}")
    return iter(found)


def _check_lines(path: Path) -> None:
    rows = 0
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            rows += 1
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}:{number}: not a JSON object on one line: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{number}: a document is a JSON object")
    if not rows:
        raise ConfigError(f"{path}: holds no documents")
