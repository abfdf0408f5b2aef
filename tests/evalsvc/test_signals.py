"""Signals beside the verdict: where they come from, and that they ask and never decide."""

from dataclasses import replace

import numpy as np
import pytest

from evalsvc.policy import Policy
from evalsvc.row import Row
from evalsvc.signals import alarms, more_sampling_notes, signals
from evalsvc.store import queries, writer
from evalsvc.store.beside import read_choices
from evalsvc.store.records import Choices
from evalsvc.store.session import open_store
from evalsvc.verdict.secondary import choice_signals
from tests.evalsvc import by_hand

LISTENS = Policy(name="p", more_sampling={"signals": ["gold_margin"], "alpha": 0.01})


def pairs(n, suite="tasks"):
    def side(sample_id):
        return by_hand.side(sample_id=sample_id, finish_reason=None, stage_tokens={"prefill": 1}, handed_over=False)

    about = {"suite": suite, "through": "prefill", "scored_by": "loglikelihood", "metric": "acc", "chance": 0.25}
    return [by_hand.pair(side(i), side(1000 + i), item_id=str(i), **about) for i in range(n)]


def made(n, shift):
    """The candidate's right choice loses `shift` nats; no answer flips."""
    rng = np.random.default_rng(3)
    logprobs = np.sort(rng.normal(-3, 1, (n, 4)))
    logprobs[:, 3] += 1
    worse = logprobs.copy()
    worse[:, 3] -= shift + rng.normal(0, 0.01, n)
    ours = {i: Choices(tuple(row), 3) for i, row in enumerate(logprobs.tolist())}
    theirs = {1000 + i: Choices(tuple(row), 3) for i, row in enumerate(worse.tolist())}
    return ours, theirs


def suite_row(**fields):
    base = {"items": 200, "n": 200, "lost": 2, "gained": 2, "baseline_right": 100}
    return Row(scope="suite", suite="tasks", errors_baseline=0, errors_candidate=0, margin=0.01, **{**base, **fields})


def test_they_are_the_choice_signals_of_each_suite():
    ours, theirs = made(200, 0.05)
    found = signals({"tasks": pairs(200), "tools": []}, ours, theirs)
    expected = choice_signals(
        [c.logprobs for c in ours.values()],
        [c.logprobs for c in theirs.values()],
        [3] * 200,
        np.random.default_rng(200),
    )
    assert [(s.suite, s.name, s.n, s.mean, s.p) for s in found] == [("tasks", *vars(s).values()) for s in expected]
    assert {s.name for s in found} == {"gold_margin", "brier", "gold_probability"}
    assert found[0].mean == pytest.approx(0.05, abs=0.005) and found[0].p < 0.01


def test_items_of_one_cluster_are_one_event():
    """Twenty items under one prefix shift together: as items they shout; four prefixes never say less than 1/8."""
    alone = pairs(80)
    tied = [replace(pair, cluster=f"prefix{i // 20}") for i, pair in enumerate(alone)]
    (base, still), (_, shifted) = made(80, 0.0), made(80, 0.4)
    cand = {**still, **{1000 + i: shifted[1000 + i] for i in range(20)}}
    loud, quiet = (signals({"tasks": some}, base, cand) for some in (alone, tied))
    assert [one.mean for one in loud] == pytest.approx([one.mean for one in quiet])
    assert max(one.p for one in loud) < 0.01 and min(one.p for one in quiet) >= 2 / 2**4


def test_items_whose_choices_are_not_known_in_both_arms_are_left_out():
    ours, theirs = made(50, 0.05)
    del ours[3], theirs[1004]
    theirs[1005] = Choices((-1.0, -2.0), 1)
    assert {s.n for s in signals({"tasks": pairs(50)}, ours, theirs)} == {47}
    assert signals({"tasks": pairs(50)}, {}, theirs) == ()


def test_only_listed_signals_that_are_worse_ask():
    ours, theirs = made(200, 0.05)
    found = signals({"tasks": pairs(200)}, ours, theirs)
    assert [s.name for s in alarms(found, LISTENS)] == ["gold_margin"]
    assert alarms(found, Policy(name="p")) == []
    better = signals(
        {"tasks": pairs(200)}, {k - 1000: v for k, v in theirs.items()}, {k + 1000: v for k, v in ours.items()}
    )
    assert better[0].p < 0.01 and better[0].mean < 0 and alarms(better, LISTENS) == []
    quiet = signals({"tasks": pairs(200)}, *made(200, 0.0))
    assert alarms(quiet, LISTENS) == []


@pytest.mark.parametrize(
    ("word", "row", "says"),
    [
        ("INCONCLUSIVE", {"more_items": 340}, "about 340 more items of it would decide"),
        ("PASS", {}, "more items of it would find a drop of its margin in 80 % of cases"),
        ("PASS", {"n": 9000, "lost": 90, "gained": 90}, "its items would find a drop of its margin in 80 % of cases"),
        ("REGRESSED", {}, None),
        ("INVALID", {}, None),
    ],
)
def test_the_note_says_how_many_items_would_decide(word, row, says):
    found = signals({"tasks": pairs(200)}, *made(200, 0.05))
    notes = more_sampling_notes(found, {"tasks": suite_row(**row)}, LISTENS, word)
    assert bool(notes) == (says is not None)
    if says:
        assert says in notes[0] and "gold_margin of suite tasks worse by 0.05" in notes[0] and "nats" in notes[0]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "text",
        "[]",
        '{"logprobs": [-1.0, -2.0]}',
        '{"logprobs": [-1.0, -2.0], "gold": 2}',
        '{"logprobs": [-1.0], "gold": 0}',
        '{"logprobs": ["x", 1], "gold": 0}',
        '{"logprobs": [-1.0, -2.0], "gold": true}',
    ],
)
def test_answers_without_choices_are_none(tmp_path, answer):
    with open_store(str(tmp_path / "s.sqlite"), create=True) as store:
        run_id = by_hand.open_run(store)
        arm_id = by_hand.open_arm(store, run_id, "base", expected=2)
        good = '{"choices": ["a", "b"], "logprobs": [-1.0, -2.0], "gold": 1}'
        rows = [by_hand.sample(text, 1.0, answer=text, scored_by="loglikelihood") for text in (answer, good)]
        writer.add_samples(store, run_id, arm_id, rows)
        (held,) = queries.arms(store)
        assert list(read_choices(store, held).values()) == [Choices((-1.0, -2.0), 1)]
