"""Runs by the key that they were begun under, and what of them is an integrity incident."""

from sqlalchemy import func, literal, select

from evalsvc.store.job_tables import RunKeyRow
from evalsvc.store.schema import Arm, Sample
from evalsvc.store.session import Store


def run_of_key(store: Store, key: str) -> int | None:
    """The run that was begun under a key."""
    with store.session() as session:
        return session.scalar(select(RunKeyRow.run_id).where(RunKeyRow.key == key))


def incidents(store: Store, run_id: int) -> dict[str, str]:
    """By arm of a run, what breaks the trust in what it holds; empty for an arm without incident."""
    integrity = literal("integrity", literal_execute=True)  # a database must see it to use the index of these alone
    broken = select(Sample.arm_id, func.count()).where(Sample.run_id == run_id, Sample.error_class == integrity)
    with store.session() as session:
        counts = {row.arm_id: row[1] for row in session.execute(broken.group_by(Sample.arm_id))}
        arms = session.execute(select(Arm.id, Arm.name, Arm.proof_status).where(Arm.run_id == run_id)).all()
    said = {}
    for arm_id, name, proof in arms:
        what = []
        if proof == "mismatched":
            what.append("what was measured of it does not match its plan")
        if counts.get(arm_id):
            what.append(f"pages of its KV cache failed their check in {counts[arm_id]:,} samples")
        said[name] = "; ".join(what)
    return said
