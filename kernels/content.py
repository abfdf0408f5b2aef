"""A keyed hash of what a token's slot holds: bytes, scales, tag and position.

    h = (k_0 + k_1 layer + k_2 tag + k_3 position + sum_i k_(4+i) w_i) mod 2^64, its upper 32 bits

over the 32-bit words w_i of keys, values and scales, with secret 64-bit keys k (the multilinear family; Lemire and
Kaser, "Strongly universal string hashing is fast", 2014): two different tokens have one hash with probability 2^-32,
whatever the difference is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .dispatch import ran

WORD = 4
HEADER = 4  # keys before those of words
FIRST_BYTES = 16
_ROWS = 512  # hashed at a time, so that their words stay in the processor's caches


def content_hash(parts: Sequence[Tensor], shared: Sequence[Tensor], stamps: Tensor, layer: int, keys: Tensor) -> Tensor:
    """Hashes of some tokens of one layer.

    Args:
        parts: What each token's slot holds. Shape of each: (tokens, ...), any type.
        shared: Scales that all tokens of the layer share, fp32; of any shape.
        stamps: Tag and position of each. Shape: (tokens, 2), int32.
        layer: Which.
        keys: Shape: (at least HEADER + words of a token,), int64.

    Returns:
        Shape: (tokens,), int32.
    """
    ran("content_hash.torch")
    total = stamps.long() @ keys[2:HEADER]
    total += keys[0] + keys[1] * layer
    at = HEADER
    for scale in shared:
        words = _words(scale.reshape(1, -1)).long()[0]
        total += (words * keys[at : at + len(words)]).sum()
        at += len(words)
    for part in parts:
        rows = part.flatten(1)
        for start in range(0, len(rows), _ROWS):
            words = _words(rows[start : start + _ROWS]).long()
            total[start : start + _ROWS] += words @ keys[at : at + words.shape[1]]
        at += words_of(part[:1])
    return (total >> 32).int()


def words_of(token: Tensor) -> int:
    """Words of one token's part. Shape: (1, ...)."""
    return -(-token.numel() * token.element_size() // WORD)


def first_bytes(part: Tensor) -> Tensor:
    """The first FIRST_BYTES bytes of each row of the last dimension, or all of them where it is shorter."""
    return part[..., : max(1, FIRST_BYTES // part.element_size())]


def _words(rows: Tensor) -> Tensor:
    """Rows as 32-bit words, the last one filled up with zeros. Shape: (n, elements) -> (n, words), int32."""
    raw = rows.contiguous().view(torch.uint8)
    pad = -raw.shape[1] % WORD
    return (functional.pad(raw, (0, pad)) if pad else raw).view(torch.int32)
