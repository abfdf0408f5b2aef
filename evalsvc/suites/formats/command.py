"""A user's own program as a check: it reads the answer and says by its exit status whether it is right."""

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from evalsvc.errors import EvidenceError

RIGHT, WRONG = 0, 1
# What interpreters write of a program that they gave up, which then ends with status 1 as if it had judged.
_CRASH = re.compile(
    rb"^(Traceback \(most recent call last\):|(Syntax|Indentation|Tab)Error: |.*: No module named "
    rb"|Node\.js v\d|Exception in thread \"|\S+\.rb:\d+:in )",
    re.MULTILINE,
)


def refused_by(command: Sequence[str], answer: str, folder: Path, timeout_s: float) -> bool:
    """Whether a program calls an answer wrong: exit status 0 is right, 1 is wrong.

    The answer is its standard input, in UTF-8, and nowhere in its arguments; no shell is started.

    Args:
        command: Program and arguments.
        answer: As the model wrote it.
        folder: Where it runs.
        timeout_s: Seconds after which it, and what it started, is killed.

    Raises:
        EvidenceError: It cannot be started, was killed, ran too long, ended with another status, or ended with status 1
            because its interpreter gave it up (an exception that nothing caught). Then nobody knows whether the answer
            is right.
    """
    said = " ".join(command)
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise EvidenceError(f"check.command {said!r} cannot be started: {error}") from None
    try:
        _, complaint = process.communicate(answer.encode("utf-8", "replace"), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise EvidenceError(f"check.command {said!r} ran for more than {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    crashed = process.returncode == WRONG and _CRASH.search(complaint) is not None
    if crashed or process.returncode not in (RIGHT, WRONG):
        last = complaint.decode("utf-8", "replace").strip().split("\n")[-1][-200:]
        how = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        rule = "a crash is no verdict" if crashed else "0 is right and 1 wrong"
        raise EvidenceError(f"check.command {said!r} ended with {how}{': ' * bool(last)}{last}; {rule}")
    return process.returncode == WRONG


def files_hash(commands: Iterable[Sequence[str]], folder: Path) -> str:
    """Hash of the files that commands name, so that an edited program is another scoring version."""
    sha = hashlib.sha256()
    for part in sorted({part for command in commands for part in command}):
        with suppress(OSError, ValueError):
            path = folder / part
            if path.is_file():
                sha.update(part.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()[:12]
