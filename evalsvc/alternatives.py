"""The likeliest tokens at each generated token, packed for the database."""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp

import numpy as np

from evalsvc.engine.requests import GenerateResult

TOP = 5  # tokens that are asked at each generated token
_UNITS = 10_000  # a probability is stored in so many parts of 1
_HEAD = struct.Struct("<BI")  # tokens named at each place, places


@dataclass(frozen=True)
class Alternative:
    """A token that the model could have written, how likely it was (a proportion), and its text where it is known."""

    token: int
    probability: float
    text: str | None


def pack(answers: Iterable[GenerateResult]) -> bytes | None:
    """The likeliest tokens of all answers, one after the other; None where an answer does not say them.

    Ids (4 bytes), then probabilities (2 bytes, rounded to 0.0001), each by rank and byte, so that zlib finds what is
    alike; then the texts of all tokens that are named, once each.
    """
    answers = list(answers)
    if any(answer.logprobs is None for answer in answers):
        return None
    places = [entry.top for answer in answers for entry in answer.logprobs or ()]
    named = len(places[0]) if places else 0
    if not named or any(len(top) != named for top in places):
        return None
    ids = np.array([[token for token, _ in top] for top in places], dtype="<u4")
    shares = np.array([[round(exp(logprob) * _UNITS) for _, logprob in top] for top in places], dtype="<u2")
    known = dict(chain.from_iterable(answer.texts.items() for answer in answers))
    texts = json.dumps([known.get(token) for token in np.unique(ids).tolist()], separators=(",", ":"))
    return zlib.compress(_HEAD.pack(named, len(places)) + _planes(ids) + _planes(shares) + texts.encode())


def unpack(packed: bytes) -> list[tuple[Alternative, ...]]:
    """What was packed: at each token the likeliest ones, descending."""
    data = zlib.decompress(packed)
    named, count = _HEAD.unpack_from(data)
    cells = named * count
    start, middle, end = (_HEAD.size + size * cells for size in (0, 4, 6))
    ids = _cells(data[start:middle], "<u4", named).tolist()
    shares = _cells(data[middle:end], "<u2", named).tolist()
    texts = dict(zip(sorted(set(chain.from_iterable(ids))), json.loads(data[end:]), strict=True))
    return [
        tuple(Alternative(token, share / _UNITS, texts[token]) for token, share in zip(row, row_shares, strict=True))
        for row, row_shares in zip(ids, shares, strict=True)
    ]


def at(packed: bytes | None, token: int) -> Sequence[Alternative]:
    """The likeliest ones at a token, from 0; none where nothing is stored of it."""
    places = [] if packed is None else unpack(packed)
    return places[token] if token < len(places) else ()


def _planes(values: np.ndarray) -> bytes:
    """Numbers of shape (places, ranks), all their lowest bytes first, rank by rank."""
    flat = np.ascontiguousarray(values.T).reshape(-1, 1).view(np.uint8)
    return flat.T.tobytes()


def _cells(data: bytes, kind: str, named: int) -> np.ndarray:
    """Undoes `_planes`."""
    flat = np.frombuffer(data, dtype=np.uint8).reshape(np.dtype(kind).itemsize, -1)
    return np.ascontiguousarray(flat.T).view(kind).reshape(named, -1).T
