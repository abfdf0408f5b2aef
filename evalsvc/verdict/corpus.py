"""Metrics of a whole corpus: perplexity, bits per byte, F1, Matthews correlation, BLEU, chrF, TER.

Each is a function of sums over items: an item's parts (log-likelihood and weight, right and given class, or counts of
n-grams and edits) become moments, moments are summed, and the sums become the metric. So the permutation is one product
of a matrix of swaps with the moments' differences, and the bootstrap sums what it drew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from scipy.stats import t as student

from evalsvc.verdict.measure import FEW_CLUSTERS, Measurement

DRAWS = 1_999
_AT_ONCE = 500_000  # numbers drawn in one piece: they stay in a processor's cache


@dataclass(frozen=True)
class CorpusMetric:
    """How parts of items become a metric.

    Attributes:
        moments: Of both arms' parts. Shapes: (2, items, parts) -> (2, items, k).
        value: Of summed moments. Shapes: (..., k) -> (...).
        credit: How good an item is by itself (more is better), to count those lost and gained. (..., parts) -> (...).
        parts: What an item's parts are.
        width: How many they are.
    """

    moments: Callable[[np.ndarray], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    credit: Callable[[np.ndarray], np.ndarray]
    parts: str
    width: int = 2


def _themselves(parts: np.ndarray) -> np.ndarray:
    return parts


def _perplexity(sums: np.ndarray) -> np.ndarray:
    """`exp(-sum of log-likelihoods / sum of weights)`."""
    return np.exp(-sums[..., 0] / sums[..., 1])


def _bits_per_byte(sums: np.ndarray) -> np.ndarray:
    """`-sum of log-likelihoods / (sum of bytes * ln 2)`."""
    return -sums[..., 0] / (sums[..., 1] * log(2))


def _binary_counts(parts: np.ndarray) -> np.ndarray:
    gold, given = parts[..., 0] == 1, parts[..., 1] == 1
    return np.stack([gold & given, ~gold & given, gold & ~given], axis=-1).astype(float)


def _f1(sums: np.ndarray) -> np.ndarray:
    """`2 TP / (2 TP + FP + FN)` of class 1; 0 where nothing of it was there or given."""
    tp, fp, fn = (sums[..., i] for i in range(3))
    return _ratio(2 * tp, 2 * tp + fp + fn)


def _class_counts(parts: np.ndarray) -> np.ndarray:
    classes = np.unique(parts)
    gold, given = (parts[..., i, None] == classes for i in range(2))
    same = (parts[..., 0] == parts[..., 1])[..., None]
    return np.concatenate([same, np.ones_like(same), gold, given], axis=-1).astype(float)


def _mcc(sums: np.ndarray) -> np.ndarray:
    """Matthews correlation of any number of classes (Gorodkin 2004); 0 where one side is all of one class."""
    classes = (sums.shape[-1] - 2) // 2
    right, items = sums[..., 0], sums[..., 1]
    gold, given = sums[..., 2 : 2 + classes], sums[..., 2 + classes :]
    spread = (items**2 - (gold**2).sum(-1)) * (items**2 - (given**2).sum(-1))
    return _ratio(right * items - (gold * given).sum(-1), np.sqrt(np.maximum(spread, 0)))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.where(below > 0, above / np.where(below > 0, below, 1), 0.0)


def _same_class(parts: np.ndarray) -> np.ndarray:
    return (parts[..., 0] == parts[..., 1]).astype(float)


def _per_weight(parts: np.ndarray) -> np.ndarray:
    return parts[..., 0] / parts[..., 1]


def _bleu(sums: np.ndarray) -> np.ndarray:
    """100 times brevity penalty and geometric mean of the precisions of 1- to 4-grams (Papineni 2002).

    The k-th order without a match counts `1 / 2^k` matches (sacreBLEU's `exp`; Chen and Cherry 2014, method 3); 0 where
    nothing matches or the answers have no 4-gram.
    """
    written, wanted, right, total = sums[..., 0], sums[..., 1], sums[..., 2:6], sums[..., 6:10]
    none = right == 0
    matched = np.where(none, 0.5 ** np.cumsum(none, axis=-1), right)
    some = (right > 0).any(axis=-1) & (total > 0).all(axis=-1) & (written > 0)
    precision = matched / np.where(total > 0, total, 1)
    penalty = np.exp(np.minimum(0.0, 1 - wanted / np.where(written > 0, written, 1)))
    return np.where(some, 100 * penalty * np.exp(np.log(precision).mean(axis=-1)), 0.0)


def _chrf(sums: np.ndarray) -> np.ndarray:
    """100 times F2 of the mean precision and mean recall of n-grams (Popovic 2015).

    Orders that the answers or the references lack are left out of the means.
    """
    written, wanted, matched = (sums[..., n::3] for n in range(3))
    known = (written > 0) & (wanted > 0)
    orders = np.maximum(known.sum(axis=-1), 1)
    precision = np.where(known, _ratio(matched, written), 0.0).sum(axis=-1) / orders
    recall = np.where(known, _ratio(matched, wanted), 0.0).sum(axis=-1) / orders
    return 100 * _ratio(5 * precision * recall, 4 * precision + recall)


def _ter(sums: np.ndarray) -> np.ndarray:
    """100 times edits over words of the references (Snover 2006); 100 for edits of none."""
    edits, words = sums[..., 0], sums[..., 1]
    return 100 * np.where(words > 0, edits / np.where(words > 0, words, 1), (edits > 0).astype(float))


def _few_edits(parts: np.ndarray) -> np.ndarray:
    return -_ter(parts)


METRICS = {
    "perplexity": CorpusMetric(_themselves, _perplexity, _per_weight, "log-likelihood, weight"),
    "bits_per_byte": CorpusMetric(_themselves, _bits_per_byte, _per_weight, "log-likelihood, bytes"),
    "f1": CorpusMetric(_binary_counts, _f1, _same_class, "right class, given class"),
    "mcc": CorpusMetric(_class_counts, _mcc, _same_class, "right class, given class"),
    "bleu": CorpusMetric(_themselves, _bleu, _bleu, "lengths, matching and all n-grams", width=10),
    "chrf": CorpusMetric(_themselves, _chrf, _chrf, "n-grams written, wanted and matching", width=18),
    "chrf++": CorpusMetric(_themselves, _chrf, _chrf, "n-grams written, wanted and matching", width=24),
    "ter": CorpusMetric(_themselves, _ter, _few_edits, "edits, words of the reference"),
}


def corpus_value(name: str, parts: np.ndarray) -> float:
    """A metric of one arm. Shape of parts: (items, parts of the metric)."""
    metric = METRICS[name]
    return float(metric.value(metric.moments(np.stack([parts, parts]))[0].sum(axis=0)))


def measure_corpus(
    name: str,
    baseline: np.ndarray,
    candidate: np.ndarray,
    clusters: Sequence[str] | None = None,
    *,
    alpha: float = 0.05,
    better: str = "higher",
) -> Measurement:
    """Measures a metric of the whole corpus. A positive drop is worse, whichever way the metric goes.

    p: labels of the arms are exchanged item by item (cluster by cluster where items share one),
    `(1 + extreme) / (1 + draws)`. Bounds: percentiles of the bootstrap over items; with clusters the widest of these
    and t on C - 1 degrees of freedom with the delete-one-cluster jackknife's error, since a bootstrap of few clusters
    is too short. Where no item differs at all, another item would with a probability of at most `1 - alpha^(1/n)`, and
    then be as bad as the worst that was seen.

    Args:
        name: One of `METRICS`.
        baseline: The parts of each item. Shape: (items, parts of the metric).
        candidate: As `baseline`.
        clusters: Label per item, empty where the item stands alone; None when all do.
        alpha: Error rate of each direction.
        better: `higher` or `lower`.
    """
    metric, sign = METRICS[name], 1.0 if better == "higher" else -1.0
    parts = np.stack([baseline, candidate]).astype(float)
    moments = metric.moments(parts)
    units = _by_cluster(moments, clusters)
    clustered = units.shape[1] < moments.shape[1]
    rng = np.random.default_rng(moments.shape[1])

    def drop(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return sign * (metric.value(ours) - metric.value(theirs))

    sums = moments.sum(axis=1)
    seen = float(drop(sums[0], sums[1]))
    p, p_gain = _permuted(units if units.shape[1] > 1 else moments, drop, seen, rng)
    drawn = _resampled(moments, drop, rng)
    error = _jackknife_error(units, drop) if clustered and units.shape[1] > 1 else None
    bounds = [_bounds(drawn, seen, error, units.shape[1], level) for level in (alpha, alpha / 2)]
    if not np.any(moments[0] != moments[1]):
        bounds = [_if_another_differed(moments, drop, level) for level in (alpha, alpha / 2)]
    credit = metric.credit(parts)
    values = metric.value(sums)
    return Measurement(
        n=moments.shape[1],
        lost=int((credit[0] > credit[1]).sum()),
        gained=int((credit[0] < credit[1]).sum()),
        alpha=alpha,
        p=p,
        p_gain=p_gain,
        p_mid=None,
        lower=bounds[0][0],
        upper=bounds[0][1],
        interval=bounds[1],
        newcombe=None,
        clusters=units.shape[1] if clustered else None,
        few_clusters=clustered and units.shape[1] < FEW_CLUSTERS,
        cluster_error=error or float(drawn.std()) or None,
        method=f"permutation of arms per {'cluster' if clustered else 'item'}, bootstrap over items"
        + (" and jackknife t over clusters" if error is not None else ""),
        mean_drop=seen,
        baseline_mean=float(values[0]),
        candidate_mean=float(values[1]),
    )


def _by_cluster(moments: np.ndarray, clusters: Sequence[str] | None) -> np.ndarray:
    """Moments summed by cluster. Shape: (2, clusters, k)."""
    if not clusters or not any(clusters):
        return moments
    places: dict[object, int] = {}
    index = np.array([places.setdefault(label or i, len(places)) for i, label in enumerate(clusters)])
    summed = np.zeros((2, len(places), moments.shape[2]))
    for total, mine in zip(summed, moments, strict=True):
        np.add.at(total, index, mine)
    return summed


Drop = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _permuted(units: np.ndarray, drop: Drop, seen: float, rng: np.random.Generator) -> tuple[float, float]:
    """One-sided p of a drop and of a gain."""
    sums, apart = units.sum(axis=1), units[1] - units[0]
    moving = apart[np.any(apart != 0, axis=1)]
    slack = 1e-12 * max(1.0, abs(seen))
    lost = gained = 0
    for size in _pieces(len(moving)):
        moved = rng.integers(0, 2, size=(size, len(moving)), dtype=np.int8).astype(float) @ moving
        drawn = drop(sums[0] + moved, sums[1] - moved)
        # a metric without a value is no evidence: NaN counts as extreme in both directions
        lost, gained = lost + int((~(drawn < seen - slack)).sum()), gained + int((~(drawn > seen + slack)).sum())
    return (1 + lost) / (1 + DRAWS), (1 + gained) / (1 + DRAWS)


def _resampled(moments: np.ndarray, drop: Drop, rng: np.random.Generator) -> np.ndarray:
    """The drop of each bootstrap sample of items. Shape: (draws,)."""
    both = np.concatenate([moments[0], moments[1]], axis=1)
    found, items = [], len(both)
    for size in _pieces(items):
        chosen = rng.integers(0, items, size=(size, items)) + items * np.arange(size)[:, None]
        times = np.bincount(chosen.ravel(), minlength=size * items).reshape(size, items)
        found.append(drop(*np.split(times.astype(float) @ both, 2, axis=1)))
    return np.concatenate(found)


def _pieces(items: int) -> list[int]:
    size = max(1, _AT_ONCE // max(1, items))
    return [min(size, DRAWS - start) for start in range(0, DRAWS, size)]


def _jackknife_error(units: np.ndarray, drop: Drop) -> float:
    left = units.sum(axis=1, keepdims=True) - units
    drops, count = drop(left[0], left[1]), units.shape[1]
    return sqrt((count - 1) / count * float(((drops - drops.mean()) ** 2).sum()))


def _bounds(drawn: np.ndarray, seen: float, error: float | None, clusters: int, alpha: float) -> tuple[float, float]:
    lower, upper = float(np.quantile(drawn, alpha)), float(np.quantile(drawn, 1 - alpha))
    if error is not None:
        half = float(student.isf(alpha, clusters - 1)) * error
        lower, upper = min(lower, seen - half), max(upper, seen + half)
    return lower, upper


def _if_another_differed(moments: np.ndarray, drop: Drop, alpha: float) -> tuple[float, float]:
    """Bounds where no item differs: a share of the items becomes the worst (or best) one seen."""
    count = moments.shape[1]
    sums = moments[0].sum(axis=0)
    share = 1 - alpha ** (1 / count)
    swapped = drop(sums[None], (1 - share) * sums[None] + share * count * moments[0])
    return (-inf, inf) if np.ptp(swapped) < 1e-15 else (min(0.0, float(swapped.min())), max(0.0, float(swapped.max())))
