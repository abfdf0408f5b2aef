"""Copying samples inside the database: under the same key alone, newest first, with scores and turns."""

import pytest
from sqlalchemy import select

from evalsvc.errors import StoreError
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.records import NewScore, Turn
from evalsvc.store.reuse import copy_samples
from evalsvc.store.schema import Sample, ScoreRow


def finish(store, build, *items, kind="main", proof="matched", **changes) -> int:
    run_id = build.run(kind=kind)
    arm_id = build.arm(run_id)
    turns = (Turn(None, None, (1, 2)),)
    writer.add_samples(store, run_id, arm_id, [build.sample(i, turns=turns, **changes) for i in items])
    writer.finish_arm(store, arm_id, {}, proof)
    writer.finish_run(store, run_id)
    return run_id


def test_the_newest_of_the_same_arm_is_copied_once_with_all_its_parts(store, build):
    finish(store, build, 1, 2, 3, answer="old")
    finish(store, build, 2, 7, answer="new")
    finish(store, build, 1, kind="aa", answer="again")
    finish(store, build, 1, proof="declared", answer="declared")
    mine = build.arm(run_id := build.run())
    other = build.arm(run_id, "other")
    wanted = {build.sample(i).key for i in (1, 2, 3, 4)}
    assert copy_samples(store, mine, wanted, {"tasks": "1"}) == {"2:base": 1, "1:base": 2}
    assert copy_samples(store, other, wanted, {"tasks": "1"}) == {}
    assert copy_samples(store, mine, wanted, {"tasks": "1"}) == {}
    arm = next(arm for arm in queries.arms(store, run_id) if arm.id == mine)
    held = {found.item_id: found for found in answers(store, arm)}
    assert {name: found.answer for name, found in held.items()} == {"1": "old", "2": "new", "3": "old"}
    assert all(found.turns == (Turn(None, None, (1, 2)),) and found.values == {"1": 1.0} for found in held.values())
    assert arm.details == {"reused": {"2:base": 1, "1:base": 2}}
    assert next(run for run in queries.runs(store) if run.id == run_id).samples == 3


def test_a_copy_knows_what_filters_left_and_what_else_tokens_could_have_been(store, build):
    score = NewScore(metric="acc", filter="none", value=0.0, filtered="(D).")
    finish(store, build, 1, scores=(score,), alternatives=b"\0\xff\\")
    mine = build.arm(build.run())
    assert copy_samples(store, mine, {build.sample(1).key}, {"tasks": "1"}) == {"1:base": 1}
    with store.session() as session:
        assert [row.filtered for row in session.scalars(select(ScoreRow))] == ["(D).", "(D)."]
        assert session.scalars(select(Sample.alternatives)).all() == [b"\0\xff\\"] * 2


def test_what_has_no_score_or_another_scoring_version_is_asked(store, build):
    run_id = finish(store, build, 1, scoring_version="0")
    arm_id = queries.arms(store, run_id)[0].id
    writer.add_samples(store, run_id, arm_id, [build.error(2), build.sample(3)])
    mine = build.arm(build.run())
    assert copy_samples(store, mine, {build.sample(i).key for i in (1, 2, 3)}, {"tasks": "1"}) == {"1:base": 1}
    with pytest.raises(StoreError, match="there is no arm 99"):
        copy_samples(store, 99, set(), {"tasks": "1"})
