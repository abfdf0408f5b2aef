"""What can go wrong with a database, each as one sentence with the place and the remedy."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError

from evalsvc.errors import StoreError

AGAIN = "run the same command again"
READ_ONLY = "is read-only here; make the file and its folder writable, or name another database"
_LOCKED = f"is locked by another program; wait for that program or stop it, then {AGAIN}"
_DAMAGED = "is damaged; restore a copy, or name a new file and run again"
_FULL = f"cannot grow, no space is left; free space and {AGAIN} (committed samples are kept)"
# (text in SQLite's message, what happened and what to do); the first match counts.
_SENTENCES = (
    ("database is locked", _LOCKED),
    ("is full", _FULL),
    ("readonly database", READ_ONLY),
    ("read-only file system", READ_ONLY),
    ("is not a database", "is not a SQLite database; name an evalsvc database, or a new file to create one"),
    ("malformed", _DAMAGED),
    ("could not decode to utf-8", _DAMAGED),
    ("unable to open", "cannot be opened; check that the folder exists and that you may read and write in it"),
    ("disk i/o error", "cannot be read or written (disk I/O error); check the disk and its free space"),
    ("no such table", "lacks a table of evalsvc; name an evalsvc database, or a new file to create one"),
    ("connection refused", "cannot be reached; check host and port, and that the server runs"),
    ("name or service not known", "its host is not known; check the URL"),
    ("no such file or directory\n\tis the server running", "cannot be reached; check that the server runs"),
    ("connection timeout expired", "did not answer; check host and port"),
    ("password authentication failed", "refuses this user and password; give both in the URL, or in a password file"),
    ("no password supplied", "asks for a password; give it in the URL, or in a password file"),
    ("lock timeout", _LOCKED),
    ("no space left", f"cannot grow, no space is left; free space there and {AGAIN}"),
    ("read-only transaction", "is read-only here; connect to the primary server"),
    ("permission denied", "refuses this user; grant it the database's tables, or give another user in the URL"),
    ("server closed the connection", f"closed the connection; check the server, then {AGAIN}"),
    ("out of range", "holds no number as large as was asked for"),
    ("no such column", "lacks a column of evalsvc; it was written by another version, name a new file"),
)


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Turns what SQLAlchemy, sqlite3 and the file system raise into a `StoreError` about the database `name`.

    Args:
        name: The path, or the URL without its password, as it may be shown to a person.
    """
    try:
        yield
    except IntegrityError as error:
        raise StoreError(f"{name}: the row contradicts one already stored ({error.orig})") from error
    except StatementError as error:
        raise StoreError(f"{name}: {_sentence(error.orig)}") from error
    except OverflowError as error:
        raise StoreError(f"{name}: holds no number as large as was asked for") from error
    except (JSONDecodeError, UnicodeDecodeError, zlib.error) as error:  # of a value, in pages that SQLite finds whole
        raise StoreError(f"{name}: {_DAMAGED}") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StoreError(f"{name}: {_sentence(error)}") from error


def _sentence(error: BaseException | None) -> str:
    """The first line of an error, or the sentence that explains it."""
    text = str(error)
    lowered = text.lower()
    if getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_SHMSIZE":  # the file beside it, by which WAL is shared
        return _FULL
    if isinstance(error, PermissionError):
        return "may not be written by you; make it writable, or name another database"
    if "not json compliant" in lowered:  # "out of range float values are ...": not what a database says of a number
        return f"refused a number that is not finite (NaN or infinity): {text.splitlines()[0]}"
    for needle, sentence in _SENTENCES:
        if needle in lowered:
            return sentence
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return text.splitlines()[0] if text else type(error).__name__
