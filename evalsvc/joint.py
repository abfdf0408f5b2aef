"""Drops of several candidates in all suites at once, tested together: arms that share a baseline share its luck."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsvc.errors import EvidenceError
from evalsvc.evidence import average_repeats, counted_by_suite, differing_factors, nothing_scored
from evalsvc.ordering import Placed
from evalsvc.reading import scored_values
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord, Pair
from evalsvc.store.session import Store
from evalsvc.verdict.families import max_drop_p


@dataclass(frozen=True, kw_only=True)
class JointDrop:
    """One candidate in one suite. `drop` is a proportion, `p` one-sided and adjusted for all rows of the table."""

    candidate: str
    suite: str
    n: int
    lost: int
    gained: int
    drop: float
    p: float


def joint_drops(
    store: Store, baseline: ArmRecord, candidates: Sequence[ArmRecord], *, draws: int = 9_999
) -> list[JointDrop]:
    """Tests each candidate's drop in each suite by the largest drop that signs at random give any of them.

    Items of one cluster get one sign, and so does an item in all candidates. Rows that are blind to what differs are
    left out, as are items that either arm did not score.

    Args:
        store: Where the samples are.
        baseline: What all candidates are compared with.
        candidates: Other arms.
        draws: Of signs.

    Raises:
        EvidenceError: Nothing was scored by the baseline and any candidate.
    """
    totals: dict[str, dict[str, np.ndarray]] = defaultdict(dict)  # by suite and unit, one column a candidate
    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    why = ""
    for column, candidate in enumerate(candidates):
        pairs = average_repeats(queries.pairs(store, baseline, candidate))
        why = why or nothing_scored(baseline, candidate, pairs)
        for suite, members in counted_by_suite(pairs, differing_factors(baseline, candidate)).items():
            for pair in members:
                if scored := scored_values(pair):
                    row = totals[suite].setdefault(_unit(pair), np.zeros(len(candidates)))
                    row[column] += scored[0] - scored[1]
                    values[column, suite].append(scored[0] - scored[1])
    if not totals:
        raise EvidenceError(why)
    differences = {suite: np.array(list(rows.values())) for suite, rows in sorted(totals.items())}
    adjusted = max_drop_p(differences, np.random.default_rng(0), draws=draws)
    return [
        JointDrop(
            candidate=candidates[column].address,
            suite=suite,
            n=len(seen),
            lost=sum(value > 0 for value in seen),
            gained=sum(value < 0 for value in seen),
            drop=float(np.mean(seen)),
            p=adjusted[f"{suite}/{column}"],
        )
        for column in range(len(candidates))
        for suite in differences
        if (seen := values[column, suite])
    ]


def _unit(pair: Pair) -> str:
    return Placed(pair.suite, pair.family, pair.cluster, pair.item_id).unit
