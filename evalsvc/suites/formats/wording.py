"""Which words and characters a text has, and how it begins and ends."""

import re
from typing import Literal

from pydantic import Field, field_validator

from evalsvc.suites.formats.base import Constraint, Counted
from evalsvc.suites.patterns import PatternTimeout, compiled, matches

Match = Literal["word", "substring"]


def _occurrences(needle: str, text: str, match: Match) -> int:
    """How often a text has it, case aside, none within another; as a `word` it stands between no letters or digits."""
    pattern = re.escape(needle)
    return len(re.findall(rf"(?<!\w){pattern}(?!\w)" if match == "word" else pattern, text, re.IGNORECASE))


class _Listed(Constraint):
    """Words or phrases, taken as they are written, never as patterns.

    Attributes:
        words: The words.
        match: `word` (whole words only) or `substring` (within others too: IFEval's way to look for keywords).
    """

    words: list[str] = Field(min_length=1)
    match: Match = "word"

    @field_validator("words")
    @classmethod
    def _not_blank(cls, words: list[str]) -> list[str]:
        if not all(word.strip() for word in words):
            raise ValueError("a word is blank")
        return words


class Include(_Listed):
    """Each of the words occurs at least so often: `missing`."""

    kind: Literal["include"]
    times: int = Field(default=1, ge=1)

    def broken(self, text: str) -> str | None:
        """`missing`."""
        met = all(_occurrences(word, text, self.match) >= self.times for word in self.words)
        return None if met else "missing"


class Exclude(_Listed):
    """None of the words occurs: `present`."""

    kind: Literal["exclude"]

    def broken(self, text: str) -> str | None:
        """`present`."""
        return "present" if any(_occurrences(word, text, self.match) for word in self.words) else None


class Frequency(Counted):
    """One word occurs so often."""

    kind: Literal["frequency"]
    word: str = Field(min_length=1)
    match: Match = "word"

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(_occurrences(self.word, text, self.match))


class Letter(Counted):
    """One character occurs so often, case aside."""

    kind: Literal["letter"]
    letter: str = Field(min_length=1, max_length=1)

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(text.lower().count(self.letter.lower()))


class NoCommas(Constraint):
    """There is no comma."""

    kind: Literal["no_commas"]

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        return "" if "," in text else None


class Choice(Constraint):
    """The answer is one of these, spaces around it aside; with `within`, it has one of them in it."""

    kind: Literal["choice"]
    options: list[str] = Field(min_length=1)
    within: bool = False

    @field_validator("options")
    @classmethod
    def _reachable(cls, options: list[str]) -> list[str]:
        if any(not option or option != option.strip() for option in options):
            raise ValueError("an option is empty, or begins or ends with spaces, which are cut from answers")
        return options

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        said = text.strip()
        met = any(option in said for option in self.options) if self.within else said in self.options
        return None if met else ""


class Pattern(Constraint):
    """A pattern matches the whole stripped answer, or with `within` occurs in it: `no_match`, `pattern_timeout`."""

    kind: Literal["regex"]
    pattern: str
    within: bool = False

    def ready(self, where: str) -> None:
        """Refuses what is no pattern."""
        compiled(self.pattern, f"{where}.pattern")

    def broken(self, text: str) -> str | None:
        """Whether it does not match."""
        try:
            return None if matches(self.pattern, text.strip(), whole=not self.within) else "no_match"
        except PatternTimeout:
            return "pattern_timeout"


class _Edge(Constraint):
    """A text at the edge of the answer.

    Attributes:
        text: The text.
        any_case: Case does not matter.
    """

    text: str = Field(min_length=1)
    any_case: bool = False

    def cased(self, text: str) -> str:
        """Without case where that does not matter."""
        return text.lower() if self.any_case else text


class StartsWith(_Edge):
    """The answer begins with a text, spaces before it aside."""

    kind: Literal["starts_with"]

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        return None if self.cased(text.strip()).startswith(self.cased(self.text.strip())) else ""


class EndsWith(_Edge):
    """The answer ends with a text, spaces and double quotation marks around the answer aside."""

    kind: Literal["ends_with"]

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        return None if self.cased(text.strip().strip('"')).endswith(self.cased(self.text.strip())) else ""


class Repeats(_Edge):
    """The answer first repeats the request word for word, case aside."""

    kind: Literal["repeats"]
    any_case: bool = True

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        return None if self.cased(text.strip()).startswith(self.cased(self.text.strip())) else ""


class StopsAt(Constraint):
    """The answer has a marker once, and ends there: `marker_missing`, `repeated`, `extra_text`."""

    kind: Literal["stops_at"]
    marker: str = Field(min_length=1)

    def broken(self, text: str) -> str | None:
        """How it does not."""
        found = text.count(self.marker)
        if not found:
            return "marker_missing"
        if found > 1:
            return "repeated"
        return None if text.rstrip().endswith(self.marker.rstrip()) else "extra_text"


class NothingAfter(Constraint):
    """Nothing follows the last of a marker, which the answer may have many times: `marker_missing`, `extra_text`."""

    kind: Literal["nothing_after"]
    marker: str = Field(min_length=1)

    def broken(self, text: str) -> str | None:
        """How something does."""
        _, marker, after = text.rpartition(self.marker)
        if not marker:
            return "marker_missing"
        return "extra_text" if after.strip() else None
