"""Text of models and files on a page: always text, never markup, and nothing in it invisible."""

import html
import re
import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING

from evalsvc.row import format_p

if TYPE_CHECKING:
    import pandas as pd

SHOWN_CHARACTERS = 4000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPACES = {" ": "space", "\n": "line break", "\t": "tab", "\r": "carriage return"}
_MOST_RUNS = 4
_PICTURES = 0x2400  # U+2400 + code is the visible picture of a control character


def visible_text(text: str, limit: int | None = SHOWN_CHARACTERS) -> str:
    """Text with every invisible control made visible, cut at `limit` characters.

    Control characters become their pictures (`␀`), line separators, direction overrides and other invisible code
    points become `⟨U+2028⟩`. Line breaks and tabs stay.
    """
    shown = text if limit is None else text[:limit]
    return "".join(_visible(character) for character in shown)


def outer_space(text: str) -> str | None:
    """White space at the ends of a text, which an exact comparison counts and nobody sees; None without any."""
    if not text.strip():
        return None
    ends = {
        "begins with": text[: len(text) - len(text.lstrip())],
        "ends with": text[len(text.rstrip()) :],
    }
    return " and ".join(f"{where} {_spaces(space)}" for where, space in ends.items() if space) or None


def _spaces(space: str) -> str:
    """White space in words: runs of one kind, counted."""
    runs = [(_SPACES.get(kind, f"U+{ord(kind):04X}"), len(list(same))) for kind, same in groupby(space)]
    words = [f"{count:,} {name}{'s' * (count > 1)}" for name, count in runs[:_MOST_RUNS]]
    return ", ".join(words) + (", and more" if len(runs) > _MOST_RUNS else "")


def hidden_characters(text: str, limit: int = SHOWN_CHARACTERS) -> int:
    """How many characters `visible_text` leaves out."""
    return max(0, len(text) - limit)


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or 0x20 <= code < 0x7F:
        return character
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Cs"}:
        return f"⟨U+{code:04X}⟩"
    return character


_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]()<>#+-.!|$:~^=@&'\""})


_LINKS = re.compile(r"(?<=https:)(?=//)|(?<=http:)(?=//)|(?<=www)(?=\.)|(?<=@)", re.IGNORECASE)
_JOINED = "\u2060"  # no width, and no break; a backslash does not keep an address from becoming a link


def markdown_free(text: str, limit: int = 120) -> str:
    """Text for a label that is read as markdown: every character of it is shown, none of it is obeyed."""
    shown = visible_text(text, limit) + ("…" if len(text) > limit else "")
    return _LINKS.sub(_JOINED, shown.replace("\n", " ")).translate(_MARKDOWN)


def escape(value: object, limit: int = 1000) -> str:
    """A value as HTML text; names in an experiment file are as untrusted as answers."""
    return html.escape(visible_text(str(value), limit))


def points(value: float | None, *, signed: bool = False, digits: int = 1) -> str:
    """A number of points, `–` where unknown."""
    if value is None:
        return "–"
    rounded = round(value, digits) + 0.0  # no negative zero
    return f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"


def p_value(value: float | None) -> str:
    """A p value as the tables of the commands have it, `–` where unknown."""
    return "–" if value is None else format_p(value).replace("< ", "<")


def counted(number: int, what: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def byte_size(value: float | None) -> str:
    """Bytes in the units of the commands' tables: bytes, and 2^20 or 2^30 of them."""
    if value is None:
        return "–"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def small_number(value: float | None) -> str:
    """A KL or the like with two significant digits."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.2g}"


def csv_bytes(frame: "pd.DataFrame") -> bytes:
    """A table as CSV that no spreadsheet takes for a formula: text that begins like one gets an apostrophe."""
    safe = frame.copy()
    for name in safe.columns:
        if safe[name].dtype == "string":
            safe[name] = [f"'{v}" if isinstance(v, str) and v[:1] in _FORMULA else v for v in safe[name]]
    return safe.to_csv(index=False).encode("utf-8")
