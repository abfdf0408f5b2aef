"""Calls and values in Python's notation, read by a small reader of their own: nothing is evaluated.

Numbers, strings, True, False, None, lists, tuples and dicts; no operators, names, prefixes or f-strings. A tuple
becomes a list, as in JSON. Nesting is limited, so that no text exhausts the stack.
"""

import ast
import re
import warnings
from typing import Any

from evalsvc.suites.toolcall.calls import Malformed

MOST_NESTED = 100
_TOKEN = re.compile(  # nothing is given back: a text that is no token is read once
    r"""\s*+(?:(?P<number>(?:-\s*+)?+(?:\d++(?:_\d++)*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+)(?![\w.])
    |(?P<string>'''(?:[^\\']|\\.|'(?!''))*+'''|\"\"\"(?:[^\\"]|\\.|"(?!""))*+\"\"\"
        |'(?!'')(?:[^\\'\n]|\\.)*+'|"(?!"")(?:[^\\"\n]|\\.)*+"|''|"")
    |(?P<word>[^\W\d]\w*+(?:[.\-][^\W\d]\w*+)*+)
    |(?P<mark>[][(){},:=]))""",
    re.VERBOSE | re.DOTALL,
)
WORDS = {"True": True, "False": False, "None": None}
JSON_WORDS = {"true": True, "false": False, "null": None}


class Reader:
    """Reads one token after another.

    Args:
        text: All of it.
        at: Where to begin.
        words: What names stand for values.
    """

    def __init__(self, text: str, at: int, words: dict[str, Any] = WORDS) -> None:
        self.text, self.at, self.words, self.depth = text, at, words, 0

    def peek(self) -> tuple[str, str, int]:
        """Kind, text and end of the next token; kind `""` at the end or before what is no token."""
        found = _TOKEN.match(self.text, self.at)
        if found is None or found.lastgroup is None:
            return "", "", self.at
        return found.lastgroup, found[found.lastgroup], found.end()

    def mark(self, wanted: str) -> bool:
        """Whether the next token is this mark; it is taken if so."""
        kind, token, end = self.peek()
        if kind == "mark" and token == wanted:
            self.at = end
            return True
        return False

    def need(self, wanted: str) -> None:
        """Takes this mark. Raises Malformed where another token stands."""
        if not self.mark(wanted):
            raise Malformed(f"no {wanted}" if self.text[self.at :].strip() else "truncated")

    def value(self) -> Any:
        """The next value. Raises Malformed."""
        kind, token, end = self.peek()
        self.at = end
        if kind == "number":
            return _number(token)
        if kind == "string":
            return self._strings(token)
        if kind == "word" and token in self.words:
            return self.words[token]
        closing = {"[": "]", "(": ")", "{": "}"}.get(token) if kind == "mark" else None
        if closing is None:
            raise Malformed(f"{token!r} is not a value" if token else "not a value")
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise Malformed("nested too deeply")
        made = self._dict() if closing == "}" else self._list(closing)
        self.depth -= 1
        return made

    def _strings(self, first: str) -> str:
        parts = [_string(first)]
        while (token := self.peek())[0] == "string":
            self.at = token[2]
            parts.append(_string(token[1]))
        return "".join(parts)

    def _list(self, closing: str) -> Any:
        made: list[Any] = []
        while not self.mark(closing):
            made.append(self.value())
            if not self.mark(","):
                self.need(closing)
                return made[0] if closing == ")" and len(made) == 1 else made
        return made

    def _dict(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while not self.mark("}"):
            key = self.value()
            if not isinstance(key, str) or key in made:
                raise Malformed("a key is repeated" if isinstance(key, str) else "a key is not a string")
            self.need(":")
            made[key] = self.value()
            if not self.mark(","):
                self.need("}")
                return made
        return made


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The value at `at`, JSON's own words for true, false and null allowed, and where it ends. Raises Malformed."""
    reader = Reader(text, at, WORDS | JSON_WORDS)
    return reader.value(), reader.at


def _number(token: str) -> int | float:
    bare = "".join(token.replace("_", "").split())
    try:
        return int(bare) if bare.lstrip("-").isdecimal() else float(bare)
    except ValueError as error:
        raise Malformed(f"not a number: {error}") from error


def _string(token: str) -> str:
    if "\\" not in token:
        width = 3 if len(token) >= 6 and token[:3] == token[0] * 3 else 1
        return token[width:-width]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape that Python does not know stays as written
            return ast.literal_eval(token)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise Malformed(f"not a string: {error}") from error
