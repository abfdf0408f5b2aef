"""What the suites of case files share: their items and the one request of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from evalsvc.engine.requests import Answer, GenerateRequest
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Item
from evalsvc.suites.items import content_hash, take
from evalsvc.suites.prompts import UNSCORED, Case, prefixes_of, read_rows, request_for

CaseT = TypeVar("CaseT", bound=Case)


class CaseSuite(Generic[CaseT]):
    """Cases of one file, scored by the metric `correct`. A kind of suite adds `scoring_version` and `score`."""

    def __init__(
        self,
        name: str,
        path: Path,
        kind: type[CaseT],
        limit: int | None = None,
        levels: Sequence[str] | None = None,
    ) -> None:
        """Reads and checks the file, and of it what has one of the levels.

        Raises:
            ConfigError: Naming file and line, or a level that no case has.
        """
        self.name = name
        rows = of_levels(path, read_rows(path, kind), levels)
        for number, case in rows:
            self.check(case, f"{path}:{number}")
        self._prefixes = prefixes_of(path, rows)
        self._items = take([self._item(case) for _, case in rows], limit)

    def check(self, case: CaseT, where: str) -> None:
        """Refuses a case that this suite cannot score."""

    def _item(self, case: CaseT) -> Item:
        return Item(
            id=case.id,
            family=case.family or self.name,
            cluster=case.prefix or "",
            sha256=content_hash(case.model_dump(exclude=UNSCORED)),
            metric="correct",
            payload=case,
        )

    def items(self) -> Sequence[Item]:
        """All items, in the order of the file."""
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> GenerateRequest | None:
        """The case's one request."""
        return None if answers else request_for(item, item.payload, self._prefixes)


def of_levels(path: Path, rows: list[tuple[int, CaseT]], levels: Sequence[str] | None) -> list[tuple[int, CaseT]]:
    """The rows whose case has one of the levels; all of them where none is asked for."""
    if levels is None:
        return rows
    known = sorted({case.level for _, case in rows if case.level is not None})
    strange = [level for level in levels if level not in known]
    if strange:
        raise ConfigError(f"{path}: no case has the level {strange[0]!r}; there are: {', '.join(known) or 'none'}")
    return [row for row in rows if row[1].level in levels]
