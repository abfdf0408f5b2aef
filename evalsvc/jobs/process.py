"""A run in a process of its own, in a group of its own; it ends when its worker does."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from evalsvc.jobs.outcome import Ended, is_result, meaning
from evalsvc.jobs.spec import Job
from evalsvc.store.executions import Execution

_TAIL_BYTES = 4000


def run_arguments(job: Job, held: Execution, base_dir: Path) -> list[str]:
    """The command line of an execution: the same key in every attempt, so that a later one goes on.

    The database is none of it: its URL may hold a password, and command lines are everybody's to read.
    """
    arguments = ["run", str(base_dir / job.experiment), "--key", held.key, "--gate", str(base_dir / job.policy)]
    return [*arguments, "--wait", "--json", *(["--allow-code"] if job.allow_code else [])]


class RunProcess:
    """`evalsvc` with some arguments, under way."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], redact: Callable[[str], str] = lambda text: text
    ) -> None:
        """Starts it.

        Args:
            arguments: As after `evalsvc`.
            env: Its environment; the channels' secrets are no business of it.
            redact: Applied to its last words.

        Raises:
            OSError: It cannot be started.
        """
        self._redact = redact
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._ended: Ended | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evalsvc.cli.attended", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=dict(env),
            start_new_session=True,  # Ctrl-C at the worker's terminal is the worker's to answer
        )

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    def poll(self) -> Ended | None:
        """How it ended; None while it has not."""
        if self._ended is None and (code := self._process.poll()) is not None:
            self._signal(signal.SIGKILL)  # what it started and left behind
            document = _document(self._out)
            ended = Ended(code, document, "")
            message = "" if is_result(ended) else _last_words(self._err) or meaning(code)
            told = ((document or {}).get("error") or {}).get("message", "")
            self._ended = Ended(code, document, self._redact(str(told) or message))
            self._out.close()
            self._err.close()
        return self._ended

    def interrupt(self) -> None:
        """Asks it to store what it has and to end."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Ends it and all that it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _document(out: IO[bytes]) -> dict[str, Any] | None:
    out.seek(0)
    try:
        document = json.load(out)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _last_words(err: IO[bytes]) -> str:
    """The last line of stderr."""
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - _TAIL_BYTES))
    lines = err.read().decode("utf-8", "replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:1000] if said else ""
