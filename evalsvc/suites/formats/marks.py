"""Marks in a text: lists, highlights, sections, placeholders, titles, quotes, postscripts."""

import re
from typing import Literal

from pydantic import Field

from evalsvc.suites.formats.base import Constraint, Counted

_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_STRONG = re.compile(r"\*\*[^\n*]*\*\*")
_NUMBERED = re.compile(r"[ \t]*(\d{1,9})[.)][ \t]+\S")
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}


class Bullets(Counted):
    """So many lines that begin with `-` or with a single `*`."""

    kind: Literal["bullets"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(_bullets(text))


def _bullets(text: str) -> int:
    """Bullets as IFEval's patterns find them: a `*` alone on its line takes the next line as its content."""
    lines = text.split("\n")
    count = sum(line.lstrip().startswith("-") for line in lines)
    taken = False
    for number, line in enumerate(lines):
        said = line.lstrip()
        if taken or not said.startswith("*"):
            taken = False
        elif said == "*":
            taken = number + 1 < len(lines)
            count += taken
        else:
            count += said[1] != "*"
    return count


class NumberedList(Constraint):
    """A list of so many entries, numbered 1, 2, 3 ... (`1.` or `1)`).

    Fails as `too_few`, `too_many`, `wrong_order`, `extra_text`.

    Attributes:
        n: How many entries.
        only: No line stands outside it but blank ones.
    """

    kind: Literal["numbered_list"]
    n: int = Field(ge=1)
    only: bool = False

    def broken(self, text: str) -> str | None:
        """How the answer has no such list."""
        lines = [line for line in text.split("\n") if line.strip()]
        found = [int(match.group(1)) for line in lines if (match := _NUMBERED.match(line))]
        if len(found) != self.n:
            return "too_few" if len(found) < self.n else "too_many"
        if found != list(range(1, self.n + 1)):
            return "wrong_order"
        return "extra_text" if self.only and len(lines) > self.n else None


class Highlights(Counted):
    """So many parts in single or double asterisks; a part in double ones counts as IFEval counts it."""

    kind: Literal["highlights"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        single = sum(bool(match.group().strip("*").strip()) for match in _HIGHLIGHT.finditer(text))
        double = sum(bool(match.group()[2:-2].strip()) for match in _STRONG.finditer(text))
        return self.outside(single + double)


class Sections(Counted):
    """So many headings of a word and a number: `Section 1`, `SECTION 2`; the word's case matters."""

    kind: Literal["sections"]
    word: str = Field(min_length=1)

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(sum(1 for _ in re.finditer(re.escape(self.word) + r"\s?\d+", text)))


class Placeholders(Counted):
    """So many placeholders in square brackets, each on one line."""

    kind: Literal["placeholders"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(sum(map(_bracketed, text.split("\n"))))


def _bracketed(line: str) -> int:
    count = 0
    opened = line.find("[")
    while opened >= 0 and (closed := line.find("]", opened)) >= 0:
        count += 1
        opened = line.find("[", closed)
    return count


class Title(Constraint):
    """A title in double angular brackets, on one line and not empty."""

    kind: Literal["title"]

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        return None if any(map(_titled, text.split("\n"))) else ""


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return start >= 0 and end >= start + 3 and bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


class Quoted(Constraint):
    """The whole answer stands in double quotation marks."""

    kind: Literal["quoted"]

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        said = text.strip()
        return None if len(said) > 1 and said[0] == said[-1] == '"' else ""


class Postscript(Constraint):
    """A postscript that begins with a marker, case aside; the spaces within `P.S.` and `P.P.S` are free."""

    kind: Literal["postscript"]
    marker: str = Field(default="P.S.", min_length=1)

    def broken(self, text: str) -> str | None:
        """The kind alone."""
        pattern = _POSTSCRIPTS.get(self.marker.strip(), re.escape(self.marker.strip().lower()))
        return None if re.search(pattern, text.lower()) else ""


class TwoResponses(Constraint):
    """Two different answers with a divider between them: `too_few`, `too_many`, `empty_part`, `same`."""

    kind: Literal["two_responses"]
    divider: str = Field(default="******", min_length=1)

    def broken(self, text: str) -> str | None:
        """How the answer is not two."""
        parts = [part.strip() for part in text.split(self.divider)]
        if not all(parts[1:-1]):
            return "empty_part"
        said = [part for part in parts if part]
        if len(said) != 2:
            return "too_few" if len(said) < 2 else "too_many"
        return "same" if said[0] == said[1] else None
