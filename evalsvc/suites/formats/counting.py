"""Words, sentences and paragraphs of a text, counted in linear time and alike on every machine."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]++[”’」』）]*+")
_LAST_WORD = re.compile(r"[^\s\"'“‘(\[]{1,20}$")
_SHORTENED = (
    "mr mrs ms dr prof st sr jr gen col capt lt sgt rev hon gov sen rep pres inc ltd co corp vs etc e.g i.e cf al "
    "fig no vol pp ed jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m u.s u.k u.n ph.d"
)
_ABBREVIATIONS = frozenset(_SHORTENED.split())
_TOKEN = re.compile(r"[^\s,;:!?\"“”()\[\]{}<>|/*#`~=+%$^…—]+")
_CLITIC = re.compile(r"(N'T|'(?:S|M|D|LL|RE|VE))$", re.IGNORECASE)


@cache
def _word() -> re.Pattern[str]:
    """Python's own word characters lack the vowel signs of many scripts, which would cut their words."""
    marks = [code for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    known = set(marks)
    starts = [code for code in marks if code - 1 not in known]
    ends = [code for code in marks if code + 1 not in known]
    ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(starts, ends, strict=True))
    return re.compile(rf"[\w{ranges}]+")


def words(text: str) -> int:
    """Runs of letters with their marks, digits and underscores: `don't` is two, as IFEval counts."""
    return sum(1 for _ in _word().finditer(text))


def lower_words(text: str) -> Iterator[str]:
    """The words that `words` counts, in small letters."""
    return (match.group().lower() for match in _word().finditer(text))


def sentences(text: str) -> int:
    """Sentences of a text; what follows the last mark is one more.

    A sentence ends at `.`, `!`, `?` or an ellipsis before white space, and at a full-width mark wherever it stands. It
    does not end at a full stop after an abbreviation, an initial or a list number at the head of its line, nor at a
    number's full stop or an ellipsis before a small letter.
    """
    said = text.strip()
    if not said:
        return 0
    return 1 + sum(match.end() < len(said) and not _within(said, match) for match in _END.finditer(said))


def _within(text: str, match: re.Match[str]) -> bool:
    """Whether the mark belongs to its sentence."""
    mark = match.group()
    small_next = text[match.end() : match.end() + 3].lstrip()[:1].islower()
    if mark != "." and not mark.strip(".…"):
        return small_next
    head = text[max(0, match.start() - 20) : match.start()]
    found = _LAST_WORD.search(head)
    if mark != "." or found is None:
        return False
    word = found.group()
    if word.lower() in _ABBREVIATIONS:
        return True
    if word.isdigit() and len(word) <= 3:
        return small_next or (head[: found.start()] or "\n").endswith("\n")
    return len(word) == 1 and word.isalpha() and word.isupper() and word != "I"


def capital_words(text: str) -> int:
    """Words without a small letter and with at least one capital; a hyphenated word is one, `DON'T` is two."""
    count = 0
    for token in _TOKEN.finditer(text):
        word = token.group().strip("'’‘.-_&@")
        clitic = _CLITIC.search(word)
        parts = (word[: clitic.start()], clitic.group()) if clitic else (word,)
        count += sum(part.isupper() for part in parts)
    return count


def paragraphs(text: str, divider: str | None) -> int | None:
    """How many paragraphs a text has.

    Args:
        text: What is counted.
        divider: What stands between two paragraphs; None for blank lines, any number of them.

    Returns:
        How many; None where a paragraph between two dividers is empty.
    """
    if divider is None:
        lines = [bool(line.strip()) for line in text.split("\n")]
        return sum(here and not before for before, here in pairwise([False, *lines]))
    parts = [bool(part.strip()) for part in text.split(divider)]
    return sum(parts) if all(parts[1:-1]) else None
