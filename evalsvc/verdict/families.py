"""Several tests at once."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import false_discovery_control

from evalsvc.verdict.resample import flipped_sums


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given, that control the chance of any false rejection.

    The i-th smallest of m becomes the running maximum of `(m - i + 1) p_(i)`, at most 1.

    Raises:
        ValueError: A p outside [0, 1], or NaN.

    Source: Holm 1979, Scand J Stat 6:65.
    """
    if not all(0 <= value <= 1 for value in p):
        raise ValueError("a p value lies between 0 and 1")
    adjusted = [0.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, (len(p) - rank) * p[index])
        adjusted[index] = min(running, 1.0)
    return adjusted


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given, that control the expected share of false rejections.

    Source: Benjamini & Hochberg 1995, J R Stat Soc B 57:289.
    """
    return [float(value) for value in false_discovery_control(p)] if p else []


def gatekeep(parent_rejected: bool, p: Mapping[str, float]) -> dict[str, float | None]:
    """Slices of a suite: Benjamini-Hochberg, and only once the suite itself was rejected.

    Returns:
        Adjusted p by slice; None for all while the parent stands (they may be looked at, and mean nothing).
    """
    if not parent_rejected:
        return dict.fromkeys(p)
    return dict(zip(p, benjamini_hochberg(list(p.values())), strict=True))


def max_drop_p(
    differences: Mapping[str, np.ndarray], rng: np.random.Generator, *, draws: int = 9_999
) -> dict[str, float]:
    """p of each task's drop, adjusted for all tasks and arms at once by the largest standardised drop.

    Under "no drop" the sign of an item's differences is arbitrary, and one sign is drawn for all arms of an item: arms
    that share a baseline share its luck. With `z = sum D / sqrt(sum D^2)` per task and arm,
    `p = (1 + #{draws: max z >= z seen}) / (1 + draws)`, made monotone by Westfall & Young's step-down.

    Args:
        differences: Per task, D of each item and arm, 0 where one is missing. Shape: (items, arms).
        rng: Source of the draws.
        draws: How many.

    Returns:
        By `task/arm index`.

    Source: the sign-flip form of Westfall & Young 1993, algorithm 2.8.
    """
    names: list[str] = []
    seen: list[np.ndarray] = []
    drawn: list[np.ndarray] = []
    for task, values in differences.items():
        scale = np.sqrt((values**2).sum(axis=0))
        scale[scale == 0] = np.inf
        names += [f"{task}/{arm}" for arm in range(values.shape[1])]
        seen.append(values.sum(axis=0) / scale)
        moving = values[np.any(values != 0, axis=1)]
        drawn.append(flipped_sums(moving, rng, draws) / scale)
    z, null = np.concatenate(seen), np.concatenate(drawn, axis=1)
    order = np.argsort(-z)
    highest = np.maximum.accumulate(null[:, order[::-1]], axis=1)[:, ::-1]  # over this and all smaller ones
    extreme = (highest >= z[order] - 1e-9).sum(axis=0)
    adjusted = np.maximum.accumulate((1 + extreme) / (1 + draws))
    return {names[index]: float(p) for index, p in zip(order, adjusted, strict=True)}
