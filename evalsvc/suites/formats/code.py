"""Fenced code that parses."""

import ast
import tomllib
import warnings
from collections.abc import Callable
from typing import Literal

from pydantic import Field, field_validator

from evalsvc.suites.formats.base import Constraint
from evalsvc.suites.formats.documents import Json, Xml, Yaml

CHARACTERS = 100_000  # of one block; a longer one is `too_long`


class Code(Constraint):
    """Blocks of fenced code of one language: `no_code`, `wrong_language`, `too_many`, `unclosed`, `does_not_parse`,
    `too_long`, `extra_text`.

    Attributes:
        language: Which, as the fence names it; only languages that can be parsed here.
        blocks: How many blocks there are.
        only: Nothing else is in the answer.
    """

    kind: Literal["code"]
    language: str
    blocks: int = Field(default=1, ge=1)
    only: bool = False

    @field_validator("language")
    @classmethod
    def _known(cls, language: str) -> str:
        if language not in PARSERS:
            raise ValueError(f"{language!r} cannot be parsed here, only {', '.join(PARSERS)}")
        return language

    def broken(self, text: str) -> str | None:
        """How the answer has no such code."""
        found, outside, closed = _blocks(text)
        if not found:
            return "no_code"
        if not closed:
            return "unclosed"
        if any(language != self.language for language, _ in found):
            return "wrong_language"
        if len(found) != self.blocks:
            return "too_many" if len(found) > self.blocks else "no_code"
        if any(len(body) > CHARACTERS for _, body in found):
            return "too_long"
        if not all(PARSERS[self.language](body) for _, body in found):
            return "does_not_parse"
        return "extra_text" if self.only and outside else None


def _blocks(text: str) -> tuple[list[tuple[str, str]], bool, bool]:
    """Language and body of each fence, whether text stands outside them, and whether all are closed."""
    found: list[tuple[str, str]] = []
    body: list[str] | None = None
    mark = language = ""
    outside = False
    for line in text.split("\n"):
        said = line.strip()
        if body is not None and said.startswith(mark) and not said.strip(mark[0]):
            found.append((language, "\n".join(body)))
            body = None
        elif body is not None:
            body.append(line)
        elif said.startswith(("```", "~~~")):
            length = len(said) - len(said.lstrip(said[0]))
            mark, language, body = said[:length], said[length:].strip().split(" ")[0].lower(), []
        else:
            outside = outside or bool(said)
    if body is not None:
        found.append((language, "\n".join(body)))
    return found, outside, body is None


def _python(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _toml(source: str) -> bool:
    try:
        tomllib.loads(source)
    except (ValueError, RecursionError):
        return False
    return True


PARSERS: dict[str, Callable[[str], bool]] = {
    "python": _python,
    "json": lambda source: Json(kind="json").broken(source) is None,
    "yaml": lambda source: Yaml(kind="yaml").broken(source) is None,
    "xml": lambda source: Xml(kind="xml").broken(source) is None,
    "toml": _toml,
}
