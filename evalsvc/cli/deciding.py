"""Decisions about arms in a database, for the commands that print them."""

from evalsvc.gate import AAResult, Decision, check_aa, decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store


def decide_stored(store: Store, baseline: ArmRecord, candidate: ArmRecord, policy: Policy) -> Decision:
    """Decides about two stored arms, with the A/A checks of the runs they come from.

    Raises:
        ConfigError: As `decide_gate`.
    """
    checks = [stored_aa(store, run_id) for run_id in dict.fromkeys((baseline.run_id, candidate.run_id))]
    known = [check for check in checks if check is not None]
    aa = next((check for check in known if check.failed), known[0] if known else None)
    return decide_gate(baseline, candidate, queries.pairs(store, baseline, candidate), policy, aa)


def stored_aa(store: Store, run_id: int) -> AAResult | None:
    """The A/A check of a run; None when it has none, or none that is finished."""
    again = queries.aa_of(store, run_id)
    first = next((arm for arm in queries.arms(store, run_id) if again and arm.name == again.name), None)
    if again is None or first is None:
        return None
    return check_aa(queries.pairs(store, first, again), again.address)
