"""What is wrong with something that a person wrote, as sentences: the place, what is wanted, what stands there."""

import difflib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evalsvc.complained import Place, Spot, is_model, members, placed, spot_of, tags

Written = Callable[[Place], str | None]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
_LONGEST_NAME = 60
ADDRESS_PATTERN = r"^[^\s@]+@[^\s@]+$"
_PATTERNS = {
    NAME_PATTERN: "a name that begins with a letter or digit and goes on with these and . _ + -",
    ADDRESS_PATTERN: "an e-mail address, such as me@example.com",
}
_WANTED = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping, `{KEY: VALUE}`",
}
_NUMBER = re.compile(r"([-+]?)(?=\.?\d)0*(\d*)(\.\d*)?(?:[eE]([-+]?\d+))?", re.ASCII)
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        place: Keys and indices that lead to it in what was written.
        sentence: What is wrong, with the place.
        unknown: Whether it is a key that nobody knows, which may be another one's misspelling.
    """

    place: Place
    sentence: str
    unknown: bool = False


def mistakes(error: ValidationError, model: type[BaseModel], written: Written | None = None) -> list[Mistake]:
    """What a pydantic report says, in its order, each place once.

    Args:
        error: The report.
        model: What was validated against; keys inside those that its `unshown` names show no values.
        written: The text that stands at a place, where a file says the same in more than one way.
    """
    found = [(spot_of(model, detail), detail) for detail in map(placed, error.errors(include_url=False))]
    places = {spot.place for spot, _ in found}
    by_place: dict[Place, list[tuple[Spot, ErrorDetails]]] = {}
    for spot, detail in found:
        deeper = any(len(other) > len(spot.place) and other[: len(spot.place)] == spot.place for other in places)
        if not deeper or detail["type"] == "value_error":  # of alternatives, the one that was nearly met
            by_place.setdefault(spot.place, []).append((spot, detail))
    hidden = getattr(model, "unshown", ())
    return [_mistake(held, written, shown=not (place and place[0] in hidden)) for place, held in by_place.items()]


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """The mistake to mend first, and how many others there are."""
    found = mistakes(error, model)
    return said(min(found, key=lambda mistake: not mistake.unknown), len(found))


def said(first: Mistake, count: int) -> str:
    """A mistake's sentence, and how many others there are."""
    more = f" (and {count - 1} more mistake{'s' if count > 2 else ''})" if count > 1 else ""
    return first.sentence + more


def shown(value: object) -> str:
    """A value in a sentence: scalars as YAML and JSON write them, never long."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return repr(value).removesuffix(".0")
        case str() | int():
            text = repr(value)
            return text if len(text) <= 60 else f"{text[:57]}..."
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case date():
            return "a date"
    return f"a {type(value).__name__}"


def dotted(place: Place, *, hidden: bool = False) -> str:
    """A place as people read it; where values are hidden, keys that are no names are too: they may be values."""
    return ".".join(
        "(not shown)" if hidden and isinstance(part, str) and not _is_name(part) else str(part) for part in place
    )


def _is_name(key: str) -> bool:
    return len(key) <= _LONGEST_NAME and re.match(NAME_PATTERN, key) is not None


def _mistake(held: Sequence[tuple[Spot, ErrorDetails]], written: Written | None, *, shown: bool) -> Mistake:
    spot, detail = held[0]
    key = dotted(spot.place, hidden=not shown)
    match detail["type"]:
        case "missing":
            return Mistake(spot.place, f"key '{key}' is missing")
        case "union_tag_not_found":
            return Mistake(spot.place, f"key '{key}.{_tag_key(detail)}' is missing")
        case "extra_forbidden":
            return Mistake(spot.place, f"unknown key '{key}'{_hint(str(spot.place[-1]), _keys(spot.kinds))}", True)
        case "invalid_key":
            return Mistake(spot.place, f"key '{key}' is no text; put it in quotes", True)
    text = _own(detail, spot, told=shown) or _wanting(held, written, shown=shown)
    return Mistake(spot.place, f"'{key}': {text}" if key else text)


def _own(detail: ErrorDetails, spot: Spot, *, told: bool) -> str | None:
    """Complaints that name what is wrong without `wants`."""
    about = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case "union_tag_invalid":
            tag = detail["input"][_tag_key(detail)]
            known = [str(one) for kind in spot.kinds for one in tags(kind)]
            near = difflib.get_close_matches(str(tag), known, n=1)
            named = f"{_tag_key(detail)} {shown(tag)}" if told else _tag_key(detail)
            return (
                f"{named} is not known; did you mean '{near[0]}'?" if near else f"{named} is none of {', '.join(known)}"
            )
        case "too_short":
            count, least = about["actual_length"], about["min_length"]
            return f"holds {count} entr{'y' if count == 1 else 'ies'} and needs at least {least}"
        case "string_too_short" if about["min_length"] == 1:
            return "is empty"
        case "string_too_long":
            return f"has {len(detail['input']):,} characters, of which at most {about['max_length']} are taken"
    return None


def _wanting(held: Sequence[tuple[Spot, ErrorDetails]], written: Written | None, *, shown: bool) -> str:
    spot, detail = held[0]
    wanted = list(dict.fromkeys(_wanted(inner, one) for one, inner in held))
    given = detail["input"]
    if given is None:
        left_out = spot.field is not None and not spot.field.is_required()
        return f"has no value; {'leave the key out or ' if left_out else ''}give {' or '.join(wanted)}"
    text = f"wants {' or '.join(wanted)}"
    if not shown:
        return text
    return f"{text}, not {_as_written(spot.place, given, written)}{_remedy(wanted, given, spot, written)}"


def _wanted(detail: ErrorDetails, spot: Spot) -> str:
    about, kind = detail.get("ctx", {}), detail["type"]
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        limit = about[name]
        return f"{words} {limit}" if isinstance(limit, int) else f"{words} {limit:g}"
    if kind == "literal_error":
        choices = [one for member in spot.kinds for one in get_args(member) if get_origin(member) is Literal]
        names = ["true" if one is True else str(one) for one in choices]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(about["pattern"], f"a text that matches {about['pattern']}")
    if kind.startswith("model_"):
        models = [member for member in spot.kinds if is_model(member)]
        return f"a mapping, such as `{_example(models[0])}`" if models else "a mapping"
    word = _WANTED.get(kind.partition("_")[0])
    return word if word is not None else f"something else ({detail['msg'].lower()})"


def _as_written(place: Place, given: object, written: Written | None) -> str:
    """A value as `shown`; where a file's text says it in another way, the text too."""
    text = written(place) if written is not None else None
    known = shown(given)
    if isinstance(given, str) or text is None or text.lower() == known or len(text) > 60:
        return known
    return text if isinstance(given, float) else f"{text}, which YAML reads as {known}"


def _remedy(wanted: Sequence[str], given: object, spot: Spot, written: Written | None) -> str:
    if "a text" in wanted and not isinstance(given, list | dict):
        return "; put it in quotes"
    if wanted == ["a list"] and isinstance(given, str) and len(given) <= 60:
        inner = [one for kind in spot.kinds for argument in get_args(kind) for one in members(argument)]
        texts = any(one is str or get_origin(one) is Literal for one in inner)
        return f"; write [{given}]" if texts else ""
    if any("number" in one for one in wanted) and isinstance(given, str):
        quoted = written is None or written(spot.place) is None
        return _as_number(given, whole="a whole number" in wanted, yaml=written is not None, quoted=quoted)
    if isinstance(given, str) and wanted[0].startswith("one of "):
        near = difflib.get_close_matches(given, wanted[0].removeprefix("one of ").split(", "), n=1)
        return f"; did you mean '{near[0]}'?" if near else ""
    return ""


def _as_number(text: str, *, whole: bool, yaml: bool, quoted: bool) -> str:
    """What makes a number of a text that spells one; YAML takes a power of ten for one with a point and a sign only."""
    spelt = _NUMBER.fullmatch(text)
    if spelt is None or not math.isfinite(float(text)) or (whole and not float(text).is_integer()):
        return ""
    sign, digits, fraction, power = spelt.groups()
    start = f"{sign.strip('+')}{digits or '0'}{'' if fraction == '.' else fraction or ''}"  # no `+`, no leading zeros
    usual = re.split("[eE]", text)[0] == start
    if usual and (not yaml or power is None or (fraction and power[0] in "+-")):
        return "" if whole and (fraction or power) else "; leave the quotes out"
    plain = shown((int(float(text)) if fraction or power else int(text)) if whole else float(text))
    with_point = f"{start}{'' if '.' in start else '.0'}e{power if str(power)[0] in '+-' else f'+{power}'}"
    forms = [plain] * ("e" not in plain and len(plain) <= 20) + [with_point] * (not whole and power is not None)
    why = "leave the quotes out and" if quoted else f"YAML takes {text} for a text,"
    return f"; {why} write {' or '.join(forms)}" if forms else ""


def _hint(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""


def _tag_key(detail: ErrorDetails) -> str:
    return detail.get("ctx", {})["discriminator"].strip("'")


def _keys(kinds: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(name for kind in kinds if is_model(kind) for name in kind.model_fields))


def _example(model: type[BaseModel]) -> str:
    """The keys that a model cannot do without, or else its first."""
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    return "{" + ", ".join(f"{name}: ..." for name in needed or list(model.model_fields)[:1]) + "}"
