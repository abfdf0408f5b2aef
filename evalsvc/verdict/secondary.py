"""Signals that are sharper than right or wrong, and never a verdict: they order the search and ask for more samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.special import logsumexp

from evalsvc.verdict.resample import sign_flips, two_sided_p


@dataclass(frozen=True)
class Signal:
    """A mean over items. Positive is worse in the candidate.

    Attributes:
        name: `gold_margin` (nats), `brier`, or `gold_probability`.
        n: Items.
        mean: Mean over them.
        p: Two-sided, by sign-flip.
    """

    name: str
    n: int
    mean: float
    p: float


def choice_signals(
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    gold: Sequence[int],
    rng: np.random.Generator,
    clusters: Sequence[str] | None = None,
) -> list[Signal]:
    """What the log-likelihoods of an item's choices say beside which one is the largest.

    - gold margin: log-likelihood of the right choice less the best wrong one's; its fall
    - Brier: squared distance of the choices' probabilities to the right one; its rise
    - gold probability: the right choice's share; its fall

    Args:
        baseline: Log-likelihoods of each item's choices, at least two.
        candidate: As `baseline`.
        gold: Index of the right choice of each item.
        rng: Source of the sign-flips.
        clusters: Label per item, empty where the item stands alone: items of one label take one sign.

    Returns:
        Of the items whose signals are finite in both arms; empty without any.
    """
    if not gold:
        return []
    with np.errstate(invalid="ignore"):
        falls = _of_items(baseline, gold) - _of_items(candidate, gold)
    usable = np.asarray(np.isfinite(falls).all(axis=1))
    falls = falls[usable]
    if not len(falls):
        return []
    units = falls if clusters is None else _totals(falls, [clusters[int(i)] for i in np.flatnonzero(usable)])
    ps = two_sided_p(sign_flips(units, rng, draws=1999))
    return [
        Signal(name, len(falls), float(mean), float(p))
        for name, mean, p in zip(("gold_margin", "brier", "gold_probability"), falls.mean(axis=0), ps, strict=True)
    ]


def _totals(values: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """Sums over the items of a label. Shape: (items, signals) -> (units, signals)."""
    index = np.unique([label or f"\x00{i}" for i, label in enumerate(labels)], return_inverse=True)[1]
    return np.stack([np.bincount(index, column) for column in values.T], axis=1)


def _of_items(logprobs: Sequence[Sequence[float]], gold: Sequence[int]) -> np.ndarray:
    """Gold margin, Brier (negated) and gold probability. Shape: (items, 3)."""
    counts = np.array([len(row) for row in logprobs])
    there = np.arange(counts.max()) < counts[:, None]
    values = np.full(there.shape, -np.inf)
    values[there] = np.fromiter(chain.from_iterable(logprobs), dtype=float, count=int(counts.sum()))
    shares = np.exp(values - logsumexp(values, axis=1, keepdims=True))
    right = np.arange(there.shape[1]) == np.asarray(gold)[:, None]
    margin = values[right] - values.max(axis=1, where=~right, initial=-np.inf)
    return np.stack([margin, -((shares - right) ** 2).sum(axis=1), shares[right]], axis=1)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 99 %, 99.9 % and largest of what was seen at each token, and how many; empty without any."""
    if not len(values):
        return {}
    array = np.asarray(values, dtype=float)
    quantiles = {"median": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: float(np.quantile(array, share)) for name, share in quantiles.items()}
    return {"n": float(len(array)), "mean": float(array.mean()), **found, "max": float(array.max())}
