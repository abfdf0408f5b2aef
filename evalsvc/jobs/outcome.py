"""What the end of a run's process means."""

import signal
from dataclasses import dataclass
from typing import Any

RESULTS = {0: "PASS", 1: "REGRESSED", 3: "INCONCLUSIVE", 4: "INVALID"}
_FOR_GOOD = ("ConfigError", "CapabilityError")  # the same command would say the same again
_LONGEST_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        exit_code: As it left, or minus the signal that ended it.
        document: The JSON that it printed; None where there is none.
        message: Its last words, without secrets.
    """

    exit_code: int
    document: dict[str, Any] | None
    message: str


def is_result(ended: Ended) -> bool:
    """Whether it decided: an exit code of the gate, and the document that says so.

    A broken installation may leave with 1 too, and that is no verdict.
    """
    document = ended.document or {}
    return ended.exit_code in RESULTS and document.get("exit_code") == ended.exit_code


def may_retry(ended: Ended) -> bool:
    """Whether another attempt may end otherwise."""
    error = (ended.document or {}).get("error") or {}
    return not (ended.exit_code == 2 and error.get("kind") in _FOR_GOOD)


def was_interrupted(ended: Ended) -> bool:
    """Whether SIGINT or SIGTERM ended it, as what ends a worker and all its processes at once sends."""
    return ended.exit_code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)


def backoff_s(first_s: float, failures: int) -> float:
    """Seconds before the next attempt: doubled with each failure, an hour at most unless the first is longer."""
    return min(first_s * 2.0 ** min(failures, 30), max(first_s, _LONGEST_BACKOFF_S))


def meaning(exit_code: int | None) -> str:
    """An exit code in words."""
    if exit_code is None:
        return ""
    if exit_code in RESULTS:
        return RESULTS[exit_code]
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = str(-exit_code)
        return f"ended by {name}" + (" (out of memory?)" if exit_code == -signal.SIGKILL else "")
    return {2: "error", 130: "interrupted", 143: "interrupted by SIGTERM"}.get(exit_code, f"exit code {exit_code}")
