"""When an argument is right."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.suites.patterns import PatternTimeout, compiled
from evalsvc.suites.patterns import matches as fits_pattern
from evalsvc.suites.strict_json import same

WAYS = ("exact", "one_of", "any_of", "number", "regex", "same_text", "object", "items", "any")


class Matcher(BaseModel):
    """What one value has to be; exactly one of the ways, and where it fits `optional` and what belongs to the way.

    Attributes:
        exact: This value (`strict_json.same`: 5, 5.0 and "5" differ).
        one_of: One of these values, alike.
        any_of: One of these matchers takes it.
        number: This number, as an integer or not, within `abs` or `rel` (either is enough; without both exactly).
        regex: A text that this pattern matches whole.
        same_text: This text or one of these, in any case and with any white space; `ignore` lists characters that do
            not count either.
        object: An object of exactly these keys (optional ones aside), each matched in its own way.
        items: A list of these, in order, each matched in its own way.
        any: Any value.
        optional: The argument may be left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    exact: Any = None
    one_of: list[Any] | None = Field(default=None, min_length=1)
    any_of: "list[Matcher] | None" = Field(default=None, min_length=1)
    number: int | float | None = None
    abs: int | float = Field(default=0, ge=0)
    rel: int | float = Field(default=0, ge=0)
    regex: str | None = None
    same_text: str | list[str] | None = None
    ignore: str = ""
    object: "dict[str, Matcher] | None" = None
    items: "list[Matcher] | None" = None
    any: bool = False
    optional: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        """A value that is not an object stands for itself."""
        return given if isinstance(given, Mapping | Matcher) else {"exact": given}

    @model_validator(mode="after")
    def _one_way(self) -> "Matcher":
        ways = [way for way in WAYS if way in self.model_fields_set and (way != "any" or self.any)]
        if len(ways) != 1:
            raise ValueError(
                f"a matcher has exactly one of {', '.join(WAYS)} (an object that is meant as it stands: `exact`)"
            )
        if ways != ["number"] and {"abs", "rel"} & self.model_fields_set:
            raise ValueError("`abs` and `rel` go with `number`")
        if isinstance(self.number, bool) or (self.number is not None and not math.isfinite(self.number)):
            raise ValueError("`number` is not a number")
        if ways != ["same_text"] and self.ignore:
            raise ValueError("`ignore` goes with `same_text`")
        if ways[0] != "exact" and ways[0] != "any" and getattr(self, ways[0]) is None:
            raise ValueError(f"`{ways[0]}` has no value")
        if not _is_json([self.exact, self.one_of]):
            raise ValueError("a value is not JSON (a date in YAML stands in quotes)")
        if self.same_text == []:
            raise ValueError("`same_text` is an empty list")
        return self

    @property
    def way(self) -> str:
        """Which of the ways it is."""
        return next(way for way in WAYS if way in self.model_fields_set and (way != "any" or self.any))


def matches(got: Any, wanted: Matcher) -> bool:
    """Whether a value is right. Recursion follows what a person wrote, never `got`."""
    match wanted.way:
        case "exact":
            return same(got, wanted.exact)
        case "one_of":
            return any(same(got, value) for value in wanted.one_of or ())
        case "any_of":
            return any(matches(got, inner) for inner in wanted.any_of or ())
        case "number":
            return _near(got, wanted)
        case "regex":
            return isinstance(got, str) and _fits(got, wanted.regex or "")
        case "same_text":
            texts = [wanted.same_text] if isinstance(wanted.same_text, str) else wanted.same_text or []
            return isinstance(got, str) and plain(got, wanted.ignore) in {plain(t, wanted.ignore) for t in texts}
        case "object":
            return isinstance(got, dict) and not object_problems(got, wanted.object or {})
        case "items":
            inner: Sequence[Matcher] = wanted.items or ()
            return isinstance(got, list) and len(got) == len(inner) and all(map(matches, got, inner))
    return True


def object_problems(got: Mapping[str, Any], wanted: Mapping[str, Matcher]) -> list[tuple[str, str]]:
    """Which key is wrong and how: `missing`, `extra` or `value`."""
    missing = [(key, "missing") for key, matcher in wanted.items() if key not in got and not matcher.optional]
    extra = [(key, "extra") for key in got if key not in wanted]
    wrong = [(key, "value") for key, value in got.items() if key in wanted and not matches(value, wanted[key])]
    return [*missing, *extra, *wrong]


def plain(text: str, ignore: str = "") -> str:
    """A text without case, white space and the ignored characters."""
    kept = "".join(text.split()).casefold()
    return kept.translate({ord(character): None for character in ignore.casefold()})


def example(wanted: Matcher) -> Any:
    """A value that a matcher takes; for a pattern there is none to be had.

    Raises:
        LookupError: A `regex` somewhere in it.
    """
    match wanted.way:
        case "exact":
            return wanted.exact
        case "one_of":
            return (wanted.one_of or [None])[0]
        case "any_of":
            return example((wanted.any_of or [Matcher.model_validate(None)])[0])
        case "number":
            return wanted.number
        case "regex":
            raise LookupError("a pattern has no example")
        case "same_text":
            return wanted.same_text if isinstance(wanted.same_text, str) else (wanted.same_text or [""])[0]
        case "object":
            return {key: example(inner) for key, inner in (wanted.object or {}).items() if not inner.optional}
        case "items":
            return [example(inner) for inner in wanted.items or ()]
    return "anything"


def patterns(wanted: Matcher) -> list[str]:
    """Every `regex` in a matcher."""
    inner = [*(wanted.object or {}).values(), *(wanted.items or ()), *(wanted.any_of or ())]
    own = [] if wanted.regex is None else [wanted.regex]
    return own + [pattern for matcher in inner for pattern in patterns(matcher)]


def pattern_problem(pattern: str) -> str | None:
    """Why a pattern cannot be used; None when it can."""
    try:
        compiled(pattern, "regex")
    except (ConfigError, CapabilityError) as error:
        return str(error)
    return None


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _near(got: Any, wanted: Matcher) -> bool:
    if isinstance(got, bool) or not isinstance(got, int | float) or wanted.number is None:
        return False
    if isinstance(got, float) and not math.isfinite(got):
        return False
    target = fraction(wanted.number)
    off = abs(fraction(got) - target)
    return off <= max(fraction(wanted.abs), fraction(wanted.rel) * abs(target))


def _fits(got: str, pattern: str) -> bool:
    try:
        return fits_pattern(pattern, got, whole=True)
    except PatternTimeout:
        return False


def fraction(number: int | float) -> Fraction:
    """A finite number as the decimal that it is written as: .1 is one tenth."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


Matcher.model_rebuild()
