"""What is wrong with a file of format cases, found without a model."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Literal

from evalsvc.errors import ConfigError
from evalsvc.suites.findings import Found
from evalsvc.suites.formats.base import Constraint, Counted
from evalsvc.suites.formats.case import FormatSuite, Verifiable, followed
from evalsvc.suites.formats.wording import Exclude, Frequency, Letter
from evalsvc.suites.items import content_hash
from evalsvc.suites.own import PromptSuite
from evalsvc.suites.prompts import Row, read_rows

WRONG = ("No.", "wrong, Wrong and\n\nWRONG! " * 400)  # short and long: few constraints are met by both


class _AnyRow(Row):
    """A row of any case file."""

    model_config = Row.model_config | {"extra": "allow"}


def kind_of(path: Path) -> Literal["toolcall", "formats", "prompts"]:
    """What kind of suite a case file is, by its first case: tools, something to verify, or neither.

    Raises:
        ConfigError: It is no case file.
    """
    _, first = read_rows(path, _AnyRow)[0]
    keys = set(first.model_extra or ())
    if {"question", "function"} <= keys:
        raise ConfigError(f"{path}: is a file of BFCL; `evalsvc suite import bfcl {path} --out FILE` makes cases of it")
    if {"tools", "expect"} & keys:
        return "toolcall"
    return "formats" if {"check", "constraints"} & keys else "prompts"


def _suite(path: Path) -> FormatSuite:
    """Format cases, or prompts of one's own where the first case has nothing to verify. No command of theirs is run."""
    return (PromptSuite if kind_of(path) == "prompts" else FormatSuite)(path.stem, path, allow_code=True)


def validate(path: Path) -> Found:
    """Scores the right answer, an empty one and wrong ones of every case, and names cases that ask the same.

    Prompts of one's own without anything to verify, and cases that a command checks, are only read and rendered.

    Raises:
        ConfigError: The file cannot be read as cases.
    """
    suite = _suite(path)
    items = suite.items()
    found = Found(len(items))
    prompts: dict[str, list[str]] = defaultdict(list)
    for item in items:
        case: Verifiable = item.payload
        request = suite.next_request(item, ())
        asked = [request.prompt if request else None, case.model_dump(include={"check", "constraints"})]
        prompts[content_hash(asked)].append(item.id)
        if not case.verified or (case.check is not None and case.check.command is not None):
            found.unproven += 1
            continue
        right = gold(case)
        found.unproven += right is None
        found.add(item.id, list(_problems(case, right)), case.faults)
    for same in prompts.values():
        if len(same) > 1:
            found.problems.append(f"{same[0]}: asks the same as {', '.join(same[1:])}")
    return found


def gold(case: Verifiable) -> str | None:
    """A right answer: the case's example, or what its check equals; None where neither is there."""
    if case.example is not None or case.check is None:
        return case.example
    return case.check.text_equals if case.check.json_equals is None else json.dumps(case.check.json_equals)


def _problems(case: Verifiable, right: str | None) -> Iterator[str]:
    if right is not None:
        broken = [error for error in followed(right, case).strict if error is not None]
        if broken:
            yield f"the right answer scores 0 ({', '.join(broken)}): {right!r:.200}"
    if _correct("", case):
        yield "an empty answer scores 1"
    if all(_correct(text, case) for text in (*WRONG, *_named(case))):
        yield "a wrong answer scores 1, be it short or long"
    yield from clashes(case)


def _named(case: Verifiable) -> Iterator[str]:
    """Nothing but the words and letters that constraints count or exclude, often."""
    words: list[str] = []
    for one in case.constraints:
        match one:
            case Exclude():
                words += one.words
            case Frequency():
                words.append(one.word)
            case Letter():
                words.append(one.letter)
            case _:
                pass
    if words:
        yield f"{' '.join(words)} " * 400


def clashes(case: Verifiable) -> Iterator[str]:
    """Constraints that say the same twice, and those that no answer can meet together."""
    for one, other in combinations(case.constraints, 2):
        if one == other:
            yield f"the constraint {one.kind} is there twice"
        elif _apart(one, other):
            yield f"no answer meets both constraints {one.kind}"


def _correct(text: str, case: Verifiable) -> bool:
    return not any(followed(text, case).strict)


def _apart(one: Constraint, other: Constraint) -> bool:
    """Whether two bounds of one count leave no number."""
    if not isinstance(one, Counted) or not isinstance(other, Counted):
        return False
    bounds = {"min", "max"}
    if type(one) is not type(other) or one.model_dump(exclude=bounds) != other.model_dump(exclude=bounds):
        return False
    least = max(c.min or 0 for c in (one, other))
    return any(c.max is not None and c.max < least for c in (one, other))
