"""Rows of files that others wrote, each with its line. A file that was not written to its end is refused."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError

_DELIMITERS = (",", "\t", ";")
_LONGEST_CELL = 2**31 - 1  # csv's own limit of 128 KiB is less than some answers


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of a CSV file (`.csv`, `.tsv`, `.txt`) or of a file of JSON objects, one a line (any other name).

    A byte order mark, CRLF and blank lines are no part of a row. A row of JSON ends at a line feed and nowhere else:
    text may hold any other separator.

    Raises:
        ConfigError: Unreadable, not UTF-8, not such a file, or cut off; names file and line.
    """
    return _csv_rows(path) if path.suffix.lower() in (".csv", ".tsv", ".txt") else _json_rows(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _reading(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                whole = line.endswith("\n")
                what = f"is no JSON ({error})" if whole else "is cut off; the file was not written to its end"
                raise ConfigError(f"{path}:{number}: {what}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{number}: is no JSON object with one value a column")
            yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_LONGEST_CELL)
    with _reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(_DELIMITERS, key=first.count)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    what = f"has {len(cells)} cells, the header names {len(header)} columns"
                    raise ConfigError(f"{path}:{reader.line_num}: {what}")
                yield reader.line_num, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ConfigError(f"{path}:{reader.line_num}: is no CSV ({error})") from None


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
    if twice is not None:
        raise ConfigError(f"{path}:1: column '{twice}' stands in the header twice")
    if "" in header:
        raise ConfigError(f"{path}:1: a column has no name; name it, or leave it out (pandas: `index=False`)")
