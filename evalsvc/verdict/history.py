"""Change points on a series of paired differences to one frozen baseline: an alert, never a gate.

The best split of a segment is the one that lowers the squared error most (ruptures' binary segmentation, one split at a
time); its p is how often the segment in random order has a split as good, `(1 + extreme) / (1 + draws)`. Segments are
split on while p is at most alpha.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import ruptures

SHORTEST = 2


@dataclass(frozen=True)
class ChangePoint:
    """Where a series changed its level.

    Attributes:
        index: First value of the new level.
        before: Mean of the segment before it.
        after: Mean of the segment from it on.
        p: Of the split.
    """

    index: int
    before: float
    after: float
    p: float


def change_points(
    series: Sequence[float], rng: np.random.Generator, *, alpha: float = 0.05, draws: int = 999
) -> list[ChangePoint]:
    """Change points, in the order of the series.

    Args:
        series: Values in the order of time, all finite.
        rng: Source of the permutations.
        alpha: Splits of a larger p are no change points.
        draws: Permutations of each segment.
    """
    values = np.asarray(series, dtype=float)
    found: list[tuple[int, float]] = []
    waiting = [(0, len(values))]
    while waiting:
        start, stop = waiting.pop()
        segment = values[start:stop]
        if len(segment) < 2 * SHORTEST or np.ptp(segment) == 0:
            continue
        split = ruptures.Binseg(model="l2", min_size=SHORTEST, jump=1).fit(segment).predict(n_bkps=1)[0]
        seen = _gains(segment[None])[0]
        drawn = _gains(rng.permuted(np.tile(segment, (draws, 1)), axis=1))
        p = (1 + int(np.sum(drawn >= seen * (1 - 1e-12)))) / (1 + draws)
        if p <= alpha:
            found.append((start + split, p))
            waiting += [(start, start + split), (start + split, stop)]
    if not found:
        return []
    borders = [0, *sorted(index for index, _ in found), len(values)]
    means = [float(values[a:b].mean()) for a, b in pairwise(borders)]
    return [ChangePoint(index, means[i], means[i + 1], p) for i, (index, p) in enumerate(sorted(found))]


def _gains(rows: np.ndarray) -> np.ndarray:
    """How much the best split of each row lowers the squared error. Shape: (rows, values) -> (rows,)."""
    count = rows.shape[1]
    sizes = np.arange(SHORTEST, count - SHORTEST + 1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    left = centred.cumsum(axis=1)[:, sizes - 1]  # the right part sums to minus this
    return (left**2 * (1 / sizes + 1 / (count - sizes))).max(axis=1)
