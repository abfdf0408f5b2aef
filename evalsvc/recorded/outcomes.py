"""Tables of item and correctness: one table an arm, or one table with a column for each arm."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError
from evalsvc.questions import hash_of
from evalsvc.recorded.declared import coverage
from evalsvc.recorded.rows import read_rows
from evalsvc.store.records import NewSample, NewScore

METRIC, FILTER = "correct", "none"
_ABOUT_ITEM = ("item", "suite", "family", "cluster", "repeat")
_SETTINGS = hash_of(["recorded"])
COLUMNS = (*_ABOUT_ITEM, "correct", "answer", "error")
_NO_VALUE = ("", "nan", "na", "n/a", "none", "null", "error")
_WORDS = {"true": 1.0, "false": 0.0}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Line:
    """Where a row stands, for sentences about it."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def read_arm(paths: Sequence[Path], suite: str, scored_by: str) -> list[NewSample]:
    """The samples of one arm from tables with a column `correct`.

    Args:
        paths: Tables; an item may stand in one of them.
        suite: For rows that name none.
        scored_by: How answers came about, `unknown` where nobody says.

    Raises:
        ConfigError: A column, a cell or a file that cannot be used, or an item twice; names file and line.
    """
    return once(
        (line, _sample(line, row, row.get("correct"), suite, scored_by))
        for path in paths
        for line, row in checked(path, _check_arm_columns, _absent_in_arm)
    )


def read_table(path: Path, suite: str, scored_by: str) -> dict[str, list[NewSample]]:
    """The samples of several arms, in the order of their columns; arguments and errors as `read_arm`."""
    found: dict[str, list[tuple[Line, NewSample]]] = {}
    for line, row in checked(path, _check_table_columns, lambda row: ()):
        for arm in (name for name in row if name not in _ABOUT_ITEM):
            found.setdefault(arm, []).append((line, _sample(line, row, row[arm], suite, scored_by)))
    return {arm: once(samples) for arm, samples in found.items()}


def value_of(cell: Any) -> float | None:
    """A cell's proportion; None where it holds none (empty, NaN, null, `error`).

    Raises:
        ValueError: Anything else; the message says what is accepted.
    """
    if isinstance(cell, str):
        text = cell.strip().lower()
        if text in _NO_VALUE:
            return None
        value = _WORDS.get(text, float(text) if _NUMBER.fullmatch(text) else math.inf)
    elif cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    else:
        value = float(cell) if isinstance(cell, float) or cell in (0, 1) else math.inf
    if not 0 <= value <= 1:
        raise ValueError("is neither 0, 1, true, false nor a score from 0 to 1 (empty, NaN and 'error' mean no answer)")
    return value


def checked(
    path: Path,
    check: Callable[[Line, Sequence[str], Sequence[str]], None],
    may_lack: Callable[[Mapping[str, Any]], Sequence[str]],
) -> Iterator[tuple[Line, Mapping[str, Any]]]:
    """A table's rows, all with the columns of the first, but for those that a row may lack.

    Args:
        path: The table.
        check: Looks at the first row's columns, and at those that it may lack.
        may_lack: What a row may lack.

    Raises:
        ConfigError: Naming file and line.
    """
    columns: set[str] | None = None
    for number, row in read_rows(path):
        line = Line(path, number)
        given = {*row, *may_lack(row)}
        if columns is None:
            columns = given
            check(line, list(row), may_lack(row))
        elif columns != given:
            odd = sorted(columns ^ given)[0]
            raise ConfigError(f"{line}: column '{odd}' is not in every row; give all rows the same columns")
        yield line, row
    if columns is None:
        raise ConfigError(f"{path}: holds no rows")


def _absent_in_arm(row: Mapping[str, Any]) -> Sequence[str]:
    """What a row of JSON may leave out: an answer, an error, and with an error its correctness."""
    return ("answer", "error", *(["correct"] if row.get("error") else []))


def _check_arm_columns(line: Line, columns: Sequence[str], absent: Sequence[str]) -> None:
    missing = [name for name in ("item", "correct") if name not in (*columns, *absent)]
    unknown = [name for name in columns if name not in COLUMNS]
    if missing:
        near = get_close_matches(missing[0], unknown, n=1)
        hint = f"; is it '{near[0]}'?" if near else ""
        raw = {"tool_calls", "finish_reason"} & set(columns) and missing == ["correct"]
        hint = hint or ("; raw answers are scored by the cases that they answer: --cases FILE" if raw else "")
        hint = hint or ("; for a column an arm use --table" if missing == ["correct"] and unknown else "")
        raise ConfigError(f"{line.path}: has no column '{missing[0]}', only {', '.join(columns)}{hint}")
    if unknown:
        raise ConfigError(f"{line.path}: unknown column '{unknown[0]}'; known: {', '.join(COLUMNS)}")


def _check_table_columns(line: Line, columns: Sequence[str], _: Sequence[str]) -> None:
    if "item" not in columns:
        raise ConfigError(f"{line.path}: has no column 'item', only {', '.join(columns)}")
    mixed = [name for name in ("correct", "answer", "error") if name in columns]
    if mixed:
        raise ConfigError(
            f"{line.path}: column '{mixed[0]}' belongs to a table of one arm (--arm NAME={line.path}); "
            f"in --table every column beside {', '.join(_ABOUT_ITEM)} is an arm"
        )
    if not set(columns) - set(_ABOUT_ITEM):
        raise ConfigError(f"{line.path}: has no column of an arm, only {', '.join(columns)}")


def once(samples: Iterable[tuple[Line, NewSample]]) -> list[NewSample]:
    """The samples; raises ConfigError where an item stands twice."""
    seen: dict[tuple[str, str, int], Line] = {}
    kept = []
    for line, sample in samples:
        key = (sample.suite, sample.item_id, sample.repeat)
        if key in seen:
            again = f" (repeat {sample.repeat})" if sample.repeat else ""
            raise ConfigError(
                f"{line}: item '{sample.item_id}' of suite '{sample.suite}'{again} stands already in {seen[key]}; "
                "a column `repeat` tells several answers to one item apart"
            )
        seen[key] = line
        kept.append(sample)
    return kept


def _sample(line: Line, row: Mapping[str, Any], cell: Any, suite: str, scored_by: str) -> NewSample:
    try:
        value = value_of(cell)
    except ValueError as error:
        raise ConfigError(f"{line}: {str(cell)[:60]!r} {error}") from None
    item_id = text_of(line, row, "item")
    if not item_id:
        raise ConfigError(f"{line}: the item has no name")
    suite = text_of(line, row, "suite") or suite
    message = text_of(line, row, "error")
    answer = text_of(line, row, "answer") if row.get("answer") is not None else None
    about = {"suite": suite, "item_id": item_id, "family": text_of(line, row, "family") or suite}
    about |= {"cluster": text_of(line, row, "cluster"), "metric": METRIC, "filter": FILTER, "chance": 0.0}
    scored = value is not None and not message
    return NewSample(
        **about,
        item_hash=hash_of(["recorded", about, scored_by]),
        scored_by=scored_by,
        request_hash=hash_of(["recorded", suite, item_id]),
        settings_hash=_SETTINGS,
        rendered_hash=None,
        repeat=repeat_of(line, row),
        status="scored" if scored else "error",
        error_class=None if scored else "recorded",
        error_message=None if scored else message or "the table holds no value",
        answer=answer or "",
        **coverage(scored_by, None if answer is None else [answer]),
        scoring_version="recorded",
        scores=(NewScore(metric=METRIC, filter=FILTER, value=value),) if scored and value is not None else (),
    )


def text_of(line: Line, row: Mapping[str, Any], column: str) -> str:
    """A cell as text; raises ConfigError for one that is neither text nor a whole number."""
    value = row.get(column)
    if value is None:
        return ""
    if isinstance(value, bool | float | list | dict) and column != "answer":
        raise ConfigError(f"{line}: {column} {str(value)[:60]!r} is no text and no whole number")
    return str(value) if column == "answer" else str(value).strip()


def repeat_of(line: Line, row: Mapping[str, Any]) -> int:
    """Which repeat a row is, from 0; raises ConfigError for another text."""
    text = text_of(line, row, "repeat")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{line}: repeat '{text[:60]}' is no whole number from 0 on")
    return int(text or 0)
