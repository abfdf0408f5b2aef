"""Reading JSON that a model wrote, and comparing it, without mercy and without ever failing."""

import json
from typing import Any


class NotJson(Exception):
    """The text is not one JSON value."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is repeated")
    return made


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)


def parse(text: str) -> Any:
    """The one JSON value in the stripped text.

    Stricter than `json.loads`: a repeated key, NaN and Infinity are refused; so is nesting too deep for Python to read.

    Raises:
        NotJson: For everything else.
    """
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJson(str(error)) from error


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, read as strictly as `parse` does, and where it ends.

    Raises:
        NotJson: None does.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJson(str(error)) from error


def begins_with_json(text: str) -> bool:
    """Whether a whole JSON object or list opens the text and more follows."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return False
    try:
        _, end = _DECODER.raw_decode(stripped)
    except (ValueError, RecursionError, MemoryError):
        return False
    return end < len(stripped)


def same(got: Any, wanted: Any) -> bool:
    """Equality in which the type matters: 5, 5.0, "5" and true are four different values. Key order does not matter.

    Recursion follows `wanted`, which a person wrote, never `got`.
    """
    if type(got) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(same(got[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(same, got, wanted))
    return got == wanted
