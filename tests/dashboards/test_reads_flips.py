"""Flips as SQL pairs them: those of the store."""

import shutil
from pathlib import Path

from evalsvc.dashboards import reads_flips
from evalsvc.store import queries, writer
from evalsvc.store.records import NewScore, Rescored
from evalsvc.store.session import open_store


def test_flips_in_sql_are_the_flips_of_the_store(database, hostile_database):
    keys = ("suite", "family", "item", "through", "repeat", "direction")
    for path in (database, hostile_database):
        with open_store(path, read_only=True) as store:
            base, *others = queries.arms(store, 1)
            for arm in others:
                ours = reads_flips.flips(store, base, arm)
                theirs = queries.flips(store, base, arm)
                named = {(f.suite, f.family, f.item, f.through, f.repeat, f.direction) for f in ours}
                assert len(ours) == len(theirs) and named == {tuple(f[k] for k in keys) for f in theirs}
                assert [f.direction for f in ours] == sorted((f.direction for f in ours), reverse=True)


def test_a_scoring_version_that_does_not_count_flips_nothing(tmp_path, database):
    path = Path(shutil.copy(database, tmp_path / "rescored.db"))
    with open_store(path) as store:
        base, arm = (a for a in queries.arms(store, 1) if a.name in ("base", "fp8-weights"))
        before = len(reads_flips.flips(store, base, arm))
        sides = [p.candidate for p in queries.pairs(store, base, arm) if p.suite == "tools" and p.candidate]
        turned = [
            Rescored(
                sample_id=side.sample_id,
                scoring_version="2",
                scores=(NewScore(metric="acc", filter="none", value=1.0 - (side.value or 0.0)),),
            )
            for side in sides
        ]
        writer.add_scores(store, turned, {arm.id: {"tools": "1"}})
        arm = queries.resolve_arm(store, "1:fp8-weights")
        assert len(reads_flips.flips(store, base, arm)) == before
        writer.add_scores(store, [], {arm.id: {"tools": "2"}})
        arm = queries.resolve_arm(store, "1:fp8-weights")
        assert len(reads_flips.flips(store, base, arm)) == len(queries.flips(store, base, arm)) > before
