"""Where a text begins to repeat itself."""

import re

import numpy as np
from numpy.typing import NDArray

WORD_PERIODS = 256  # longest repeated part, in words
CHARACTER_PERIODS = 64
WORDS = 24  # shortest loop, in words, and how often its part is there at least
WORD_TIMES = 4
CHARACTERS = 120  # the same in characters, for text without spaces
CHARACTER_TIMES = 8
MARKS = 240  # shortest loop of marks alone: a ruled line is shorter


def loop_start(text: str) -> int | None:
    """Position of the character from which on a part of the text follows itself again and again; None for none.

    A part of up to 256 words counts from its fourth time on, when the loop has 24 words; one of up to 64 characters
    from its eighth time on, when the loop has 120 characters, or 240 where it has neither letters nor digits.
    """
    starts: list[int] = []
    words = list(re.finditer(r"\S+", text))
    if len(words) >= WORDS:
        known: dict[str, int] = {}
        ids = np.array([known.setdefault(word.group(), len(known)) for word in words], dtype=np.int32)
        first = _first(ids, WORD_PERIODS, WORDS, WORD_TIMES)
        starts += [] if first is None else [words[first[0]].start()]
    if len(text) >= CHARACTERS:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        starts += _character_loops(text, codes)
    return min(starts, default=None)


def _character_loops(text: str, codes: NDArray[np.uint32]) -> list[int]:
    spoken = np.isin(codes, np.array([ord(c) for c in set(text) if c.isalnum()], dtype=np.uint32))
    words = _first(codes, CHARACTER_PERIODS, CHARACTERS, CHARACTER_TIMES, spoken)
    marks = _first(codes, CHARACTER_PERIODS, MARKS, CHARACTER_TIMES)
    return [found[0] for found in (words, marks) if found is not None]


def _first(
    values: NDArray[np.generic], periods: int, least: int, times: int, spoken: NDArray[np.bool_] | None = None
) -> tuple[int, int] | None:
    """Start and period of the earliest loop: a run in which each value equals the one a period before it.

    Args:
        values: Words or characters as numbers. Shape: (n,).
        periods: Longest period that is looked for.
        least: Least length of a loop.
        times: Least number of whole periods in it.
        spoken: Where given, the loop's first period has to hold one of these. Shape: (n,).
    """
    found: list[tuple[int, int]] = []
    for period in range(1, min(periods, len(values) // times) + 1):
        need = max(least, times * period) - period  # equal values that make a loop
        starts, lengths = _runs(values[period:] == values[:-period])
        for start in starts[lengths >= need].tolist():
            if spoken is None or spoken[start : start + period].any():
                found.append((start, period))
                break
    return min(found, default=None)


def _runs(equal: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Starts and lengths of the runs of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    return edges[::2], edges[1::2] - edges[::2]
