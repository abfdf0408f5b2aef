"""YAML files that people write: read into a pydantic model, every complaint one sentence with file and line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from evalsvc.complained import Place
from evalsvc.complaints import mistakes, said, shown
from evalsvc.errors import ConfigError
from evalsvc.filekinds import CASES, first_object, refuse_another
from evalsvc.yamltraps import refuse_traps

Model = TypeVar("Model", bound=BaseModel)
_HINTS = {
    "'\\t'": "indent with spaces",
    "mapping values are not allowed": "a text with `: ` in it stands in quotes",
    "cannot start any token": "a text that begins with it stands in quotes",
    "another document": "a file holds one, without `---` between",
}


def read_model(path: str | Path, model: type[Model], *, missing: str = "") -> Model:
    """Reads one YAML document.

    Args:
        path: The file.
        model: What it must be; with `extra="forbid"` unknown keys are refused, and the nearest known one named.
        missing: What a person can do where there is no such file.

    Raises:
        ConfigError: Unreadable, not YAML, a key twice, a number that YAML reads as another, or not such a model. Names
            file, line and key.
    """
    text = text_of(path, missing)
    refuse_another(path, first_object(text), _kind_of(model))
    data, root = _parse(text, path, unshown=getattr(model, "unshown", ()))
    refuse_another(path, data, _kind_of(model))
    if not isinstance(data, dict):
        holds = "is empty" if data is None else f"holds {shown(data)} and no keys"
        raise ConfigError(f"{path}: {holds}; write `key: value` lines, beginning with `{_example(model)}`")
    return _validated(data, root, model, path)


def read_list(path: str | Path, model: type[Model]) -> list[tuple[int, Model]]:
    """Reads one YAML list of mappings: the line where each begins, and what it holds.

    Raises:
        ConfigError: As `read_model`, or no list.
    """
    data, root = _parse(text_of(path), path, finite=True)
    refuse_another(path, data, CASES)
    if not isinstance(data, list) or not isinstance(root, yaml.SequenceNode):
        holds = "is empty" if data is None else f"holds {shown(data)} and no list"
        raise ConfigError(f"{path}: {holds}; begin each entry with `- `")
    nodes = root.value
    return [
        (node.start_mark.line + 1, _validated(entry, node, model, path))
        for entry, node in zip(data, nodes, strict=True)
    ]


def _kind_of(model: type[BaseModel]) -> str:
    return getattr(model, "file_kind", "")


def _validated(data: object, root: yaml.Node | None, model: type[Model], path: str | Path) -> Model:
    try:
        return model.model_validate(data, context={"file": str(path)})
    except ValidationError as error:
        found = mistakes(error, model, lambda place: _scalar(root, place))
        # a misspelt key is missing under its right name too: the line that can be mended comes first
        first = min(found, key=lambda mistake: (not mistake.unknown, _line(root, mistake.place)))
        raise ConfigError(f"{path}:{_line(root, first.place)}: {said(first, len(found))}") from None


def text_of(path: str | Path, missing: str = "") -> str:
    """A file's text, a byte order mark aside.

    Args:
        path: The file.
        missing: What a person can do where there is no such file.

    Raises:
        ConfigError: It cannot be read, or is no UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        remedy = f"; {missing}" if missing and isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}){remedy}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save it as UTF-8") from None


def _parse(
    text: str, path: str | Path, *, unshown: Sequence[str] = (), finite: bool = False
) -> tuple[object, yaml.Node | None]:
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                refuse_traps(root, path, unshown=unshown, finite=finite)
            return (None if root is None else loader.construct_document(root)), root
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or ""
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        hint = next((f"; {what}" for sign, what in _HINTS.items() if sign in problem), "")
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: is no YAML: {problem}{hint}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is no YAML that can be read: it is nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None


def _steps(node: yaml.Node | None, place: Place) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Key (or element) and value along a place, as far as it is there."""
    for part in place:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part], node.value[part])
        if found is None:  # a missing key
            return
        yield found
        node = found[1]


def _line(root: yaml.Node | None, place: Place) -> int:
    """Line of a key or list element, or of its nearest parent that is there."""
    lines = [1 if root is None else root.start_mark.line + 1]
    return [*lines, *(key.start_mark.line + 1 for key, _ in _steps(root, place))][-1]


def _scalar(root: yaml.Node | None, place: Place) -> str | None:
    """The text of a scalar without quotes."""
    steps = list(_steps(root, place))
    node = steps[-1][1] if len(steps) == len(place) and steps else None
    return node.value if isinstance(node, yaml.ScalarNode) and node.style is None else None


def _example(model: type[BaseModel]) -> str:
    return f"{next(iter(model.model_fields))}: ..."
