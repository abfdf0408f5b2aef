"""Patterns that a person wrote, matched against text that a model wrote: with a time limit."""

from typing import Any

from evalsvc.errors import CapabilityError, ConfigError

SECONDS = 1.0


class PatternTimeout(Exception):
    """The pattern backtracked longer than `SECONDS` on this text."""


def compiled(pattern: str, where: str) -> Any:
    """The pattern, ready for `matches`.

    Raises:
        ConfigError: It is no pattern.
        CapabilityError: The package `regex`, whose matching has a time limit, is missing.
    """
    try:
        import regex
    except ImportError as error:
        raise CapabilityError(f"{where}: patterns need the package `regex` (extra `engine`)") from error
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ConfigError(f"{where}: not a pattern: {error}") from error


def matches(pattern: str, text: str, whole: bool) -> bool:
    """Whether the pattern matches the whole text, or occurs in it.

    Raises:
        PatternTimeout: It did not say so in time.
    """
    import regex

    try:
        found = (regex.fullmatch if whole else regex.search)(pattern, text, timeout=SECONDS)
    except TimeoutError as error:
        raise PatternTimeout(pattern) from error
    return found is not None
