"""Where two answers part: the first token and the first character that differ, and the fields of JSON answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from evalsvc.dashboards.reads_flips import Shown
from evalsvc.store.records import Turn

PARSED_CHARACTERS = 100_000  # a longer answer is not parsed for a table of its fields


@dataclass(frozen=True)
class Parting:
    """The first difference of two samples' answers.

    Attributes:
        turn: The turn that it is in, from 0.
        texts: Baseline's and candidate's answer in that turn.
        characters: Equal characters before it; None where the texts are equal in every turn.
        token: Equal tokens before it in that turn; None where tokens are unknown or equal.
        ids: Baseline's and candidate's token there, None after an answer's end.
        places: That token among all that baseline and candidate generated, from 0.
    """

    turn: int
    texts: tuple[str, str]
    characters: int | None
    token: int | None = None
    ids: tuple[int | None, int | None] = (None, None)
    places: tuple[int, int] = (0, 0)


def parting(ours: Shown, theirs: Shown) -> Parting:
    """The first difference: in the first turn whose texts differ, else in the first one whose tokens do."""
    texts = list(zip_longest(ours.answers, theirs.answers, fillvalue=""))
    none = Turn(None, None, ())
    tokens = [(a.token_ids, b.token_ids) for a, b in zip_longest(ours.turns, theirs.turns, fillvalue=none)]
    turn = _first(texts)
    turn = turn if turn is not None else _first(tokens) or 0
    found = Parting(turn, texts[turn], first_difference(*texts[turn]))
    known = [each.token_ids for shown in (ours, theirs) for each in shown.turns[: turn + 1]]
    if not ours.turns or not theirs.turns or not all(known):
        return found
    before = [sum(len(pair[side]) for pair in tokens[:turn]) for side in (0, 1)]
    for index, ids in enumerate(zip_longest(*tokens[turn])):
        if ids[0] != ids[1]:
            return replace(found, token=index, ids=ids, places=(before[0] + index, before[1] + index))
    return found


def _first(pairs: Sequence[tuple[Any, Any]]) -> int | None:
    """Which pair is the first of unequal ones."""
    return next((index for index, (one, other) in enumerate(pairs) if one != other), None)


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
