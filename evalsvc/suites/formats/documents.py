"""JSON, XML and YAML: valid, of a schema, and nothing else in the answer."""

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal
from xml.parsers import expat

import yaml
from pydantic import Field

from evalsvc.suites.formats.base import FENCE, Constraint, unfenced
from evalsvc.suites.schema import problems, validator_of
from evalsvc.suites.strict_json import NotJson, begins_with_json, parse

Around = Literal["nothing", "fence", "text"]
YAML_CHARACTERS = 50_000  # a longer answer is `too_long`: no YAML parser is quick
YAML_DEPTH = 100


class _Document(Constraint):
    """A document with a JSON Schema and an order of keys.

    Attributes:
        schema_: JSON Schema (draft 2020-12) of the document; in a case file the key is `schema`.
        strict_integers: 12.0 is no integer.
        keys: The top-level keys, in this order, and no others.
        around: What may stand around it: `nothing`, one code `fence` around all, or `text` before and after a fence.
    """

    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict_integers: bool = False
    keys: list[str] | None = None
    around: Around = "nothing"

    @cached_property
    def _validator(self) -> Any:
        return validator_of(self.schema_, "schema", self.strict_integers)

    def ready(self, where: str) -> None:
        """Refuses a schema that is none."""
        if self.schema_ is not None:
            validator_of(self.schema_, f"{where}.schema", self.strict_integers)

    def content_error(self, value: Any) -> str | None:
        """`wrong_keys`, or `schema`."""
        if self.keys is not None and (not isinstance(value, dict) or list(value) != self.keys):
            return "wrong_keys"
        if self.schema_ is not None and next(problems(self._validator, value), None) is not None:
            return "schema"
        return None


class Json(_Document):
    """One JSON value: `not_json`, `repeated_key`, `extra_text`, `wrong_keys`, `schema`.

    The whole answer is read first, so that a fence inside a string stays inside. `loose_reader` reads as Python's
    `json.loads` does: the last of repeated keys counts, and NaN is a number.
    """

    kind: Literal["json"]
    loose_reader: bool = False

    def broken(self, text: str) -> str | None:
        """How the answer is no such JSON."""
        failed = "not_json"
        for candidate in _candidates(text, "json", self.around):
            try:
                value = _loose(candidate) if self.loose_reader else parse(candidate)
            except NotJson as error:
                failed = "repeated_key" if "repeated" in str(error) else failed
                continue
            return self.content_error(value)
        said = text.strip()
        extra = begins_with_json(said) or (self.around != "text" and _within_text(said, "json"))
        return "extra_text" if failed == "not_json" and extra else failed


class Yaml(_Document):
    """One YAML mapping or list, read safely: no tags, anchors or aliases, one document.

    Fails as `not_yaml`, `not_a_document` (a lone scalar, which any line is), `tag`, `alias`, `too_deep`, `too_long`,
    `repeated_key`, `wrong_keys`, `schema`.
    """

    kind: Literal["yaml"]

    def broken(self, text: str) -> str | None:
        """How the answer is no such YAML."""
        failed: str | None = "not_yaml"
        for candidate in _candidates(text, "yaml", self.around):
            failed = self._error(candidate)
            if failed is None:
                return None
        return failed

    def _error(self, text: str) -> str | None:
        if len(text) > YAML_CHARACTERS:
            return "too_long"
        try:
            refused = _refused_yaml(text)
            if refused is not None:
                return refused
            value = yaml.load(text, Loader=_Once)
        except _Repeated:
            return "repeated_key"
        except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return "not_yaml"
        return self.content_error(value) if isinstance(value, dict | list) else "not_a_document"


class Xml(Constraint):
    """One well-formed XML document without a document type (and so without entities of its own).

    Fails as `not_xml`, `doctype`, `wrong_root`, `missing_element`, `extra_text`.

    Attributes:
        root: Name of the outermost element.
        elements: Names that occur at least once below it.
        around: As in JSON.
    """

    kind: Literal["xml"]
    root: str | None = None
    elements: list[str] = Field(default=[])
    around: Around = "nothing"

    def broken(self, text: str) -> str | None:
        """How the answer is no such XML."""
        failed: str | None = "not_xml"
        for candidate in _candidates(text, "xml", self.around):
            failed = self._error(candidate)
            if failed is None:
                return None
        outside = self.around == "nothing" and FENCE in text
        return (
            "extra_text" if failed == "not_xml" and outside and self._error(unfenced(text, "xml")) is None else failed
        )

    def _error(self, text: str) -> str | None:
        names: list[str] = []
        parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = lambda name, attributes: names.append(name)
        parser.StartDoctypeDeclHandler = _refuse_doctype
        try:
            parser.Parse(text.encode("utf-8"), True)
        except _Doctype:
            return "doctype"
        except (expat.ExpatError, UnicodeEncodeError, ValueError):
            return "not_xml"
        if self.root is not None and names[0] != self.root:
            return "wrong_root"
        return None if set(self.elements) <= set(names[1:]) else "missing_element"


class _Doctype(Exception):
    """The document has a document type declaration, where entities are made."""


def _refuse_doctype(*_: Any) -> None:
    raise _Doctype


def _candidates(text: str, language: str, around: Around) -> Iterator[str]:
    """What may be the document, the whole answer first."""
    said = text.strip()
    yield said
    if around != "nothing" and FENCE in said:
        yield unfenced(said, language)
    if around == "text":
        yield from _fenced(said, language)


def _fenced(said: str, language: str) -> Iterator[str]:
    """The content of the first fence that names the language or none."""
    parts = said.split(FENCE)
    for inside in parts[1:-1:2]:
        head, _, body = inside.partition("\n")
        if head.strip().lower() in ("", language):
            yield body
            return


def _within_text(said: str, language: str) -> bool:
    """Whether a whole JSON value stands in a fence, with or without text around it."""
    for inside in (*_fenced(said, language), unfenced(said, language) if said.startswith(FENCE) else ""):
        try:
            parse(inside)
        except NotJson:
            continue
        return True
    return False


def _loose(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJson(str(error)) from error


class _Repeated(Exception):
    """A mapping has a key twice."""


class _Once(yaml.SafeLoader):
    """A safe loader that refuses a repeated key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping whose keys differ."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(set(keys)) != len(keys):
            raise _Repeated
        return super().construct_mapping(node, deep)


def _refused_yaml(text: str) -> str | None:
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            return "alias"
        if getattr(event, "tag", None) is not None:
            return "tag"
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > YAML_DEPTH:
            return "too_deep"
    return "not_yaml" if documents != 1 else None
