"""What is kept of many tokens' KL: how far on average and at worst, and where along the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# name -> which share of the tokens is no further; observed values, never between two of them
QUANTILES = {"kl_median": 0.5, "kl_p99": 0.99, "kl_p999": 0.999}
FIRST_EDGE = 8  # tokens; every later range is twice as long as the one before it


def summary(kl: Sequence[float], same_top1: Sequence[bool], position: Sequence[int]) -> dict[str, Any]:
    """Mean, quantiles and maximum of tokens' KL, and the same mean by position.

    Args:
        kl: KL(baseline || arm) of each token's next-token distribution, nats; at least one.
        same_top1: Whether both arms' likeliest token is the same there.
        position: The token's place in its text, from 0.

    Returns:
        `kl_mean`, `kl_median`, `kl_p99`, `kl_p999`, `kl_max` in nats, `tokens`, `same_top1` (a proportion), and
        `along`: for each range of positions that has tokens `start`, `end` (exclusive), `tokens`, `kl_mean`, `kl_p99`
        and `same_top1`. A quantile is the smallest observed value that so many tokens do not exceed; of fewer than
        1,000 tokens the last one is the maximum.
    """
    far, same, place = np.asarray(kl, float), np.asarray(same_top1, bool), np.asarray(position, int)
    along = []
    start, end = 0, FIRST_EDGE
    while start <= place.max():
        inside = (start <= place) & (place < end)
        if inside.any():
            here = {"kl_mean": float(far[inside].mean()), "kl_p99": _quantile(far[inside], 0.99)}
            shares = {"tokens": int(inside.sum()), "same_top1": float(same[inside].mean())}
            along.append({"start": start, "end": end, **shares, **here})
        start, end = end, 2 * end
    return {
        "kl_mean": float(far.mean()),
        **{name: _quantile(far, share) for name, share in QUANTILES.items()},
        "kl_max": float(far.max()),
        "tokens": len(far),
        "same_top1": float(same.mean()),
        "along": along,
    }


def _quantile(values: np.ndarray, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))
