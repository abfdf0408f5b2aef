"""The command line: registers the commands and turns every error into one sentence and an exit code."""

import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword

import typer

from evalsvc import __version__
from evalsvc.cli.common import error_document, one_line, print_json
from evalsvc.errors import EXIT_ERROR, EvalsvcError

INTERRUPTED = 130
TERMINATED = 128 + signal.SIGTERM
_CANNOT_GROW = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_UsageError = typer.BadParameter.__mro__[2]  # click's ClickException, which newer typer versions carry inside
# order of the help page; each module has a function of its name (`_` follows a word of Python's own, or is its hyphen)
COMMANDS = (
    "run",
    "import",
    "rescore",
    "gate",
    "compare",
    "agree",
    "verdict",
    "audit",
    "power",
    "attribute",
    "noise",
    "joint",
    "history",
    "bench-serve",
    "capacity",
    "scheduler",
    "worker",
    "run-due",
    "jobs",
    "ls",
    "show",
    "export",
    "baseline",
    "db",
    "dashboard",
    "suite",
    "init",
    "doctor",
    "model",
)

_HELP = """Accuracy evaluation and regression verdicts for language-model precision plans.

Exit codes: 0 PASS, 1 REGRESSED, 2 usage or error, 3 INCONCLUSIVE, 4 INVALID; 130 Ctrl-C and 143 SIGTERM, no verdict
(worker, scheduler and dashboard run until then, and leave with 0).
"""


def build_app() -> typer.Typer:
    """All commands. Their modules import nothing heavy; what a command needs, it imports when called."""
    app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def options(
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an unexpected error."),
        version: bool = typer.Option(
            False, "--version", is_eager=True, callback=_version, help="Show evalsvc's version; doctor has all others."
        ),
    ) -> None:
        pass

    for name in COMMANDS:
        named = f"{name}_" if iskeyword(name) else name.replace("-", "_")
        if find_spec(f"evalsvc.cli.{named}") is None:
            continue
        module = import_module(f"evalsvc.cli.{named}")
        if isinstance(group := getattr(module, "app", None), typer.Typer):
            app.add_typer(group, name=name)
        else:
            app.command(name)(getattr(module, named))
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"evalsvc {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and leaves with its exit code. Never 1 unless something REGRESSED."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    with _terminable() as signals:
        code = _run(arguments, debug, signals)
    sys.exit(code)


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """SIGTERM is as Ctrl-C until the block ends; gives the list of those that came."""
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:  # who ignores it, or has an answer of his own, keeps that
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(arguments: list[str], debug: bool, signals: list[int]) -> int:
    """One command, every way that it can leave included.

    Args:
        arguments: As typed, without `--debug`.
        debug: Whether that was there.
        signals: Filled with those that were taken for Ctrl-C.
    """
    say = partial(_say, debug=debug, as_json="--json" in arguments)
    try:
        code = build_app()(arguments, prog_name="evalsvc", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # newer typer versions turn Ctrl-C into this code themselves
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except EvalsvcError as error:
        return say(type(error).__name__, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        if signals:
            return say("Interrupted", "interrupted by SIGTERM", TERMINATED, debug=False)
        return say("Interrupted", "interrupted", INTERRUPTED, debug=False)
    except (BrokenPipeError, SystemExit) as left:
        if isinstance(left, SystemExit) and not left.code:  # shell completion leaves so
            return 0
        _leave_stdout()  # the reader of our output left (typer would exit 1); nobody to tell
        return EXIT_ERROR
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _CANNOT_GROW:
            _leave_stdout()
            message = f"what is printed cannot be written ({error.strerror}); make room, or send it elsewhere"
            return say("OutputError", message, EXIT_ERROR)
        if isinstance(error, OSError) and error.filename is not None:
            return say("FileError", f"{error.filename}: {error.strerror}; name another path, or mend that", EXIT_ERROR)
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # pyright: ignore[reportAttributeAccessIssue]
            return EXIT_ERROR
        if isinstance(error, _UsageError):
            return say("UsageError", _usage(error, arguments), EXIT_ERROR, debug=False)
        hint = "" if debug else "; --debug shows the traceback"
        return say(type(error).__name__, f"unexpected {type(error).__name__}: {error}{hint}", EXIT_ERROR)


def _usage(error: Exception, arguments: Sequence[str]) -> str:
    """What typer says of arguments that it cannot read, as a sentence that names the command and where to look."""
    context = getattr(error, "ctx", None)
    named = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    path = f"evalsvc {named}".strip() if context is None else context.command_path
    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    message = re.sub(r"\.? Did you mean", "; did you mean", message[:1].lower() + message[1:].removesuffix("."))
    return f"{path}: {message}" + ("" if message.endswith("?") else f"; `{path} --help` says what it takes")


def _say(kind: str, message: str, code: int, *, debug: bool, as_json: bool) -> int:
    """One sentence on stderr, and under --json the same as a document on stdout; returns the exit code."""
    if debug:
        traceback.print_exc()
    with suppress(OSError):
        print(f"error: {one_line(message)}", file=sys.stderr)
    if as_json:
        try:
            print_json(error_document(kind, one_line(message), code))
            sys.stdout.flush()
        except OSError:  # left to the interpreter, what is not flushed would end it with a code of its own
            _leave_stdout()
    return code


def _leave_stdout() -> None:
    """Sends what is still to be printed nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
