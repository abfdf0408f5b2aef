"""Task files in lm-eval's YAML, read so that every complaint can name file and line.

lm-eval's own loader forgets lines and runs `!function`; this one keeps lines and runs code only where it is allowed.
Two differences in meaning: a key that lm-eval does not know is refused, and relative data files start from the folder
of the YAML that names them (lm-eval starts from the working directory).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evalsvc.errors import ConfigError
from evalsvc.yamltraps import refuse_swollen

CODE = "code in task files runs only with --allow-code"
GROUP_KEYS = ("group", "group_alias", "task", "aggregate_metric_list", "metadata", "tag")


@dataclass(frozen=True)
class TaskFile:
    """One task or group as written, includes merged.

    Attributes:
        path: The file.
        config: Its keys.
        origin: File and line that each key comes from.
    """

    path: Path
    config: dict[str, Any]
    origin: dict[str, tuple[Path, int]]

    @property
    def is_group(self) -> bool:
        """Whether it names tasks instead of being one."""
        return "group" in self.config

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


def names_beside(file: Path) -> dict[str, Path]:
    """What the other YAML files of a folder say that they are, task or group; whatever says neither is left out."""
    found: dict[str, Path] = {}
    for path in sorted(file.parent.rglob("*.yaml")):
        if path == file or path.name.startswith("_"):
            continue
        try:
            node = _compose(path, included_by=None)
        except ConfigError:
            continue
        said = {key.value: value.value for key, value in node.value if key.id == value.id == "scalar"}
        name = said.get("group") or said.get("task")
        if name:
            found.setdefault(name, path)
    return found


def read_task_file(path: Path, known_keys: Sequence[str], *, allow_code: bool = False) -> TaskFile:
    """Reads one task or group with what it includes.

    Args:
        path: The file.
        known_keys: What lm-eval knows in a task file.
        allow_code: Whether `!function` and `class` may name Python, which then runs.

    Raises:
        ConfigError: Broken YAML, an unknown or repeated key, code that is not allowed or cannot be found, no `task`, an
            include that is missing or a cycle.
    """
    file = _read(path.resolve(), (), allow_code)
    if file.is_group:
        return _checked_group(file)
    for key in file.config:
        if key == "class" and not allow_code:
            raise ConfigError(f"{file.at(key)}: a task written in Python is refused: {CODE}")
        if key not in known_keys and key != "class":
            raise ConfigError(f"{file.at(key)}: lm-eval knows no key {key!r} in a task file")
    if not isinstance(file.config.get("task"), str):
        raise ConfigError(f"{file.at('task')}: a task file needs the key `task` with the task's name")
    return file


def _checked_group(file: TaskFile) -> TaskFile:
    for key in file.config:
        if key not in GROUP_KEYS:
            raise ConfigError(f"{file.at(key)}: a group takes no key {key!r}; its tasks say it themselves")
    named = file.config.get("task")
    names = [named] if isinstance(named, str) else named
    if not isinstance(file.config["group"], str) or not isinstance(names, list) or not names:
        raise ConfigError(f"{file.at('group')}: a group needs a name and, as `task`, the names of its tasks")
    if any(not isinstance(name, str) for name in names):
        raise ConfigError(f"{file.at('task')}: a group names its tasks; tasks written inside a group are not served")
    return TaskFile(file.path, file.config | {"task": names}, file.origin)


def _read(path: Path, above: tuple[Path, ...], allow_code: bool) -> TaskFile:
    if path in above:
        raise ConfigError(f"{above[-1]}: the include of {path} is a cycle")
    node = _compose(path, included_by=above[-1] if above else None)
    _check(node, path, allow_code)
    try:
        own = _loader(path).construct_document(node)
    except yaml.YAMLError as error:
        raise _broken(path, error) from error
    origin = {k.value: (path, k.start_mark.line + 1) for k, _ in node.value}
    config: dict[str, Any] = {}
    merged: dict[str, tuple[Path, int]] = {}
    includes = own.pop("include", [])
    for include in includes if isinstance(includes, list) else [includes]:
        inner = _read((path.parent / str(include)).resolve(), (*above, path), allow_code)
        config |= inner.config
        merged |= inner.origin
    config.pop("task_list", None)
    return TaskFile(path, config | own, merged | origin)


def _loader(path: Path) -> yaml.SafeLoader:
    """Reads what `_check` let through; `!function` becomes the function, looked for as lm-eval does."""

    class Loader(yaml.SafeLoader):
        pass

    def function(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
        from lm_eval.tasks._yaml_loader import _import_func_in_yml

        where = f"{path}:{node.start_mark.line + 1}"
        try:
            return _import_func_in_yml(str(node.value), path.parent)
        except (Exception, SystemExit) as error:  # a module of a user's runs here and raises whatever it meets
            first = str(error).strip().split("\n")[0]
            raise ConfigError(f"{where}: {node.value} cannot be loaded: {type(error).__name__}: {first}") from error

    Loader.add_constructor("!function", function)
    return Loader("")


def _compose(path: Path, included_by: Path | None) -> yaml.MappingNode:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        by = f" (included by {included_by})" if included_by else ""
        raise ConfigError(f"{path}: cannot be read as a task file{by}: {getattr(error, 'strerror', error)}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _broken(path, error) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: broken YAML: it is nested too deep") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:1: a task file is a mapping of keys")
    refuse_swollen(node, path)
    return node


def _broken(path: Path, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    return ConfigError(f"{where}: broken YAML: {getattr(error, 'problem', None) or error}")


def _check(node: yaml.Node, path: Path, allow_code: bool) -> None:
    where = f"{path}:{node.start_mark.line + 1}"
    if node.tag == "!function" and isinstance(node, yaml.ScalarNode):
        if not allow_code:
            raise ConfigError(f"{where}: {node.tag} is refused: {CODE}")
        return
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise ConfigError(f"{where}: the tag {node.tag} is refused")
    if isinstance(node, yaml.ScalarNode):
        try:
            yaml.constructor.SafeConstructor().construct_object(node)
        except ValueError as error:  # a date that no calendar has, or a text that says it is a number
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise ConfigError(f"{where}: {node.value!r} is no {kind} ({error}); a text stands in quotes") from error
        except yaml.YAMLError as error:
            raise _broken(path, error) from error
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check(child, path, allow_code)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: a key has to be a word")
            if key.value in seen:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: the key {key.value!r} is repeated")
            seen.add(key.value)
            _check(value, path, allow_code)


def local_data(file: TaskFile) -> dict[str, Any] | None:
    """`dataset_kwargs` with absolute data files; None where the data are not local files.

    Raises:
        ConfigError: A data file is missing, or is JSON Lines with a broken line.
    """
    kwargs = file.config.get("dataset_kwargs")
    if not isinstance(kwargs, dict) or "data_files" not in kwargs:
        return None
    base = file.origin["dataset_kwargs"][0].parent
    return kwargs | {"data_files": absolute_files(kwargs["data_files"], base, file.at("dataset_kwargs"))}


def absolute_files(named: Any, base: Path, where: str) -> Any:
    """Data files as `datasets` takes them, by absolute paths.

    Args:
        named: A path, a pattern, a list of them, or splits and theirs.
        base: Folder that relative paths start from.
        where: Begins every complaint.

    Raises:
        ConfigError: A file is missing, or is JSON Lines with a broken line.
    """
    if isinstance(named, dict):
        return {split: absolute_files(value, base, where) for split, value in named.items()}
    if isinstance(named, list):
        return [absolute_files(value, base, where) for value in named]
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
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows += 1
                    _check_row(line, f"{path}:{number}")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8 text; save it as UTF-8") from error
    if not rows:
        raise ConfigError(f"{path}: holds no documents")


def _check_row(line: str, where: str) -> None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not a JSON object on one line: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a document is a JSON object")
