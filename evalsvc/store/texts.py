"""Texts as they are stored: what no database can hold is escaped, what is long is compressed; nobody else notices."""

import zlib
from typing import Any

from sqlalchemy import JSON, Dialect, Text
from sqlalchemy.types import TypeDecorator

PACKED_FROM = 512  # characters; shorter ones gain little
_LEVEL = 3  # 6 packs some percent better and takes twice as long


def storable_text(text: str, *, null_bytes: bool = True) -> str:
    r"""Text as it is stored: a lone surrogate, which UTF-8 cannot hold, becomes its visible escape (`\udc80`).

    Everything else, line separators included, is stored as it came.

    Args:
        text: Any.
        null_bytes: Whether the database holds them (SQLite does, PostgreSQL does not); else they become `\x00`.
    """
    if not null_bytes and "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def pack(text: str) -> str | bytes:
    """A long text as zlib's bytes, a short one as it is."""
    if len(text) < PACKED_FROM:
        return text
    return zlib.compress(text.encode("utf-8"), _LEVEL)


def unpack(stored: str | bytes) -> str:
    """The text that was packed."""
    return zlib.decompress(stored).decode("utf-8") if isinstance(stored, bytes) else stored


class PackedText(TypeDecorator[str]):
    """A text that SQLite holds compressed once it is long; PostgreSQL compresses long texts by itself."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value if value is None or dialect.name != "sqlite" else pack(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else unpack(value)


class PackedJSON(TypeDecorator[Any]):
    """The same of a JSON document."""

    impl = JSON
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        to_text = super().bind_processor(dialect)
        if dialect.name != "sqlite" or to_text is None:
            return to_text
        return lambda value: pack(to_text(value))

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        from_text = super().result_processor(dialect, coltype)
        if dialect.name != "sqlite" or from_text is None:
            return from_text
        return lambda value: from_text(None if value is None else unpack(value))
