"""Figures of tool calls from stored scores."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from evalsvc.calling import call_figures
from evalsvc.cli.listing import calls_document, render_arm
from evalsvc.store import queries, writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.schema import ScoreRow
from evalsvc.store.session import open_store
from evalsvc.suites.toolcall.figures import Triggering
from tests.evalsvc import by_hand

# per item: a call is right, and what each arm did: (begun a call, it fits its schema)
WANTED = [True, True, True, True, False, False, True, False]
BASE = [(1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0), (1, 1), (0, 0)]
CAND = [(1, 1), (1, 0), (0, 0), (0, 0), (1, 1), (0, 0), (1, 1), (0, 0)]


def sample(number: int, suite: str, scores: dict[str, float], version: str = "1") -> NewSample:
    held = tuple(NewScore(metric=m, filter="json", value=float(v)) for m, v in scores.items())
    about = {"suite": suite, "metric": "correct", "filter": "json", "scoring_version": version}
    return by_hand.sample(f"i{number}", scores=held, **about)


def answers(did: list[tuple[int, int]]) -> list[NewSample]:
    rows = []
    for number, ((called, fits), wanted) in enumerate(zip(did, WANTED, strict=True)):
        scores = {"correct": 1, "triggered": called, "trigger_right": bool(called) == wanted}
        rows.append(sample(number, "calls", scores | ({"schema_valid": fits} if called else {})))
    return [*rows, sample(0, "other", {"correct": 1})]


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "a.sqlite", create=True) as opened:
        run = by_hand.open_run(opened)
        for name, did in (("base", BASE), ("cand", CAND)):
            arm = by_hand.open_arm(opened, run, name, expected=9)
            writer.add_samples(opened, run, arm, answers(did))
        yield opened


def test_counts_are_those_of_the_answers(store):
    base, cand = queries.arms(store, 1)
    found = call_figures(store, cand, base)
    assert list(found) == ["calls"], "a suite without calls has no figures"
    figures = found["calls"]
    assert (figures.answers, figures.triggered, figures.valid) == (8, 4, 3)
    assert figures.expected == Triggering(both=3, ours=1, reference=2, neither=2)
    assert figures.reference == Triggering(both=3, ours=1, reference=1, neither=3)
    assert figures.schema_accuracy == pytest.approx(3 / 4)
    document = calls_document(figures)
    assert document["f1_expected"] == pytest.approx(6 / 9) and document["f1_reference"] == pytest.approx(6 / 8)


def test_the_baseline_has_no_reference_and_an_arm_that_never_calls_no_accuracy(store):
    base, _ = queries.arms(store, 1)
    assert call_figures(store, base, base)["calls"].reference is None
    run = by_hand.open_run(store)
    arm_id = by_hand.open_arm(store, run, "mute")
    writer.add_samples(store, run, arm_id, [sample(0, "calls", {"correct": 0, "triggered": 0, "trigger_right": 0})])
    mute = queries.arms(store, run)[0]
    figures = call_figures(store, mute)["calls"]
    assert figures.schema_accuracy is None and figures.expected.f1 == 0.0
    assert calls_document(figures)["schema_accuracy"] is None
    render_arm(mute, queries.arm_totals(store, mute.id), None, {"calls": figures})


def test_the_scoring_version_that_counts_is_read(store):
    """After new rules that see no calls the figures are theirs; once the arm is read under the old ones, the old."""
    base, cand = queries.arms(store, 1)
    with store.session() as session:
        ids = session.scalars(select(ScoreRow.sample_id).where(ScoreRow.metric == "triggered")).all()
        for sample_id in ids:
            for metric in ("triggered", "trigger_right"):
                session.add(ScoreRow(sample_id=sample_id, scoring_version="2", metric=metric, filter="json", value=0.0))
        session.commit()
    assert call_figures(store, cand, base)["calls"].triggered == 0
    back = replace(cand, details={"rescored": {"calls": "1"}})
    assert call_figures(store, back, base)["calls"].triggered == 4
