"""What is asked of each plan: a grid of prompt lengths and concurrencies, and how its requests are made.

The loop is closed: so many clients, each of which sends its next request when its last one is answered.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsvc.errors import ConfigError

MAXIMUM = 0
"""Stands for a plan's own maximum among concurrencies."""
LEAST_REQUESTS = 4
WARM_UP = "before each repeat of a cell up to 2 requests of its prompt length and 2 new tokens, not counted"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells, and what every cell does.

    Attributes:
        prompt_tokens: Exact lengths of prompts.
        concurrency: Requests under way, `MAXIMUM` for as many as a plan holds.
        new_tokens: Exact length of every answer.
        rounds: Requests of each client in a repeat; a repeat has `LEAST_REQUESTS` at least.
        repeats: How often each cell is measured.
        seed: Of the prompts.
        most: Most requests under way at a plan's own maximum.
    """

    prompt_tokens: tuple[int, ...] = (32, 128)
    concurrency: tuple[int, ...] = (1, 4, MAXIMUM)
    new_tokens: int = 16
    rounds: int = 2
    repeats: int = 3
    seed: int = 0
    most: int = 16

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(self.prompt_tokens) + self.new_tokens

    @property
    def equal(self) -> tuple[int, ...]:
        """Concurrencies that every plan is asked."""
        return tuple(c for c in self.concurrency if c != MAXIMUM)

    def settings(self, memory_bytes: int) -> dict[str, Any]:
        """Everything that a figure hangs on beside arm, cell and repeat."""
        return {
            "loop": "closed",
            "order": "every arm once before any again",
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "seed": self.seed,
            "memory_bytes": memory_bytes,
            "most": self.most,
            "warm_up": WARM_UP,
        }

    def requests(self, concurrency: int) -> int:
        """Requests of one repeat."""
        return max(LEAST_REQUESTS, self.rounds * concurrency)

    def cells(self, fits: dict[int, int]) -> list[tuple[int, int]]:
        """Prompt tokens and concurrency of each cell, once.

        Args:
            fits: By prompt tokens the requests that a plan holds side by side.
        """
        found = [(p, self.own(fits[p]) if c == MAXIMUM else c) for p in self.prompt_tokens for c in self.concurrency]
        return [cell for cell in dict.fromkeys(found) if cell[1]]

    def own(self, fits: int) -> int:
        """A plan's own maximum as it is run."""
        return min(fits, self.most)


def settings_hash(settings: dict[str, Any]) -> str:
    """Hash of `Grid.settings`."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def prompts(tokens: int, count: int, vocabulary: int, seed: Sequence[int]) -> list[list[int]]:
    """Random token ids, so that no two prompts share a page of 16 tokens.

    Args:
        tokens: Of each prompt.
        count: How many.
        vocabulary: Ids are below it.
        seed: Of this cell and repeat; other ones give other prompts.
    """
    return np.random.default_rng(list(seed)).integers(0, vocabulary, (count, tokens)).tolist()


def numbers(text: str, option: str, *, maximum: bool = False) -> tuple[int, ...]:
    """Reads `1,4,max`.

    Raises:
        ConfigError: Something else than whole numbers from 1 (and `max`), or one twice.
    """
    parts = [part.strip() for part in text.split(",")]
    found = [MAXIMUM if maximum and part == "max" else int(part) if part.isdecimal() else -1 for part in parts]
    odd = next((p for p, n in zip(parts, found, strict=True) if n < 0 or (n == 0 and p != "max")), None)
    if odd is not None:
        also = ", and max" if maximum else ""
        raise ConfigError(f"{option} {text!r}: {odd!r} is not a whole number from 1; write numbers with commas{also}")
    if len(set(found)) != len(found):
        raise ConfigError(f"{option} {text!r}: a number stands there twice; remove one")
    return tuple(found)
