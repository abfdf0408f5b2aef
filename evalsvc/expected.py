"""What was right of an item, read from the case file that its run named; never of a file that has changed since.

The database holds answers and scores, and an item's hash. The right answer stands in the case file, which is read where
the run's experiment lay; a case whose hash is not the item's is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsvc.errors import EvalsvcError, EvidenceError
from evalsvc.listed import read_text
from evalsvc.suites.formats.case import FormatCase, Verifiable, followed
from evalsvc.suites.items import content_hash
from evalsvc.suites.own import OwnCase
from evalsvc.suites.prompts import UNSCORED, Case, read_rows
from evalsvc.suites.toolcall.calls import Call, Parsed
from evalsvc.suites.toolcall.cases import Expect, ToolCase, WantedCall
from evalsvc.suites.toolcall.matchers import Matcher, matches
from evalsvc.suites.toolcall.parsers import FORMATS, NATIVE
from evalsvc.suites.toolcall.parsers import native as own_list
from evalsvc.suites.toolcall.scoring import matching

FOLDER = "folder"  # key of a run's resolved experiment: where its relative paths begin
KINDS: dict[str, type[Case]] = {"toolcall": ToolCase, "formats": FormatCase, "prompts": OwnCase}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One thing that is expected, and what each answer has in its place.

    Attributes:
        what: A call's function or argument, or a constraint.
        expected: What is right.
        said: What each answer has there; None where it has nothing.
        right: Whether that is right; None where it is not known.
    """

    what: str
    expected: str
    said: tuple[str | None, ...]
    right: tuple[bool | None, ...]


def case_of(resolved: Mapping[str, Any], suite: str, item_id: str, item_hash: str) -> Case:
    """The case of an item, as it was asked.

    Args:
        resolved: The run's experiment, as it is stored.
        suite: The suite's name.
        item_id: The item's.
        item_hash: As it is stored.

    Raises:
        EvidenceError: No case file of it is known, there, readable, or still the one that was asked.
    """
    found = [spec for spec in resolved.get("suites", ()) if isinstance(spec, dict) and spec.get("name") == suite]
    kind = KINDS.get(str(found[0].get("kind"))) if found else None
    if kind is None:
        raise EvidenceError(
            "what is right of this item was not stored: its run is of an earlier version, or its files do not say it"
        )
    folder, cases = resolved.get(FOLDER), found[0].get("cases")
    if not isinstance(folder, str) or not isinstance(cases, str):
        raise EvidenceError("where its case file lies was not stored; a new run stores it")
    path = Path(folder) / cases
    try:
        rows = read_rows(path, kind)
    except EvalsvcError as error:
        raise EvidenceError(f"what is right cannot be read: {error}") from error
    case = next((case for _, case in rows if case.id == item_id), None)
    if case is None or content_hash(case.model_dump(exclude=UNSCORED)) != item_hash:
        what = "no longer has this item" if case is None else "has changed since this item was asked"
        raise EvidenceError(f"{path} {what}, so it does not say what was right")
    return case


def compared(case: Case, form: str, answers: Sequence[Sequence[str]]) -> list[Compared]:
    """What a case expects, beside several arms' answers.

    Args:
        case: As `case_of` returns it.
        form: How calls are written (the item's filter).
        answers: Of each arm its answers as they are stored, turn by turn.
    """
    if isinstance(case, ToolCase):
        return [
            row for turn, expect in enumerate(case.expectations) for row in _turn(case, form, answers, turn, expect)
        ]
    last = [read_text(said[-1])[0] if said else "" for said in answers]
    return _constraints(case, last) if isinstance(case, Verifiable) else []


def _turn(case: ToolCase, form: str, answers: Sequence[Sequence[str]], turn: int, expect: Expect) -> list[Compared]:
    prefix = f"turn {turn + 1}: " if case.turns else ""
    parsed = [_parsed(said[turn], case, form) if turn < len(said) else None for said in answers]
    if not expect.wanted:
        what, wanted = ("question", expect.ask_back) if expect.no_call is None else ("answer", expect.no_call)
        words = "no call" if wanted is True else f"no call, but {_json(wanted)}"
        said = tuple(None if p is None else "a call" if p.attempted else p.text for p in parsed)
        right = tuple(
            None if p is None or (wanted is not True and not p.attempted) else not p.attempted for p in parsed
        )
        return [Compared(what=f"{prefix}{what}", expected=words, said=said, right=right)]
    placed = [_placed(() if p is None else p.calls, expect.wanted) for p in parsed]
    rows = []
    for number, wanted in enumerate(expect.wanted):
        calls = [found[number] for found in placed]
        name = f"{prefix}call {number + 1}" if len(expect.wanted) > 1 else f"{prefix}call"
        rows.append(
            Compared(
                what=f"{name}: function",
                expected=wanted.name,
                said=tuple(None if call is None else call.name for call in calls),
                right=tuple(call is not None and call.name == wanted.name for call in calls),
            )
        )
        rows += _arguments(name, wanted, calls)
    extra = tuple(len(() if p is None else p.calls) - len(expect.wanted) for p in parsed)
    if any(count > 0 for count in extra):
        said = tuple(f"{count} more" if count > 0 else None for count in extra)
        right = tuple(count <= 0 for count in extra)
        rows.append(Compared(what=f"{prefix}further calls", expected="none", said=said, right=right))
    if any(p is not None and p.problems for p in parsed):
        problems = tuple(None if p is None or not p.problems else "; ".join(p.problems) for p in parsed)
        right = tuple(None if p is None else not p.problems for p in parsed)
        rows.append(Compared(what=f"{prefix}well-formed", expected="yes", said=problems, right=right))
    return rows


def _parsed(answer: str, case: ToolCase, form: str) -> Parsed:
    text, listed = read_text(answer)
    if form == NATIVE:
        return own_list.read(listed, text, lenient=False)
    return FORMATS[form].parse(text, case.schemas, lenient=False)


def _placed(calls: Sequence[Call], wanted: Sequence[WantedCall]) -> list[Call | None]:
    """For each expected call the one that stands for it: the right one, else one of its name, else any that is left."""
    right = matching(calls, wanted)  # expected place -> place of a right call
    left = [i for i in range(len(calls)) if i not in right.values()]
    placed: list[Call | None] = []
    for number, one in enumerate(wanted):
        place = right.get(number)
        if place is None:
            place = next((i for i in left if calls[i].name == one.name), left[0] if left else None)
            left = [i for i in left if i != place]
        placed.append(None if place is None else calls[place])
    return placed


def _arguments(name: str, wanted: WantedCall, calls: Sequence[Call | None]) -> list[Compared]:
    held = [{} if call is None else call.arguments for call in calls]
    rows = []
    for key in dict.fromkeys((*wanted.arguments, *(key for found in held for key in found))):
        matcher = wanted.arguments.get(key)
        rows.append(
            Compared(
                what=f"{name}: {key}",
                expected="no such argument" if matcher is None else describe(matcher),
                said=tuple(_json(found[key]) if key in found else None for found in held),
                right=tuple(None if call is None else _right(call.arguments, key, matcher) for call in calls),
            )
        )
    return rows


def _right(arguments: Mapping[str, Any], key: str, matcher: Matcher | None) -> bool:
    if key not in arguments:
        return matcher is None or matcher.optional
    return matcher is not None and matches(arguments[key], matcher)


def describe(matcher: Matcher) -> str:
    """What a matcher takes, as its case file says it; a plain value stands for itself."""
    if matcher.way == "exact" and not matcher.optional:
        return _json(matcher.exact)
    return _json(matcher.model_dump(exclude_unset=True))


def _constraints(case: Verifiable, answers: Sequence[str]) -> list[Compared]:
    asked = [*([case.check] if case.check is not None else []), *case.constraints]
    errors = [followed(text, case).strict for text in answers]
    rows = []
    for number, one in enumerate(asked):
        program = number == 0 and case.check is not None and case.check.command is not None
        broken = [None if program else found[number] for found in errors]
        rows.append(
            Compared(
                what="check" if number == 0 and case.check is not None else str(getattr(one, "kind", "")),
                expected=_json(one.model_dump(exclude_none=True, exclude_defaults=True)),
                said=tuple("judged by a program, which is not run here" if program else error for error in broken),
                right=tuple(None if program else error is None for error in broken),
            )
        )
    return rows


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
