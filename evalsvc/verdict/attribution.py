"""Which factor did it: main effects and interactions over arms that differ from one baseline in known changes.

A change is a factor with the format that it takes ("decode.kv" -> "fp8"). With y_S the correctness of an item in the
arm with the changes S, the drop that a change f causes in the context S is `y_S - y_(S+f)`, and the interaction of f
and g there is the extra drop of both together:

    (y_S - y_(S+f+g)) - (y_S - y_(S+f)) - (y_S - y_(S+g))

A main effect is the mean over all contexts that the other changes make; where arms are missing, the effect in the
contexts that are there is given, and what the arms cannot separate is said to be unknown. Every effect is a mean of
per-item contrasts, tested by sign-flip over items or clusters, with Holm over all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from evalsvc.verdict.families import holm
from evalsvc.verdict.resample import mean_bounds, sign_flips, two_sided_p

Change = tuple[str, str]  # factor, format
Arm = frozenset[Change]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The drop that a change, or two together, cause. Proportions; positive is worse.

    Attributes:
        changes: One for an effect, two for an interaction.
        contexts: Contexts over which it is the mean, each the other changes present there.
        averaged: Whether these are all contexts; else it holds for these alone.
        n: Items.
        drop: None where the arms cannot tell; then `unknown` says which arm would.
        lower: Lower end of the two-sided interval at 1 - alpha.
        upper: Upper end.
        p: Two-sided, before Holm.
        p_adjusted: After Holm over all effects that are known.
    """

    changes: tuple[Change, ...]
    contexts: tuple[Arm, ...] = ()
    averaged: bool = False
    n: int = 0
    drop: float | None = None
    lower: float | None = None
    upper: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    unknown: str = ""


def attribute(
    correct: Mapping[Arm, np.ndarray], clusters: Sequence[str], rng: np.random.Generator, *, alpha: float = 0.05
) -> list[Effect]:
    """Effects of every change and interactions of every two changes of different factors.

    Args:
        correct: By an arm's changes (none for the baseline) each item's value in [0, 1], NaN where it has none. All of
            shape (items,).
        clusters: Label of each item, empty where it stands alone.
        rng: Source of the sign-flips.
        alpha: Of the intervals, and the level of the family.

    Raises:
        ValueError: No arm without changes.
    """
    if frozenset() not in correct:
        raise ValueError("effects are changes from a baseline, and there is no arm without changes")
    changes = sorted(set().union(*correct))
    wanted = [(change,) for change in changes]
    wanted += [pair for pair in combinations(changes, 2) if pair[0][0] != pair[1][0]]
    found = [_effect(correct, clusters, rng, alpha, chosen, changes) for chosen in wanted]
    known = [effect.p for effect in found if effect.p is not None]
    adjusted = iter(holm(known))
    return [effect if effect.p is None else replace(effect, p_adjusted=next(adjusted)) for effect in found]


def _effect(
    correct: Mapping[Arm, np.ndarray],
    clusters: Sequence[str],
    rng: np.random.Generator,
    alpha: float,
    chosen: tuple[Change, ...],
    changes: list[Change],
) -> Effect:
    contexts = list(_contexts(chosen, changes))
    there = [context for context in contexts if all(context | part in correct for part in _subsets(chosen))]
    if not there:
        missing = next(part for part in _subsets(chosen) if part not in correct)
        needed = " and ".join(f"{factor}={fmt}" for factor, fmt in sorted(missing))
        return Effect(changes=chosen, unknown=f"no arm has {needed} and nothing else")
    contrasts = np.mean([_contrast(correct, context, chosen) for context in there], axis=0)
    usable = ~np.isnan(contrasts)
    if not usable.any():
        return Effect(changes=chosen, unknown="no item is scored in all of the arms")
    labels = [label or f"\x00{i}" for i, label in enumerate(clusters)]
    names = [label for label, use in zip(labels, usable, strict=True) if use]
    index = np.unique(names, return_inverse=True)[1]
    totals, sizes = np.bincount(index, contrasts[usable]), np.bincount(index).astype(float)
    lower, upper, _ = mean_bounds(totals, sizes, alpha / 2, rng, reach=float(len(chosen)))
    return Effect(
        changes=chosen,
        contexts=tuple(there),
        averaged=len(there) == len(contexts),
        n=int(usable.sum()),
        drop=float(contrasts[usable].mean()),
        lower=lower,
        upper=upper,
        p=float(two_sided_p(sign_flips(totals[:, None], rng))[0]),
    )


def _contexts(chosen: tuple[Change, ...], changes: list[Change]) -> Iterator[Arm]:
    """Every choice of one format, or none, for each factor that is not among the chosen changes."""
    factors = {factor for factor, _ in chosen}
    others: dict[str, list[Arm]] = {}
    for factor, fmt in changes:
        if factor not in factors:
            others.setdefault(factor, [frozenset()]).append(frozenset([(factor, fmt)]))
    for parts in product(*others.values()):
        yield frozenset().union(*parts)


def _subsets(chosen: tuple[Change, ...]) -> Iterator[Arm]:
    for size in range(len(chosen) + 1):
        for part in combinations(chosen, size):
            yield frozenset(part)


def _contrast(correct: Mapping[Arm, np.ndarray], context: Arm, chosen: tuple[Change, ...]) -> np.ndarray:
    """Sum over subsets of the chosen changes, signs alternating so that a drop is positive."""
    return sum((-1.0) ** (len(part) + (len(chosen) == 2)) * correct[context | part] for part in _subsets(chosen))  # pyright: ignore[reportReturnType]
