"""What is stored, what is left alone and what is refused."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select

from evalsvc.errors import StoreError
from evalsvc.store import queries, writer
from evalsvc.store.records import NewScore, Rescored
from evalsvc.store.schema import Arm, ItemRow, Run, Sample, ScoreRow
from evalsvc.store.session import open_store


def count(store, table) -> int:
    with store.session() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_the_same_samples_stored_twice_are_one(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    samples = [build.sample(i) for i in range(5)]
    assert writer.add_samples(store, run_id, arm_id, samples) == 5
    assert writer.add_samples(store, run_id, arm_id, samples) == 0
    assert writer.add_samples(store, run_id, arm_id, [samples[0], build.sample(9), build.sample(9)]) == 1
    assert (count(store, Sample), count(store, ItemRow), count(store, ScoreRow)) == (6, 6, 6)


def test_an_existing_answer_is_never_overwritten(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, 1.0, answer="first")])
    writer.add_samples(store, run_id, arm_id, [build.sample(0, 0.0, answer="second"), build.error(0)])
    with store.session() as session:
        assert session.scalars(select(Sample.answer)).all() == ["first"]
        assert session.scalars(select(ScoreRow.value)).all() == [1.0]


def test_an_error_is_replaced_by_the_next_try(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    assert writer.add_samples(store, run_id, arm_id, [build.error(0), build.sample(1)]) == 2
    assert writer.done_keys(store, arm_id) == {build.sample(1).key}
    assert writer.add_samples(store, run_id, arm_id, [build.error(0, error_message="again")]) == 1
    assert writer.add_samples(store, run_id, arm_id, [build.sample(0)]) == 1
    assert writer.done_keys(store, arm_id) == {build.sample(0).key, build.sample(1).key}
    with store.session() as session:
        row = session.scalars(select(Sample).join(ItemRow).where(ItemRow.item_id == "0")).one()
        assert (row.status, row.error_class, row.error_message) == ("scored", None, None)


def test_a_skipped_sample_is_not_asked_again(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, None, status="skipped")])
    assert writer.done_keys(store, arm_id) == {build.sample(0).key}


def test_arms_share_items_and_not_samples(store, build):
    run_id = build.run()
    for name in ("base", "cand"):
        assert writer.add_samples(store, run_id, build.arm(run_id, name), [build.sample(0)]) == 1
    assert (count(store, Sample), count(store, ItemRow)) == (2, 1)


def test_a_batch_is_stored_whole_or_not_at_all(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    bad = build.sample(2, timings={"decode_s": float("nan")})
    with pytest.raises(StoreError, match="not finite"):
        writer.add_samples(store, run_id, arm_id, [build.sample(1), bad])
    assert count(store, Sample) == count(store, ItemRow) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(store, build, value):
    run_id = build.run()
    arm_id = build.arm(run_id)
    with pytest.raises(StoreError, match="item '0' of suite 'tasks': acc is"):
        writer.add_samples(store, run_id, arm_id, [build.sample(0, value)])


def test_an_item_described_in_two_ways_is_refused(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0)])
    with pytest.raises(StoreError, match="cluster 'p0' and is now 'p1'"):
        writer.add_samples(store, run_id, arm_id, [build.sample(0, cluster="p1", request_hash="other")])


@pytest.mark.parametrize("text", ["a\x00b", "a\u2028b", "<script>", "x" * 200_000, "\U0001f600", "\r\n"])
def test_hostile_text_comes_back_as_it_was(store, build, kind, text):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, answer=text, prompt=text)])
    with store.session() as session:
        row = session.scalars(select(Sample)).one()
        # PostgreSQL has no null byte in a text
        kept = text.replace("\x00", "\\x00") if kind == "postgresql" else text
        assert (row.answer, row.prompt, row.escaped) == (kept, kept, kept != text)


def test_a_lone_surrogate_is_stored_as_its_escape(store, build):
    """UTF-8 cannot hold it, and half of an emoji at a token limit is what a model may leave."""
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, answer="a\ud83db", error_message="\udc80")])
    with store.session() as session:
        row = session.scalars(select(Sample)).one()
        assert (row.answer, row.error_message) == ("a\\ud83db", "\\udc80")
    with pytest.raises(StoreError, match="item_id holds a lone surrogate"):
        writer.add_samples(store, run_id, arm_id, [build.sample("\udc80")])


@pytest.mark.parametrize("left", ["(D).", "", "a\0b\tc\\N\u2028", "long " * 400, "half \ud83d", None])
def test_what_a_filter_left_comes_back_with_its_score_first_and_scored_again(store, build, kind, left):
    run_id = build.run()
    arm_id = build.arm(run_id)
    score = NewScore(metric="acc", filter="strict", value=0.0, filtered=left)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, scores=(score,))])
    writer.add_scores(store, [Rescored(sample_id=1, scoring_version="2", scores=(score,))], {})
    kept = left and left.replace("\0", "\\x00" if kind == "postgresql" else "\0").replace("\ud83d", "\\ud83d")
    with store.session() as session:
        assert [row.filtered for row in session.scalars(select(ScoreRow))] == [kept, kept]


def test_opening_an_arm_again_finds_it_and_a_changed_one_is_refused(store, build):
    run_id = build.run()
    assert build.arm(run_id) == build.arm(run_id)
    with pytest.raises(StoreError, match="model, plan or engine changed; start another run"):
        build.arm(run_id, fingerprint="other")
    with pytest.raises(StoreError, match="there is no run 99"):
        build.arm(99)


def test_a_run_finishes_only_after_its_arms(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    with pytest.raises(StoreError, match="its arms base have not"):
        writer.finish_run(store, run_id)
    writer.save_probe(store, arm_id, {"decode": {"kl_mean": 0.1}})
    writer.finish_arm(store, arm_id, {"bytes": 1}, "matched")
    writer.finish_run(store, run_id)
    with store.session() as session:
        run, arm = session.scalars(select(Run)).one(), session.scalars(select(Arm)).one()
        assert (run.status, arm.status, arm.proof_status, arm.probe) == (
            "finished",
            "finished",
            "matched",
            {"decode": {"kl_mean": 0.1}},
        )


def test_samples_of_an_unknown_arm_are_refused(store, build):
    run_id, other = build.run(), build.run()
    arm_id = build.arm(other)
    with pytest.raises(StoreError, match=f"run {run_id} has no arm {arm_id}"):
        writer.add_samples(store, run_id, arm_id, [build.sample(0)])
    with pytest.raises(StoreError, match="there is no arm 99"):
        writer.finish_arm(store, 99, None, "matched")


def test_a_decision_with_nan_is_refused(store, build):
    run_id = build.run()
    a, b = build.arm(run_id, "a"), build.arm(run_id, "b")
    with pytest.raises(StoreError, match="no plain JSON"):
        writer.save_decision(store, a, b, "p", "PASS", 0, {"margin": float("nan")})
    assert writer.save_decision(store, a, b, "p", "PASS", 0, {"margin": 5.0}) == 1
    with pytest.raises(StoreError, match="contradicts"):
        writer.save_decision(store, a, 99, "p", "PASS", 0, {})


def test_find_run_takes_the_latest_whose_arms_agree(store, build):
    first, second, empty = build.run(), build.run(), build.run()
    build.arm(first, "base")
    build.arm(second, "base", fingerprint="changed")
    same = {"base": "fp-base", "cand": "fp-cand"}
    assert writer.find_run(store, "h", same) == empty
    build.arm(empty, "elsewhere")
    assert writer.find_run(store, "h", same) == first
    assert writer.find_run(store, "h", same, status="finished") is None
    assert writer.find_run(store, "other", same) is None
    aa = build.run(kind="aa", linked_run_id=first)
    assert writer.find_run(store, "h", same, kind="aa", linked_run_id=first) == aa
    assert writer.find_run(store, "h", same, kind="aa", linked_run_id=second) is None


def test_two_writers_at_once_store_each_key_once(path: Path, store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    stored: list[int] = []

    def work() -> None:
        with open_store(path) as own:
            for start in range(0, 100, 10):
                batch = [build.sample(i) for i in range(start, start + 10)]
                stored.append(writer.add_samples(own, run_id, arm_id, batch))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(stored) == count(store, Sample) == count(store, ScoreRow) == 100


_ENDLESS = """
import sys
from evalsvc.store import writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import open_store
with open_store(sys.argv[1]) as store:
    for batch in range(10**6):
        samples = [
            NewSample(suite="s", item_id=f"{batch}-{i}", item_hash="h", family="f", cluster="", metric="acc",
                      filter="none", chance=0.0, scored_by="generation", request_hash="r", settings_hash="s",
                      rendered_hash=None, answer="x" * 2000, scores=(NewScore(metric="acc", filter="none", value=1.0),))
            for i in range(16)
        ]
        writer.add_samples(store, 1, 1, samples)
        print(batch, flush=True)
"""


def test_a_killed_writer_leaves_whole_batches(path: Path, store, build):
    build.arm(build.run())
    process = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = -1
    for line in process.stdout:
        reported = int(line)
        if reported >= 5:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    with open_store(path) as again:
        stored = count(again, Sample)
        assert stored % 16 == 0
        assert stored >= 16 * (reported + 1)
        assert count(again, ScoreRow) == count(again, ItemRow) == stored
        assert writer.add_samples(again, 1, 1, [build.sample(0)]) == 1


def test_rescoring_under_another_version_is_what_counts(store, build):
    """A second scoring adds a row; the pair reads the newest."""
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0, 0.0)])
    with store.transaction() as session:
        score = NewScore(metric="acc", filter="none", value=1.0)
        session.add(ScoreRow(sample_id=1, scoring_version="2", metric="acc", filter="none", value=score.value))
        session.add(ScoreRow(sample_id=1, scoring_version="2", metric="other", filter="none", value=0.5))
    arm = queries.resolve_arm(store, f"{run_id}:base")
    (pair,) = queries.pairs(store, arm, arm)
    assert pair.baseline is not None and (pair.baseline.value, pair.baseline.scoring_version) == (1.0, "2")


def test_what_is_right_is_kept_with_the_item_and_added_where_an_earlier_version_left_it_out(store, build):
    run_id = build.run()
    first, second = build.arm(run_id, "a"), build.arm(run_id, "b")
    writer.add_samples(store, run_id, first, [build.sample(0), build.sample(1, right_answer="of \udc80one")])
    writer.add_samples(store, run_id, second, [build.sample(0, right_answer="of zero"), build.sample(1)])
    with store.session() as session:
        found = {row.item_id: row.right_answer for row in session.scalars(select(ItemRow))}
    assert found == {"0": "of zero", "1": "of \\udc80one"}


def test_what_a_target_can_do_is_kept_with_the_arm(store, build):
    run_id = build.run()
    can = {"tools on offer": {"can": False, "about": "no template"}}
    facts = {"plan": "w=bf16", "stages": {}, "injected": {}, "details": {}, "expected": 1}
    writer.open_arm(store, run_id, name="a", fingerprint="f", **facts, capabilities=can)
    writer.open_arm(store, run_id, name="b", fingerprint="g", **facts)
    assert [arm.capabilities for arm in queries.arms(store, run_id)] == [can, {}]
