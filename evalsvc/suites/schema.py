"""JSON Schema, draft 2020-12, of values that a model wrote.

The library's validator with four keywords of our own: `multipleOf` is exact for every number (the library divides
floats), `uniqueItems` takes linear time, `pattern` has a time limit, and `type: integer` can be had strictly. Nothing
is ever fetched: a reference has to lead into the schema itself or to a published meta-schema. `format` is an
annotation, as the draft says.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from evalsvc.errors import ConfigError
from evalsvc.suites.patterns import PatternTimeout, compiled, matches

DRAFT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Problem:
    """One way in which a value breaks its schema.

    Attributes:
        keyword: The keyword broken (`required`, `type`, `additionalProperties`, ...); `depth` for a value nested deeper
            than a recursive schema can be followed.
        path: Keys and indices that lead to the place in the value.
        message: What is wrong, in the library's words.
    """

    keyword: str
    path: tuple[str | int, ...]
    message: str


def validator_of(schema: Any, where: str, strict_integers: bool = False, registry: Any = None) -> Any:
    """A validator to hand to `problems`.

    Args:
        schema: A mapping or a boolean.
        where: Begins every complaint: file and line.
        strict_integers: 12.0 is no integer (the draft says that it is one).
        registry: Further schemas that references may lead to (a `referencing.Registry`).

    Raises:
        ConfigError: It is no schema of this draft, or refers to what is not there.
    """
    import jsonschema
    from jsonschema.validators import Draft202012Validator

    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(declared, str) and "json-schema.org/" in declared and declared.rstrip("#") != DRAFT:
        raise ConfigError(f"{where}: the schema is of {declared}; only draft 2020-12 is validated")
    try:
        Draft202012Validator.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
    except jsonschema.SchemaError as error:
        place = "/".join(map(str, error.absolute_path)) or "its top"
        raise ConfigError(f"{where}: not a JSON Schema of draft 2020-12 at {place}: {error.message[:200]}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: the schema is nested too deep") from error
    registry = _published() if registry is None else registry
    _check_inside(schema, registry, where)
    return _kind(strict_integers)(schema, registry=registry)


def problems(validator: Any, value: Any) -> Iterator[Problem]:
    """What breaks the schema in a value, in no certain order; nothing where it is valid. Any value can be judged."""
    try:
        for error in validator.iter_errors(value):
            yield Problem(str(error.validator), tuple(error.absolute_path), str(error.message)[:500])
    except RecursionError:
        yield Problem("depth", (), "nested too deep to be judged")


def _published() -> Any:
    from jsonschema_specifications import REGISTRY

    return REGISTRY


def _check_inside(schema: Any, registry: Any, where: str) -> None:
    """Refuses references that lead nowhere, and patterns that are none."""
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(schema)
    waiting = [(root, registry.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        held = resource.contents if isinstance(resource.contents, dict) else {}
        for keyword in ("$ref", "$dynamicRef"):
            try:
                if isinstance(held.get(keyword), str):
                    resolver.lookup(held[keyword])
            except Unresolvable as error:
                raise ConfigError(f"{where}: {keyword} {held[keyword]!r} leads out of the schema") from error
        if isinstance(held.get("pattern"), str):
            compiled(held["pattern"], f"{where}: pattern")
        for pattern in held.get("patternProperties", ()):
            _check_plain_pattern(pattern, f"{where}: patternProperties")
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _check_plain_pattern(pattern: str, where: str) -> None:
    """Refuses what Python's own `re` cannot read: the library matches the names of properties with it."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where}: {pattern!r} is not a pattern: {error}") from error


@cache
def _kind(strict_integers: bool) -> Any:
    from jsonschema.validators import Draft202012Validator, extend

    checker = Draft202012Validator.TYPE_CHECKER
    if strict_integers:
        checker = checker.redefine("integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool))
    own = {"multipleOf": _multiple_of, "uniqueItems": _unique_items, "pattern": _pattern}
    return extend(Draft202012Validator, own, type_checker=checker)


def _multiple_of(validator: Any, divisor: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(value, "number") and (not math.isfinite(value) or _exact(value) % _exact(divisor)):
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


def _exact(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _unique_items(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if wanted and validator.is_type(value, "array") and len({_key(entry) for entry in value}) < len(value):
        yield ValidationError("has non-unique elements")


def _key(value: Any) -> Any:
    """Equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return isinstance(value, bool), value


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(value, "string"):
        return
    try:
        met = matches(pattern, value, whole=False)
    except PatternTimeout:
        met = False
    if not met:
        yield ValidationError(f"{value[:200]!r} does not match {pattern!r}")
