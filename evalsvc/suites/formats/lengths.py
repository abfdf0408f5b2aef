"""How long a text is, and how it is divided."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from evalsvc.suites.formats import counting
from evalsvc.suites.formats.base import Constraint, Counted

_FUNCTION_WORDS = (
    "a about after again all also am an and any are as at be because been before being but by can could did do does "
    "doing down during each few for from had has have he her here hers him his how i if in into is it its just me more "
    "most my no nor not now of off on once only or other our out over own same she should so some such than that the "
    "their them then there these they this those through to too under until up very was we were what when where which "
    "while who whom why will with would you your yours"
)
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


class Words(Counted):
    """So many words, counted as IFEval does (`counting.words`)."""

    kind: Literal["words"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(counting.words(text))


class Sentences(Counted):
    """So many sentences (`counting.sentences`)."""

    kind: Literal["sentences"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(counting.sentences(text))


class Characters(Counted):
    """So many characters, spaces around the answer aside."""

    kind: Literal["characters"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(len(text.strip()))


class Lines(Counted):
    """So many lines that are not blank."""

    kind: Literal["lines"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(sum(bool(line.strip()) for line in text.split("\n")))


class Paragraphs(Counted):
    """So many paragraphs, divided by blank lines, or by a `divider`, between two of which none may be empty."""

    kind: Literal["paragraphs"]
    divider: str | None = Field(default=None, min_length=1)

    def broken(self, text: str) -> str | None:
        """`too_few`, `too_many` or `empty_paragraph`."""
        count = counting.paragraphs(text, self.divider)
        return "empty_paragraph" if count is None else self.outside(count)


class ParagraphStart(Constraint):
    """So many paragraphs, and a certain one begins with a certain word, as IFEval counts.

    Attributes:
        paragraph: Which, from 1.
        of: How many there are, divided by one empty line each.
        word: Its first word, case and punctuation aside.
    """

    kind: Literal["paragraph_start"]
    paragraph: int = Field(ge=1)
    of: int = Field(ge=1)
    word: str = Field(min_length=1)

    @model_validator(mode="after")
    def _exists(self) -> "ParagraphStart":
        if self.paragraph > self.of:
            raise ValueError("`paragraph` is beyond `of`")
        return self

    @field_validator("word")
    @classmethod
    def _one_word(cls, word: str) -> str:
        if len(word.split()) != 1 or set(word) & set(".,?!'\""):
            raise ValueError("`word` is one word without punctuation")
        return word

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many` paragraphs, or `other_word`."""
        parts = [part.strip() for part in text.split("\n\n")]
        count = sum(map(bool, parts))
        if count != self.of:
            return "too_few" if count < self.of else "too_many"
        here = parts[self.paragraph - 1]  # an empty part keeps its place, as in IFEval
        if not here:
            return "other_word"
        return None if _bare(here.split(maxsplit=1)[0]) == self.word.lower() else "other_word"


def _bare(word: str) -> str:
    """A word up to its first punctuation mark, in small letters, quotes before it aside."""
    word = word.lstrip("'").lstrip('"')
    return word[: next((i for i, letter in enumerate(word) if letter in ".,?!'\""), len(word))].lower()


class StopWords(Constraint):
    """At most so many percent of the words are English function words; a text without a word breaks it."""

    kind: Literal["stop_words"]
    max_percent: float = Field(ge=0, le=100)

    def broken(self, text: str) -> str | None:
        """`no_words` or `too_many`."""
        found = counting.words(text)
        if not found:
            return "no_words"
        common = sum(word in _STOP_WORDS for word in counting.lower_words(text))
        return "too_many" if 100 * common > self.max_percent * found else None
