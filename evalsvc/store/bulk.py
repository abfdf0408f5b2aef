"""Many rows at once, in the fastest words of each database."""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import encoder
from typing import Any

from sqlalchemy import JSON, Boolean, ColumnElement, Connection, Table, func, literal, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

from evalsvc.store.texts import PACKED_FROM, PackedJSON, PackedText, pack

_MANY = 500
_PLAIN = json.JSONEncoder(allow_nan=False)
_make = getattr(encoder, "c_make_encoder", None)
# `json.dumps` sets its encoder up for every value; this one is set up once
_parts: Callable[[Any, int], Iterable[str]] | None = _make and _make(
    *(None, _PLAIN.default, encoder.encode_basestring_ascii, None),
    *(_PLAIN.key_separator, _PLAIN.item_separator, False, False, False),
)


def dumps(value: Any) -> str:
    """JSON as `json.dumps(value, allow_nan=False)` writes it.

    Raises:
        StatementError: A value that is no JSON; a driver would let it through as it is.
    """
    try:
        return _PLAIN.encode(value) if _parts is None else "".join(_parts(value, 0))
    except (TypeError, ValueError) as error:
        raise StatementError(str(error), "", None, error) from error


@contextmanager
def collecting_later(rows: int) -> Iterator[None]:
    """Python's cycle collector waits while many rows are made: it would look through all of them, and they hold none.

    Of 5,000 samples at once it takes a fifth of the time.
    """
    paused = rows >= _MANY and gc.isenabled()
    if paused:
        gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def insert_columns(connection: Connection, table: Table, columns: Mapping[str, Sequence[Any]]) -> None:
    """Inserts rows that are given by column, all of one length.

    SQLite's driver is handed plain tuples: going through SQLAlchemy's own executemany takes three times as long.
    """
    if not any(columns.values()):
        return
    if connection.dialect.name == "postgresql":
        _copy_in(connection, table, columns)
        return
    processed = [_as_bound(connection, table.c[name].type, values) for name, values in columns.items()]
    quoted, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    sql = f'INSERT INTO "{table.name}" ({quoted}) VALUES ({marks})'
    connection.exec_driver_sql(sql, list(zip(*processed, strict=True)))


def _copy_in(connection: Connection, table: Table, columns: Mapping[str, Sequence[Any]]) -> None:
    """COPY, which takes rows several times as fast as INSERT does.

    Raises:
        IntegrityError: A row contradicts one that is stored.
        DBAPIError: Whatever else the server says.
    """
    import psycopg

    quoted = ", ".join(f'"{name}"' for name in columns)
    sql = f'COPY "{table.name}" ({quoted}) FROM STDIN'
    json_names = {name for name in columns if isinstance(table.c[name].type, JSON | PackedJSON)}
    values = (map(dumps, held) if name in json_names else held for name, held in columns.items())
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    try:
        with driver.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for row in zip(*values, strict=True):
                copy.write_row(row)
    except psycopg.IntegrityError as error:
        raise IntegrityError(sql, None, error) from error
    except psycopg.Error as error:
        raise DBAPIError(sql, None, error) from error


def _as_bound(connection: Connection, kind: Any, values: Sequence[Any]) -> Iterable[Any]:
    """A column's values as SQLite's driver takes them: what SQLAlchemy would hand it, without a call for each value."""
    if type(kind) is PackedText:
        return [value if value is None or len(value) < PACKED_FROM else pack(value) for value in values]
    if type(kind) is JSON:
        return map(dumps, values)
    if isinstance(kind, Boolean):
        return values  # the driver stores True and False as 1 and 0
    process = kind.dialect_impl(connection.dialect).bind_processor(connection.dialect)
    return values if process is None else map(process, values)


def insert_with_ids(connection: Connection, table: Table, columns: Mapping[str, Sequence[Any]]) -> Sequence[int]:
    """The same inside a writing transaction, of a table whose key is `id`; gives the ids, in order."""
    count = len(next(iter(columns.values())))
    if not count:
        return []
    if connection.dialect.name == "postgresql":
        drawn = text("SELECT nextval(pg_get_serial_sequence(:name, 'id')) FROM generate_series(1, :count)")
        ids = list(connection.execute(drawn, {"name": table.name, "count": count}).scalars())
        _copy_in(connection, table, {"id": ids, **columns})
        return ids
    # the ids that SQLite would give itself; nobody else writes until this transaction ends
    first = (connection.scalar(select(func.max(table.c.id))) or 0) + 1
    ids = range(first, first + count)
    insert_columns(connection, table, {"id": ids, **columns})
    return ids


def by_row(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The same rows, each as a dict."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def among(connection: Connection, column: Any, values: Iterable[Any]) -> ColumnElement[bool]:
    """`column IN values`, of any number of them, as one parameter where the database can."""
    listed = list(values)
    if connection.dialect.name != "sqlite":
        return column.in_(listed)
    each = func.json_each(literal(dumps(listed))).table_valued("value")
    return column.in_(select(each.c.value))
