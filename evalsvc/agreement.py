"""Answers of two arms side by side, right or wrong aside: how many are the same, and where the others part."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

from evalsvc.same_calls import same_calls
from evalsvc.store.records import StoredAnswer
from evalsvc.suites.strict_json import NotJson, parse, same
from evalsvc.verdict.paired import wilson_interval

LEVEL = 0.95


@dataclass(frozen=True)
class Share:
    """A share of answers with its Wilson interval at 95 %, all proportions; None of no answers.

    Attributes:
        count: Answers that agree.
        n: Answers that could.
    """

    count: int
    n: int
    share: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, agree: Sequence[bool]) -> "Share":
        """Of one truth value an answer."""
        count, n = sum(agree), len(agree)
        if not n:
            return cls(0, 0, None, None, None)
        return cls(count, n, count / n, *wilson_interval(count, n, LEVEL))


@dataclass(frozen=True)
class Parting:
    """What two answers have in common before they part: whole characters, words and tokens.

    `tokens` is None where those of an answer are not stored.
    """

    characters: int
    words: int
    tokens: int | None


@dataclass(frozen=True)
class Compared:
    """One prompt's answers in two arms.

    Attributes:
        same_json: Whether both are one JSON value and the same one; None where the baseline's is no object or list.
        same_calls: Whether both make the same calls; None where the baseline's makes none.
        parting: None for the same text.
    """

    baseline: StoredAnswer
    candidate: StoredAnswer
    same_json: bool | None
    same_calls: bool | None
    parting: Parting | None

    @property
    def same_finish(self) -> bool:
        """Whether both ended for the same reason."""
        return self.baseline.finish_reason == self.candidate.finish_reason


@dataclass(frozen=True)
class Agreement:
    """How the answers of a suite, or of one of its families, agree.

    Attributes:
        family: None for the whole suite.
        same_text: Character for character.
        same_json: Of the baseline's answers that are a JSON object or list (a plain tool call is), those of the same
            value.
        same_calls: Of the baseline's answers that call tools, those that make the same calls.
        same_finish: Ended for the same reason.
        parting: Medians over the answers that differ; None where none does, or no tokens are stored.
        length_ratio: Tokens of the candidate's answers over those of the baseline's; None where they are not known.
        unanswered: Prompts without an answer in an arm.
        unequal: Prompts that the arms were not asked alike.
    """

    suite: str
    family: str | None
    same_text: Share
    same_json: Share
    same_calls: Share
    same_finish: Share
    parting: dict[str, float | None]
    length_ratio: float | None
    unanswered: int
    unequal: int

    def to_json(self) -> dict[str, Any]:
        """All figures; shares are proportions."""
        return asdict(self)


@dataclass(frozen=True)
class _Met:
    """A prompt of either arm; `compared` is None where the arms cannot be compared there, `unequal` says how."""

    suite: str
    family: str
    compared: Compared | None
    unequal: bool = False


def compare(
    baseline: Sequence[StoredAnswer], candidate: Sequence[StoredAnswer]
) -> tuple[list[Agreement], list[Compared]]:
    """Compares generated answers of two arms.

    Returns:
        One row a suite, each followed by its families where it has several, and every compared prompt in that order.
    """
    sides = [
        {(a.suite, a.family, a.item_id, a.repeat): a for a in held if a.scored_by == "generation"}
        for held in (baseline, candidate)
    ]
    met = [_meet(sides[0].get(key), sides[1].get(key)) for key in sorted(sides[0].keys() | sides[1].keys())]
    rows = []
    for suite in dict.fromkeys(one.suite for one in met):
        mine = [one for one in met if one.suite == suite]
        rows.append(_summed(suite, None, mine))
        families = list(dict.fromkeys(one.family for one in mine))
        if len(families) > 1:
            rows += [_summed(suite, family, [one for one in mine if one.family == family]) for family in families]
    return rows, [one.compared for one in met if one.compared is not None]


def _meet(ours: StoredAnswer | None, theirs: StoredAnswer | None) -> _Met:
    shown = ours or theirs
    assert shown is not None
    if ours is None or theirs is None or not (ours.status == theirs.status == "scored"):
        return _Met(shown.suite, shown.family, None)
    if (ours.item_hash, ours.request_hash) != (theirs.item_hash, theirs.request_hash):
        return _Met(shown.suite, shown.family, None, unequal=True)
    return _Met(shown.suite, shown.family, _compare(ours, theirs))


def _compare(ours: StoredAnswer, theirs: StoredAnswer) -> Compared:
    parting = None if ours.answer == theirs.answer else _part(ours, theirs)
    alike = _same_json(ours.answer, theirs.answer), same_calls(ours, theirs)
    return Compared(ours, theirs, *alike, parting)


def _same_json(ours: str, theirs: str) -> bool | None:
    try:
        wanted = parse(ours)
    except NotJson:
        return None
    if not isinstance(wanted, dict | list):
        return None  # a number alone is JSON by accident
    try:
        return same(parse(theirs), wanted)
    except NotJson:
        return False


def _part(ours: StoredAnswer, theirs: StoredAnswer) -> Parting:
    tokens = [a.turns[-1].token_ids if a.turns else None for a in (ours, theirs)]
    return Parting(
        characters=_alike(ours.answer, theirs.answer),
        words=_alike(ours.answer.split(), theirs.answer.split()),
        tokens=_alike(*tokens) if None not in tokens else None,  # pyright: ignore[reportArgumentType]
    )


def _alike(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip_longest(ours, theirs))
    return next((i for i, (one, other) in pairs if one != other), len(ours))


def _summed(suite: str, family: str | None, met: Sequence[_Met]) -> Agreement:
    found = [one.compared for one in met if one.compared is not None]
    partings = [one.parting for one in found if one.parting is not None]
    unequal = sum(one.unequal for one in met)
    return Agreement(
        suite=suite,
        family=family,
        same_text=Share.of([one.parting is None for one in found]),
        same_json=Share.of([one.same_json for one in found if one.same_json is not None]),
        same_calls=Share.of([one.same_calls for one in found if one.same_calls is not None]),
        same_finish=Share.of([one.same_finish for one in found]),
        parting={
            "characters": _median([parting.characters for parting in partings]),
            "words": _median([parting.words for parting in partings]),
            "tokens": _median([parting.tokens for parting in partings if parting.tokens is not None]),
        },
        length_ratio=_ratio(found),
        unanswered=len(met) - len(found) - unequal,
        unequal=unequal,
    )


def _median(values: Sequence[int]) -> float | None:
    return float(median(values)) if values else None


def _ratio(found: Sequence[Compared]) -> float | None:
    lengths = [(one.baseline.answer_tokens, one.candidate.answer_tokens) for one in found]
    if not lengths or any(None in pair for pair in lengths):
        return None
    ours, theirs = (sum(column) for column in zip(*lengths, strict=True))  # pyright: ignore[reportArgumentType]
    return theirs / ours if ours else None
