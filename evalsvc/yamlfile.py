"""YAML files that people write: read into a pydantic model, every complaint one sentence with file and line."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evalsvc.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def read_model(path: str | Path, model: type[Model], *, missing: str = "") -> Model:
    """Reads one YAML document.

    Args:
        path: The file.
        model: What it must be; with `extra="forbid"` unknown keys are refused, and the nearest known one named.
        missing: What a person can do where there is no such file.

    Raises:
        ConfigError: Unreadable, not YAML, a key twice, or not such a model. Names file, line and key.
    """
    data, root = _parse(_text_of(path, missing), path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds no keys; write `key: value` lines, for example `{_example(model)}`")
    return _validated(data, root, model, path)


def read_list(path: str | Path, model: type[Model]) -> list[tuple[int, Model]]:
    """Reads one YAML list of mappings: the line where each begins, and what it holds.

    Raises:
        ConfigError: As `read_model`, or no list.
    """
    data, root = _parse(_text_of(path), path)
    if not isinstance(data, list) or not isinstance(root, yaml.SequenceNode):
        raise ConfigError(f"{path}: holds no list; begin each entry with `- `")
    nodes = root.value
    return [
        (node.start_mark.line + 1, _validated(entry, node, model, path))
        for entry, node in zip(data, nodes, strict=True)
    ]


def _validated(data: object, root: yaml.Node | None, model: type[Model], path: str | Path) -> Model:
    try:
        return model.model_validate(data, context={"file": str(path)})
    except ValidationError as error:
        details = [_placed(detail) for detail in error.errors(include_url=False)]
        others = len(details) - 1
        more = f" (and {others} more mistake{'s' if others > 1 else ''})" if others else ""
        # a misspelt key is missing under its right name too: the line that can be mended comes first
        first = min(details, key=lambda detail: (detail["type"] != "extra_forbidden", _line(root, detail["loc"])))
        raise ConfigError(f"{path}:{_line(root, first['loc'])}: {_sentence(first, model)}{more}") from None


def _text_of(path: str | Path, missing: str = "") -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        remedy = f"; {missing}" if missing and isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}){remedy}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None


def _parse(text: str, path: str | Path) -> tuple[object, yaml.Node | None]:
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _refuse_duplicates(root, path)
            return (None if root is None else loader.construct_document(root)), root
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: is no YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None


def _refuse_duplicates(node: yaml.Node, path: str | Path) -> None:
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in lines:
                raise ConfigError(f"{path}:{line}: key '{key.value}' stands already in line {lines[key.value]}")
            if isinstance(key, yaml.ScalarNode):
                lines[key.value] = line
            _refuse_duplicates(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_duplicates(value, path)


def _placed(detail: ErrorDetails) -> ErrorDetails:
    """A complaint of our own that names a key further inside is moved there."""
    further = getattr(detail.get("ctx", {}).get("error"), "loc", ())
    return {**detail, "loc": (*detail["loc"], *further)}


def _line(node: yaml.Node | None, loc: Sequence[int | str]) -> int:
    """Line of the key or list element that a pydantic location names, or of its nearest known parent."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in loc:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part], node.value[part])
        if found is not None:  # else a tag of a union, or the missing key itself
            line, node = found[0].start_mark.line + 1, found[1]
    return line


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"key '{key}' is missing"
    about = detail.get("ctx", {})
    if detail["type"] == "union_tag_not_found":
        return f"key '{key}.{about['discriminator'].strip(chr(39))}' is missing"
    if detail["type"] == "extra_forbidden":
        known = _known_keys(model, detail["loc"])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""
        return f"unknown key '{key}'{hint}"
    where = f"'{key.removesuffix('.[key]')}': " if key else ""
    if detail["type"] == "union_tag_invalid":
        return f"{where}{about['discriminator'].strip(chr(39))} {about['tag']!r} is none of {about['expected_tags']}"
    if detail["type"] == "too_short":
        return f"{where}holds {about['actual_length']} and needs at least {about['min_length']}"
    message = detail["msg"].removeprefix("Value error, ")
    message = (message[0].lower() + message[1:]).replace("valid tuple", "valid list").replace("dictionary", "mapping")
    given = detail["input"]
    hidden = bool(detail["loc"]) and detail["loc"][0] in getattr(model, "unshown", ())
    if detail["type"] == "value_error" or hidden:  # our own sentence names the value itself
        return f"{where}{message}"
    shown = "a mapping" if isinstance(given, dict) else "a list" if isinstance(given, list) else repr(given)
    return f"{where}{message}, not {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _known_keys(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Keys that may stand where a pydantic location ends; none where that is no model."""
    inner: list[type[BaseModel]] = [model]
    for part in loc[:-1]:
        tagged = [one for one in inner if len(inner) > 1 and _is_tagged(one, part)]
        fields = [one.model_fields[str(part)] for one in inner if str(part) in one.model_fields]
        inner = tagged or [found for field in fields for found in _models_in(field.annotation)] or inner
    return list(inner[0].model_fields)


def _is_tagged(model: type[BaseModel], tag: int | str) -> bool:
    """Whether a model is the one of a union that a tag stands for."""
    return any(tag in get_args(field.annotation) for field in model.model_fields.values())


def _models_in(annotation: object) -> list[type[BaseModel]]:
    """The models in `X`, `list[X]`, `dict[str, X]`, `X | None` or `X | Y`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def _example(model: type[BaseModel]) -> str:
    return f"{next(iter(model.model_fields))}: ..."
