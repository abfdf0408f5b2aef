"""What the commands share: options, JSON on stdout, text that is never anything but text."""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from evalsvc.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from evalsvc.store.records import ArmRecord
    from evalsvc.store.session import Store

DEFAULT_DB = "results/evalsvc.sqlite"
DEFAULT_JOBS = "jobs.yaml"
ADDRESS_HELP = "RUN:ARM, @NAME of a promoted baseline, or ARM of its latest finished run."
TOGETHER_HELP = (
    "RUN:ARM, @NAME of a promoted baseline, or ARM; ARMs alone: of the latest finished run that has them all."
)

Db = Annotated[
    str, typer.Option("--db", envvar="EVALSVC_DB", metavar="PATH", help="Database of the runs.", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Jobs = Annotated[
    str, typer.Option("--jobs", envvar="EVALSVC_JOBS", metavar="FILE", help="Jobs file (YAML).", show_envvar=True)
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Run code that files of yours name: `!function` and `class` of tasks, `command`."
    ),
]
PolicyFile = Annotated[str, typer.Option("--policy", metavar="FILE", help="Policy file (YAML).")]


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey: control and direction characters become `\\x1b`-like escapes."""
    return "".join(
        character if character == "\n" or unicodedata.category(character)[0] != "C" else _escaped(character)
        for character in text
    )


def one_line(text: str) -> str:
    """`plain` text on one line."""
    return plain(" ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def print_json(document: Any) -> None:
    """Prints one JSON document: ASCII, so that no stored character reaches a terminal or breaks a line."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def error_document(kind: str, message: str, exit_code: int) -> dict[str, Any]:
    """What stands on stdout in place of a result under --json."""
    return {"schema": "evalsvc.error/1", "error": {"kind": kind, "message": message}, "exit_code": exit_code}


def refuse_unwritable(*paths: Path | None, keep: Sequence[str]) -> None:
    """Refuses before anything is decided what could not be written after it.

    Args:
        paths: Files that will be written.
        keep: The database and other files that are read, which none of them may be.

    Raises:
        ConfigError: A folder that is missing, a path that is one, a file that is read, or one file twice.
    """
    taken = {Path(name.removeprefix("sqlite:///")).resolve(): "read" for name in keep}
    for path in filter(None, paths):
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: no file can be written there; name one in a folder that exists")
        if (what := taken.get(path.resolve())) is not None:
            raise ConfigError(f"{path}: is what is {what}, and would be lost; name another file")
        if path.is_file() or not path.exists():  # `/dev/null` takes everything
            taken[path.resolve()] = "written already"


def refuse_existing(path: Path | None, *, unless: str) -> None:
    """Refuses a file that is there already; what is no plain file, such as `/dev/stdout`, is nobody's to lose.

    Raises:
        ConfigError: It is; names what would write it all the same.
    """
    if path is not None and path.is_file():
        raise ConfigError(f"{path}: is there already, and nothing was written; {unless}, or name another file")


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file that takes a path's place once it is whole: until then, and where it fails, what was there stays.

    What is no plain file, such as `/dev/stdout`, is written as it is, and so is a file in a folder that is read-only.

    Raises:
        ConfigError: It cannot be written.
    """
    target = path.resolve()
    beside = target.with_name(f".evalsvc-{os.getpid()}.part")
    plain = (target.is_file() or not target.exists()) and os.access(target.parent, os.W_OK)
    try:
        with (beside if plain else path).open("w", encoding="utf-8", newline="") as file:
            yield file
        if plain:
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if plain:
            beside.unlink(missing_ok=True)


def write_file(path: Path, text: str) -> None:
    """Writes a file, whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    with replacing(path) as file:
        file.write(text)


def stdout_console() -> "Console":
    """Where tables go. Nothing that is printed is read as markup, emoji or a number to be coloured."""
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit 1, which says REGRESSED

    return Stdout(markup=False, emoji=False, highlight=False)


def note(message: str) -> None:
    """One line to stderr, beside the result."""
    print(one_line(message), file=sys.stderr)


def named_arms(store: "Store", *addresses: str) -> tuple["ArmRecord", ...]:
    """The arms of several addresses; says of which run they are where several could be meant.

    Raises:
        ConfigError: As `store.addresses.resolve_arms`.
    """
    from evalsvc.store.addresses import resolve_arms

    named = resolve_arms(store, addresses)
    if named.shared:
        note(named.shared)
    return named.arms
