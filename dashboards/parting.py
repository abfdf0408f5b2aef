"""Where two answers part: the first token and the first character that differ, and the fields of JSON answers."""

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from evalsvc.dashboards.reads_flips import Shown

PARSED_CHARACTERS = 100_000  # a longer answer is not parsed for a table of its fields


@dataclass(frozen=True)
class Parting:
    """The first difference of two answers.

    Attributes:
        characters: Equal characters before it; None where the texts are equal.
        token: Equal tokens before it; None where tokens are unknown or equal.
        ids: Baseline's and candidate's token there, None after an answer's end.
    """

    characters: int | None
    token: int | None = None
    ids: tuple[int | None, int | None] = (None, None)


def parting(ours: Shown, theirs: Shown) -> Parting:
    """The first difference of two samples' answers, by tokens where both are stored in one turn."""
    characters = first_difference(ours.answer, theirs.answer)
    if len(ours.turns) != 1 or len(theirs.turns) != 1:
        return Parting(characters)
    left, right = ours.turns[0].token_ids, theirs.turns[0].token_ids
    for index, (one, other) in enumerate(zip_longest(left, right)):
        if one != other:
            return Parting(characters, index, (one, other))
    return Parting(characters)


def first_difference(ours: str, theirs: str) -> int | None:
    """Index of the first character that differs; None for equal texts."""
    if ours == theirs:
        return None
    low, high = 0, min(len(ours), len(theirs))
    while low < high:  # a megabyte is compared by halves, not character by character
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ours[:middle] == theirs[:middle] else (low, middle - 1)
    return low


def fields_of(ours: str, theirs: str) -> list[tuple[str, Any, Any]]:
    """Name and both values of every field of two answers that are JSON objects; empty where one is none."""
    left, right = _object(ours), _object(theirs)
    if left is None or right is None:
        return []
    return [(name, left.get(name), right.get(name)) for name in dict.fromkeys((*left, *right))]


def _object(text: str) -> dict[str, Any] | None:
    if len(text) > PARSED_CHARACTERS:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    inner = found.get("arguments")
    return {"name": found.get("name"), **inner} if isinstance(inner, dict) else found
