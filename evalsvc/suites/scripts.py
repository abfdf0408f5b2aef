"""In which scripts a text is written, and whether an answer left those of its prompt."""

from bisect import bisect_right
from collections import Counter

_RANGES = (  # first code point, and the script from there to the next entry
    (0x0000, "Latin"), (0x0370, "Greek"), (0x0400, "Cyrillic"), (0x0530, "Armenian"), (0x0590, "Hebrew"),
    (0x0600, "Arabic"), (0x0700, "other"), (0x0750, "Arabic"), (0x0780, "other"), (0x08A0, "Arabic"),
    (0x0900, "Devanagari"), (0x0980, "Bengali"), (0x0A00, "Gurmukhi"), (0x0A80, "Gujarati"), (0x0B00, "Oriya"),
    (0x0B80, "Tamil"), (0x0C00, "Telugu"), (0x0C80, "Kannada"), (0x0D00, "Malayalam"), (0x0D80, "Sinhala"),
    (0x0E00, "Thai"), (0x0E80, "Lao"), (0x0F00, "Tibetan"), (0x1000, "Myanmar"), (0x10A0, "Georgian"),
    (0x1100, "Hangul"), (0x1200, "Ethiopic"), (0x13A0, "other"), (0x1780, "Khmer"), (0x1800, "other"),
    (0x1E00, "Latin"), (0x1F00, "Greek"), (0x2000, "Latin"), (0x2E80, "Han"), (0x3040, "Kana"), (0x3100, "Han"),
    (0x3130, "Hangul"), (0x3190, "Han"), (0x31F0, "Kana"), (0x3200, "Han"), (0xA000, "other"), (0xA720, "Latin"),
    (0xA800, "other"), (0xAC00, "Hangul"), (0xD800, "other"), (0xF900, "Han"), (0xFB00, "Latin"), (0xFB1D, "Hebrew"),
    (0xFB50, "Arabic"), (0xFF00, "Latin"), (0xFF66, "Kana"), (0xFFA0, "Hangul"), (0x10000, "other"), (0x1D400, "Latin"),
    (0x1D800, "other"), (0x20000, "Han"), (0x33480, "other"),
)  # fmt: skip
_STARTS = [start for start, _ in _RANGES]
_SPOKEN = {  # a prompt that names a language asks for its script
    "Greek": "greek", "Cyrillic": "russian ukrainian bulgarian serbian belarusian cyrillic", "Hebrew": "hebrew yiddish",
    "Arabic": "arabic persian farsi urdu pashto", "Devanagari": "hindi marathi nepali sanskrit", "Bengali": "bengali",
    "Gurmukhi": "punjabi", "Gujarati": "gujarati", "Tamil": "tamil", "Telugu": "telugu", "Kannada": "kannada",
    "Malayalam": "malayalam", "Thai": "thai", "Hangul": "korean", "Kana": "japanese",
    "Han": "chinese mandarin cantonese japanese", "Armenian": "armenian", "Georgian": "georgian",
    "Latin": "english french german spanish italian portuguese latin vietnamese turkish polish 英 法 德",
}  # fmt: skip
LETTERS = 8  # fewer foreign letters are a name or a symbol
TAIL = 200
SHARE = 0.2
LATIN_SHARE = 0.8  # names and terms are written in Latin letters everywhere


def letters_by_script(text: str) -> Counter[str]:
    """How many letters of a text belong to each script."""
    found: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            found[_RANGES[bisect_right(_STARTS, ord(character)) - 1][1]] += count
    return found


def foreign(text: str, prompt: str) -> bool:
    """Whether an answer, or its end, is written in a script that its prompt neither has nor names.

    A prompt without letters tells nothing. Japanese has two scripts; Greek letters alone are symbols until there are
    many. The end is the last 200 characters.
    """
    asked = letters_by_script(prompt)
    known = set(asked)
    if not known:
        return False
    known |= {"Han", "Kana"} if "Kana" in known else set()
    lowered = prompt.lower()
    known |= {script for script, names in _SPOKEN.items() if any(name in lowered for name in names.split())}
    return _left(letters_by_script(text), known) or _left(letters_by_script(text[-TAIL:]), known)


def _left(letters: Counter[str], known: set[str]) -> bool:
    total = letters.total()
    away = sum(count for script, count in letters.items() if script not in known and script != "Latin")
    latin = 0 if "Latin" in known else letters["Latin"]
    return away >= max(LETTERS, SHARE * total) or latin >= max(LETTERS, LATIN_SHARE * total)
