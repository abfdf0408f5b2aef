"""Tables of two by two, counted by the database, against the pairs that the gate reads."""

from collections import Counter

from evalsvc.store import queries, writer
from evalsvc.store.paired import Table, tables_by_family
from evalsvc.store.records import NewScore, Rescored


def by_hand(store, baseline, candidate):
    """The same from `queries.pairs`, sample by sample."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for pair in queries.pairs(store, baseline, candidate):
        base, cand = pair.baseline, pair.candidate
        if base is None or cand is None or base.value is None or cand.value is None:
            continue
        right = base.value >= 1, cand.value >= 1
        name = {(True, True): "both", (True, False): "lost", (False, True): "gained", (False, False): "neither"}[right]
        found.setdefault((pair.suite, pair.family), Counter())[name] += 1
    blank = dict.fromkeys(("both", "lost", "gained", "neither"), 0)
    return {key: Table(**{**blank, **counts}) for key, counts in found.items()}


def filled(store, build):
    run_id = build.run()
    arms = []
    for number, name in enumerate(("base", "cand")):
        arm_id = build.arm(run_id, name)
        samples = [
            build.sample(i, float((i * (3 + number)) % 4 > 0), family=f"f{i % 3}", suite=("tasks", "tools")[i % 2])
            for i in range(40)
        ]
        samples += [build.error(100 + number, family="f0"), build.sample(102, 1.0, family="f0", repeat=number)]
        samples += [build.sample(103, 0.5, family="f1"), build.sample(104, None, status="skipped")]
        writer.add_samples(store, run_id, arm_id, samples)
        arms.append(arm_id)
    return run_id, arms


def test_they_count_what_the_gate_reads(store, build):
    run_id, _ = filled(store, build)
    base, cand = queries.arms(store, run_id)
    found = tables_by_family(store, base, cand)
    assert found == by_hand(store, base, cand)
    assert len(found) == 6 and sum(t.lost for t in found.values()) > 0
    assert sum(t.both + t.lost + t.gained + t.neither for t in found.values()) == 41


def test_after_a_rescore_they_count_the_version_that_counts(store, build):
    run_id, (_, cand_id) = filled(store, build)
    base, cand = queries.arms(store, run_id)
    before = tables_by_family(store, base, cand)
    with store.session() as session:
        from sqlalchemy import select

        from evalsvc.store.schema import Sample

        ids = list(session.scalars(select(Sample.id).where(Sample.arm_id == cand_id, Sample.status == "scored")))
    again = [
        Rescored(sample_id=i, scoring_version="2", scores=(NewScore(metric="acc", filter="none", value=0.0),))
        for i in ids
    ]
    writer.add_scores(store, again, {cand_id: {"tasks": "2", "tools": "1"}})
    base, cand = queries.arms(store, run_id)
    found = tables_by_family(store, base, cand)
    assert found == by_hand(store, base, cand)
    assert {k: t for k, t in found.items() if k[0] == "tools"} == {k: t for k, t in before.items() if k[0] == "tools"}
    assert all(table.both == table.gained == 0 for (suite, _), table in found.items() if suite == "tasks")
