"""Every error a user can meet, with the exit code it carries.

A leaf that every room may import. A message says what happened, where (file:line, item, run) and what to do.
"""

EXIT_PASS = 0
EXIT_REGRESSED = 1
EXIT_ERROR = 2
EXIT_INCONCLUSIVE = 3
EXIT_INVALID = 4


class EvalsvcError(Exception):
    """Base of the errors that reach a user as one sentence."""

    exit_code = EXIT_ERROR


class ConfigError(EvalsvcError):
    """A file, flag, plan or address that cannot be used as written."""


class CapabilityError(EvalsvcError):
    """Something named correctly that this build does not serve."""


class EngineError(EvalsvcError):
    """The engine cannot answer: a broken checkpoint, a request longer than the model or the pool, non-finite logits."""


class IntegrityError(EngineError):
    """Keys and values that were read are not those that were written for this reader."""


class StoreError(EvalsvcError):
    """The database cannot be read or written: locked, full, read-only, or of another schema."""


class EvidenceError(EvalsvcError):
    """The stored evidence cannot carry a verdict (no samples, unfinished arms)."""

    exit_code = EXIT_INVALID
