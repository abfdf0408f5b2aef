"""CSV and markdown tables: columns, rows and what separates them."""

import csv
import io
import re
from typing import Literal

from pydantic import Field

from evalsvc.suites.formats.base import Constraint, Counted, unfenced

_RULE = re.compile(r":?-+:?")


class _Table(Constraint):
    """Rows under a header.

    Attributes:
        columns: The header's names, in order.
        width: How many columns, where their names do not matter.
        min_rows, max_rows: Rows below the header.
    """

    columns: list[str] | None = None
    width: int | None = Field(default=None, ge=1)
    min_rows: int = Field(default=1, ge=0)
    max_rows: int | None = Field(default=None, ge=0)

    def rows_error(self, rows: list[list[str]]) -> str | None:
        """`wrong_columns`, `ragged`, `too_few` or `too_many` rows; the first row is the header."""
        header = [name.strip() for name in rows[0]]
        if (self.columns is not None and header != self.columns) or self.width not in (None, len(header)):
            return "wrong_columns"
        if any(len(row) != len(header) for row in rows):
            return "ragged"
        return Counted(kind="rows", min=self.min_rows, max=self.max_rows).outside(len(rows) - 1)


class Csv(_Table):
    """The whole answer is CSV with a header: `not_csv`, `wrong_columns`, `ragged`, `too_few`, `too_many`.

    Attributes:
        delimiter: One character.
        fence: One code fence around all may be there.
    """

    kind: Literal["csv"]
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    fence: bool = False

    def broken(self, text: str) -> str | None:
        """How the answer is no such CSV."""
        said = unfenced(text, "csv") if self.fence else text.strip()
        try:
            rows = list(csv.reader(io.StringIO(said), delimiter=self.delimiter, strict=True))
        except csv.Error:
            return "not_csv"
        if not rows or [] in rows:
            return "not_csv"
        return self.rows_error(rows)


class MarkdownTable(_Table):
    """One markdown table: `no_table`, `extra_text`, `wrong_columns`, `ragged`, `too_few`, `too_many`.

    Attributes:
        around: Whether text may stand before and after it.
    """

    kind: Literal["table"]
    around: bool = False

    def broken(self, text: str) -> str | None:
        """How the answer has no such table."""
        lines = text.strip().split("\n")
        start = next((i for i in range(len(lines) - 1) if _is_rule(lines[i + 1]) and "|" in lines[i]), None)
        if start is None:
            return "no_table"
        end = next((i for i in range(start + 2, len(lines)) if "|" not in lines[i]), len(lines))
        if not self.around and (start > 0 or end < len(lines)):
            return "extra_text"
        rows = [_cells(line) for line in (lines[start], *lines[start + 2 : end])]
        if len(_cells(lines[start + 1])) != len(rows[0]):
            return "ragged"
        return self.rows_error(rows)


def _cells(line: str) -> list[str]:
    """The cells of a line; an escaped bar is text."""
    inner = line.strip().replace("\\|", "\0")
    inner = inner.removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\0", "|") for cell in inner.split("|")]


def _is_rule(line: str) -> bool:
    return "-" in line and all(_RULE.fullmatch(cell) for cell in _cells(line))
