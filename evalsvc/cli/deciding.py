"""Decisions about arms in a database, for the commands that print them."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from evalsvc.evidence import aa_faults
from evalsvc.freshness import stands
from evalsvc.gate import AAResult, Decision, check_aa, decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries
from evalsvc.store.beside import read_beside
from evalsvc.store.records import ArmRecord, Pair
from evalsvc.store.session import Store


def decide_stored(store: Store, baseline: ArmRecord, candidate: ArmRecord, policy: Policy) -> Decision:
    """Decides about two stored arms, with the A/A checks of the runs they come from.

    Where the policy wants a fresh baseline, the decision is about that one, and says so.

    Raises:
        ConfigError: As `decide_gate`.
    """
    standing = stands(store, baseline, candidate, policy)
    baseline, faults = standing.arm, list(standing.faults)
    known: list[AAResult] = []
    for run_id in dict.fromkeys((baseline.run_id, candidate.run_id)):
        repeat = _repeat(store, run_id, policy.metric_suites)
        if repeat is None:
            continue
        check = check_aa(repeat.pairs, repeat.again.address, policy, of=repeat.first.address)
        known += [] if check is None else [check]
        faults += aa_faults(repeat.first, repeat.again, repeat.pairs, policy)
    aa = next(iter(sorted(known, key=lambda check: (not check.failed, not check.n))), None)
    pairs = queries.pairs(store, baseline, candidate, scores_of=policy.metric_suites)
    beside = read_beside(store, baseline), read_beside(store, candidate)
    decision = decide_gate(baseline, candidate, pairs, policy, aa, faults, beside)
    return replace(decision, notes=(*standing.notes, *decision.notes))


def stored_aa(store: Store, run_id: int) -> AAResult | None:
    """The A/A check of a run; None when it has none, or none that is finished."""
    repeat = _repeat(store, run_id)
    return None if repeat is None else check_aa(repeat.pairs, repeat.again.address, of=repeat.first.address)


@dataclass(frozen=True)
class _Repeat:
    first: ArmRecord
    again: ArmRecord
    pairs: list[Pair]


def _repeat(store: Store, run_id: int, scores_of: Collection[str] = ()) -> _Repeat | None:
    again = queries.aa_of(store, run_id)
    first = next((arm for arm in queries.arms(store, run_id) if again and arm.name == again.name), None)
    if again is None or first is None:
        return None
    return _Repeat(first, again, queries.pairs(store, first, again, scores_of=scores_of))
