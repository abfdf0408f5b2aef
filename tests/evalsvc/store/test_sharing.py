"""One SQLite file under several processes and over a changed order of items: nobody is turned away, no row is lost."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select

from evalsvc.store import writer
from evalsvc.store.schema import Arm, ItemRow, Sample, ScoreRow
from evalsvc.store.session import open_store

# EVALSVC_SHARING_BATCHES=2000 goes on for minutes.
_BATCHES = int(os.environ.get("EVALSVC_SHARING_BATCHES", "60"))

_WRITES_AND_READS = """
import sys
from evalsvc.store import queries, writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import open_store
path, arm_id, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
written = 0
print("ready", flush=True)
sys.stdin.readline()  # begin together
with open_store(path) as store:
    for batch in range(batches):
        samples = [
            NewSample(suite="s", item_id=f"{batch}-{i}", item_hash="h", family="f", cluster="", metric="acc",
                      filter="none", chance=0.0, scored_by="generation", request_hash="r", settings_hash="s",
                      rendered_hash=None, answer="4", scores=(NewScore(metric="acc", filter="none", value=1.0),))
            for i in range(16)
        ]
        written += writer.add_samples(store, 1, arm_id, samples)
        assert queries.arm_totals(store, arm_id) and len(queries.runs(store)) == 1
print(written)
"""


def sound(path: Path) -> bool:
    """Whether SQLite itself finds the file whole."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
def test_four_processes_write_and_read_one_file(path, store, build):
    run_id = build.run()
    arm_ids = [build.arm(run_id, f"arm{k}") for k in range(4)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITES_AND_READS, str(path), str(arm_id), str(_BATCHES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arm_id in arm_ids
    ]
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [(*process.communicate(), process.returncode) for process in processes]
    assert [(err, code) for _, err, code in ended] == [("", 0)] * 4
    written = {arm_id: int(out) for arm_id, (out, _, _) in zip(arm_ids, ended, strict=True)}
    with store.session() as session:
        by_arm = session.execute(select(Sample.arm_id, func.count()).group_by(Sample.arm_id)).all()
        scores = session.scalar(select(func.count()).select_from(ScoreRow))
    assert set(written.values()) == {16 * _BATCHES}
    assert dict(tuple(row) for row in by_arm) == written
    assert scores == sum(written.values())
    assert sound(path)


def test_a_duplicate_behind_a_long_transaction_waits_and_keeps_the_batch(path, store, build):
    arm_id = build.arm(run_id := build.run())
    writer.add_samples(store, run_id, arm_id, [build.sample(1)])
    with (
        open_store(path) as patient,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        letting_go = threading.Timer(1.0, other.execute, ["COMMIT"])
        letting_go.start()
        assert writer.add_samples(patient, run_id, arm_id, [build.sample(i) for i in range(3)]) == 2
        letting_go.join()
    assert writer.done_keys(store, arm_id) == {build.sample(i).key for i in range(3)}


def test_an_answer_stays_with_its_item_when_the_order_changes(store, build):
    arm_id = build.arm(run_id := build.run())
    writer.add_samples(store, run_id, arm_id, [build.sample("q1", answer="a1")])
    reordered = [build.sample(name) for name in ("q3", "q1", "q2")]
    done = writer.done_keys(store, arm_id)
    assert [sample.item_id for sample in reordered if sample.key not in done] == ["q3", "q2"]
    assert build.sample("q1", settings_hash="another temperature").key not in done
    assert build.sample("q1", item_hash="another text").key not in done
    writer.add_samples(store, run_id, arm_id, reordered)
    with store.session() as session:
        kept = select(ItemRow.item_id).join(Sample).join(Arm).where(Sample.answer == "a1", Arm.id == arm_id)
        assert session.scalars(kept).all() == ["q1"]
