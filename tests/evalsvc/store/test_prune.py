"""Old runs go whole; what was promoted or what a decision joins to another run stays, and it is said why."""

import pytest

from evalsvc.errors import StoreError
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.care import problems, stats
from evalsvc.store.prune import plan_pruning, prune
from evalsvc.store.records import Turn
from evalsvc.store.session import open_store


@pytest.fixture
def nights(store, build):
    """Eight runs of `e` with an A/A and a decision each, and one of another experiment; run ids by night."""
    found = []
    for night in range(8):
        run_id = build.run()
        arms = [build.arm(run_id, name) for name in ("base", "cand")]
        for arm_id in arms:
            turns = (Turn(None, None, (1,)),)
            items = [build.sample(f"{night}-{i}", turns=turns) for i in range(3)]
            writer.add_samples(store, run_id, arm_id, [build.sample("same"), *items])
            writer.finish_arm(store, arm_id, {}, "matched")
        writer.finish_run(store, run_id)
        decide(store, *arms)
        build.finished("base", kind="aa", linked_run_id=run_id)
        found.append(run_id)
    build.finished("base", experiment="other")
    return found


def decide(store, baseline: int, candidate: int) -> None:
    writer.save_decision(store, baseline, candidate, "p", "PASS", 0, {})


def arm_of(store, run_id: int, name: str):
    return next(arm for arm in queries.arms(store, run_id) if arm.name == name)


def test_the_newest_of_each_experiment_stay_and_the_rest_goes_whole(store, build, nights):
    planned = plan_pruning(store, 5)
    assert [run.id for run in planned.dropped] == nights[:3] and planned.kept == {}
    assert planned.rows == {"arms": 9, "decisions": 3, "runs": 6, "samples": 24, "scores": 24, "turns": 18}
    before = stats(store).rows
    assert len(queries.runs(store)) == 17, "a plan changes nothing"
    assert prune(store, 5) == planned
    after = stats(store).rows
    gone = {name: before[name] - after[name] for name in before if before[name] != after[name]}
    assert gone == {**planned.rows, "items": 9}
    assert [run.id for run in queries.runs(store) if run.kind == "main" and run.experiment == "e"] == nights[3:]
    assert problems(store) == []
    assert prune(store, 5).dropped == ()


def test_what_was_promoted_and_what_a_decision_joins_to_another_run_stays(store, build, nights):
    promote(store, arm_of(store, nights[0], "base"), "prod", "release 1")
    promote(store, arm_of(store, nights[7], "base"), "prod", "release 2")
    decide(store, arm_of(store, nights[1], "base").id, arm_of(store, nights[6], "cand").id)
    begun = build.run(key="nightly #9")
    for _ in range(2):
        build.finished("base")
    planned = prune(store, 2)
    assert planned.kept == {
        nights[0]: "promoted as @prod",
        nights[1]: f"a decision about run {nights[6]} rests on it",
        nights[6]: f"a decision against run {nights[1]} rests on it",
        nights[7]: "promoted as @prod",
        begun: "unfinished, and a job goes on with it",
    }
    assert [run.id for run in planned.dropped] == nights[2:6]
    assert queries.resolve_arm(store, "@prod").run_id == nights[7] and len(queries.baselines(store)) == 2
    assert len(queries.decisions(store, nights[6])) == 2
    assert problems(store) == []


def test_a_store_for_reading_is_not_pruned(path, store, build, nights):
    with open_store(path, read_only=True) as reader, pytest.raises(StoreError, match="for reading only"):
        prune(reader, 1)
    assert len(queries.runs(store)) == 17
