"""A recorded run is there whole, once, or not at all."""

import pytest
from sqlalchemy import func, select

from evalsvc.errors import StoreError
from evalsvc.store import queries
from evalsvc.store.recording import record_run
from evalsvc.store.records import NewArm
from evalsvc.store.schema import Arm, ItemRow, Run, Sample, ScoreRow

TABLES = (Run, Arm, ItemRow, Sample, ScoreRow)


def new_arm(name, samples, **changes):
    values = {"plan": "", "stages": {"prefill": {}, "decode": {}}, "details": {}, "proof_status": None}
    return NewArm(**({"name": name, "fingerprint": f"fp-{name}", "samples": tuple(samples)} | values | changes))


def record(store, *arms, **changes):
    return record_run(store, **({"experiment": "e", "experiment_hash": "h", "arms": arms} | changes))


def counts(store):
    with store.session() as session:
        return [session.scalar(select(func.count()).select_from(table)) for table in TABLES]


def test_a_run_is_finished_with_all_its_arms_samples_and_scores(store, build):
    arms = [new_arm(name, [build.sample(0, value), build.error(1)]) for name, value in (("a", 1.0), ("b", 0.0))]
    stored = record(store, *arms)
    assert stored.new and stored.again_id is None
    base, other = queries.arms(store, stored.run_id)
    assert (base.name, base.baseline, base.status, base.run_status, base.expected) == (
        "a",
        "a",
        "finished",
        "finished",
        2,
    )
    assert base.proof_status is None and queries.run_record(store, stored.run_id).finished_at
    first, second = queries.pairs(store, base, other)
    assert (first.baseline.value, first.candidate.value) == (1.0, 0.0)
    assert second.baseline.status == second.candidate.status == "error"
    assert queries.resolve_arm(store, "b").id == other.id


def test_the_same_again_stores_nothing(store, build):
    arm, again = new_arm("a", [build.sample(0)]), new_arm("a", [build.sample(0, 0.0)])
    first = record(store, arm, again=again)
    before = counts(store)
    second = record(store, arm, again=again)
    assert (second.run_id, second.again_id, second.new) == (first.run_id, first.again_id, False)
    assert counts(store) == before


def test_the_second_run_of_the_baseline_is_its_check(store, build):
    stored = record(store, new_arm("a", [build.sample(0)]), again=new_arm("a", [build.sample(0, 0.0)]))
    found = queries.aa_of(store, stored.run_id)
    assert found is not None and found.run_id == stored.again_id and found.fingerprint == "fp-a"
    assert queries.resolve_arm(store, "a").run_id == stored.run_id


@pytest.mark.parametrize("broken", ["nan", "twice", "surrogate"])
def test_what_cannot_be_stored_leaves_nothing(store, build, broken):
    bad = {
        "nan": [build.sample(0, float("nan"))],
        "twice": [build.sample(0), build.sample(0)],
        "surrogate": [build.sample(0, item_id="\udc80")],
    }[broken]
    with pytest.raises(StoreError):
        record(store, new_arm("a", [build.sample(0)]), new_arm("b", [build.sample(1), *bad]))
    assert counts(store) == [0, 0, 0, 0, 0]
