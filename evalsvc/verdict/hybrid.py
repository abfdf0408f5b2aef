"""What paired outcomes say under the hybrid design: the e-process at every look, the fixed test once at the end."""

from collections.abc import Sequence
from dataclasses import replace

from evalsvc.verdict.clusters import gather_clusters
from evalsvc.verdict.measure import Measurement, measure
from evalsvc.verdict.sequential import E_SHARE, FIXED_SHARE, Sequential, hybrid_p


def feed(differences: Sequence[float], labels: Sequence[str], ends: Sequence[int], *, largest: int = 1) -> Sequential:
    """The processes of a comparison, fed with its blocks.

    Args:
        differences: correct(baseline) - correct(candidate) of each item, in the order in which they were asked.
        labels: Cluster of each item, empty where it stands alone; a cluster's items stand side by side.
        ends: Items up to the end of each block; a block may hold none.
        largest: Items of the largest cluster that is planned.
    """
    process = Sequential(largest)
    start = 0
    for end in ends:
        units = gather_clusters(differences[start:end], labels[start:end])
        process.add(units.totals.tolist(), units.sizes.tolist())
        start = end
    return process


def measure_hybrid(
    baseline: Sequence[float],
    candidate: Sequence[float],
    clusters: Sequence[str],
    ends: Sequence[int],
    *,
    alpha: float = 0.05,
    largest: int = 1,
    complete: bool = True,
) -> Measurement:
    """Measures paired items that were looked at after every block.

    p is the hybrid p; a bound is the better one of the process at a fifth of alpha and, over all planned items, of the
    fixed rule at the rest. Of a part of the items the fixed rule says nothing: where to stop was chosen by looking.

    Args:
        baseline: From 0 to 1 per item, in the order in which they were asked.
        candidate: As `baseline`.
        clusters: As `labels` of `feed`.
        ends: As in `feed`.
        alpha: Error rate of each direction.
        largest: As in `feed`.
        complete: Whether these are all items that were planned.
    """
    differences = [ours - theirs for ours, theirs in zip(baseline, candidate, strict=True)]
    process = feed(differences, clusters, ends, largest=largest)
    fixed = measure(baseline, candidate, clusters, alpha=alpha)
    (lower, upper), (low, high) = (process.bounds(E_SHARE * share) for share in (alpha, alpha / 2))
    method = "e-processes of a part of the items"
    if complete:
        tight = measure(baseline, candidate, clusters, alpha=FIXED_SHARE * alpha)
        lower, upper = max(lower, tight.lower), min(upper, tight.upper)
        low, high = max(low, tight.interval[0]), min(high, tight.interval[1])
        method = f"hybrid of e-processes and {fixed.method}"
    return replace(
        fixed,
        method=method,
        p=hybrid_p(fixed.p if complete else 1.0, process.above(0.0)[-1]),
        p_gain=hybrid_p(fixed.p_gain if complete else 1.0, process.below(0.0)[-1]),
        lower=lower,
        upper=upper,
        interval=(low, high),
        complete=complete,
    )
