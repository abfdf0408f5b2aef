"""Which look decides, on hand-made pairs."""

from dataclasses import replace

import numpy as np
import pytest

from evalsvc.looking import complete_looks, find_stop, look_back, placed
from evalsvc.ordering import plan_looks
from evalsvc.policy import Policy
from evalsvc.store.records import Choices, Pair
from tests.evalsvc import by_hand
from tests.evalsvc.by_hand import side

POLICY = Policy(name="s", design="sequential", block_items=20, margin_points=5.0, guard_points=20.0)
DECODE = ("decode.kv",)


def pair(suite: str, number: int, base: float | None, cand: float | None, through: str = "", cluster: str = "") -> Pair:
    tokens = {"prefill": 1} if through == "prefill" else {"prefill": 1, "decode": 3}
    sides = (side(value, stage_tokens=tokens, handed_over="decode" in tokens) for value in (base, cand))
    return by_hand.pair(*sides, suite=suite, item_id=f"{suite}{number}", through=through, cluster=cluster)


def suite(name: str, n: int, lost: int = 0, **fields) -> list[Pair]:
    """Every so many items lost, evenly over the suite."""
    step = n // lost if lost else n + 1
    return [pair(name, i, 1.0, 0.0 if (i + 1) % step == 0 else 1.0, **fields) for i in range(n)]


def decided(
    pairs: list[Pair], policy: Policy = POLICY, planned: list[Pair] | None = None, differing=DECODE, choices=({}, {})
):
    looks = plan_looks(map(placed, planned or pairs), 1, policy.block_items)
    rows = {p: sum((q.suite, q.item_id) == p for q in planned or pairs) for p in looks.position}
    there = complete_looks(looks, pairs, rows)
    return find_stop(pairs, differing, there, policy, choices)


def test_a_damaged_suite_decides_among_good_ones():
    bad, good = suite("bad", 100, lost=30), suite("good", 100)
    alone, among = decided(bad), decided(bad + good)
    assert alone is not None and among is not None
    assert alone.word == among.word == "REGRESSED"
    assert alone.items == 40 < among.items < among.planned == 200


def test_a_pass_waits_for_every_guard():
    good, small = suite("good", 300), suite("small", 20)
    first = decided(good)
    both = decided(good + small)
    assert first is not None and both is not None and first.word == both.word == "PASS"
    last_of_small = max(
        i for (name, _), i in plan_looks(map(placed, good + small), 1, 20).position.items() if name == "small"
    )
    assert both.items > last_of_small, "20 items prove no 20 points, so all of them are asked first"
    assert first.items < both.items < 320


def test_a_suite_that_has_not_begun_is_waited_for():
    good, other = suite("good", 300), suite("other", 100)
    looks = plan_looks(map(placed, good + other), 1, 20)
    there = replace(looks, ends=looks.ends[:12])
    assert find_stop(good + other, DECODE, there, POLICY) is not None
    assert find_stop(good, DECODE, there, POLICY) is None


def test_what_cannot_see_the_differing_stage_decides_nothing_and_is_not_waited_for():
    blind = suite("blind", 100, lost=50, through="prefill")
    good = suite("good", 300)
    found = decided(blind + good)
    assert found is not None and found.word == "PASS"
    assert decided(blind) is None
    assert decided(blind, differing=("prefill.kv",)).word == "REGRESSED"  # pyright: ignore[reportOptionalMemberAccess]


def test_a_block_with_a_missing_answer_is_not_looked_at():
    planned = suite("bad", 100, lost=30)
    whole = decided(planned)
    order = plan_looks(map(placed, planned), 1, 20).position
    early = next(p for p in planned if order[p.suite, p.item_id] == 25)
    rest = [p for p in planned if p is not early]
    assert whole is not None and whole.items == 40
    assert decided(rest, planned=planned) is None
    assert decided([*rest, replace(early, candidate=None)], planned=planned) is None


def test_both_stages_rows_of_an_item_belong_to_one_block():
    rows = suite("s", 100, lost=30, through="decode")
    both = rows + suite("s", 100, through="prefill")
    found = decided(both)
    assert found is not None and found.items == decided(rows).items  # pyright: ignore[reportOptionalMemberAccess]
    assert decided(rows, planned=both) is None, "the prefill rows are still to come"


@pytest.mark.parametrize(("role", "passes"), [("baseline", True), ("candidate", False)])
def test_an_item_without_an_answer_counts_as_it_would_at_its_worst(role, passes):
    """Right in the baseline, lost in the candidate: only the second is a loss where the other arm was right."""
    good = suite("good", 300)
    failed = [replace(p, **{role: side(None, handed_over=False)}) if i % 8 == 0 else p for i, p in enumerate(good)]
    assert decided(good).word == "PASS"  # pyright: ignore[reportOptionalMemberAccess]
    assert (decided(failed) is not None) == passes


def test_clusters_that_flip_as_one_are_one_piece_of_evidence():
    losing = [p for c in range(40) for p in suite(f"s{c}", 10, lost=10 * (c % 2 == 0), cluster="c")]
    items = [replace(p, suite="s", item_id=f"{p.suite}-{p.item_id}", cluster=p.suite) for p in losing]
    alone = [replace(p, cluster="") for p in items]
    assert decided(alone).word == "REGRESSED"  # pyright: ignore[reportOptionalMemberAccess]
    assert decided(items).items > decided(alone).items  # pyright: ignore[reportOptionalMemberAccess]


def test_a_signal_that_is_worse_holds_a_pass_back_and_no_regression():
    """Every right choice's log-likelihood falls by .2 nats: no answer flips, and the policy listens."""
    listening = Policy(
        **{**POLICY.model_dump(exclude_none=True), "more_sampling": {"signals": ["gold_margin"], "alpha": 0.01}}
    )

    def numbered(pairs: list[Pair]) -> list[Pair]:
        sides = {"baseline": 0, "candidate": 1000}
        return [
            replace(p, **{role: replace(getattr(p, role), sample_id=first + i) for role, first in sides.items()})
            for i, p in enumerate(pairs)
        ]

    good, bad = numbered(suite("good", 300)), numbered(suite("good", 300, lost=150))
    base = {i: Choices((-1.0, -2.0 - i % 7), 0) for i in range(300)}
    worse = {1000 + i: Choices((-1.2, -2.0 - i % 7), 0) for i in range(300)}
    same = {1000 + i: found for i, found in base.items()}
    first = decided(good, listening, choices=(base, same))
    held = decided(good, listening, choices=(base, worse))
    assert first is not None and held is not None
    assert (first.word, held.word) == ("PASS", "PASS") and first.items < held.items == 300
    assert decided(good, POLICY, choices=(base, worse)) == first
    assert decided(bad, listening, choices=(base, worse)) == decided(bad, POLICY)


def test_a_pass_waits_for_a_family_that_a_rule_guards():
    good = suite("good", 300)
    shaky = [replace(p, family="shaky") if i % 6 == 0 else p for i, p in enumerate(good)]
    rule = {"suite": "good", "family": "shaky", "margin_points": 12.0}
    guarding = Policy(**{**POLICY.model_dump(exclude_none=True), "margins": [rule]})
    plain, waited = decided(shaky), decided(shaky, guarding)
    assert plain is not None and waited is not None and plain.word == waited.word == "PASS"
    assert plain.items < waited.items <= 300


def test_a_pass_waits_until_a_suite_that_met_nothing_so_far_could_not_lose_its_guard():
    """Answers too short to meet the factor so far: a drop of 20 points is one of items to come that meet it."""
    good = suite("good", 400)
    few, many = (suite("short", n, through="prefill") for n in (20, 200))
    alone = decided(good)
    for short, waits_for_all in ((few, True), (many, False)):
        order = plan_looks(map(placed, good + short), 1, 20).position
        found = decided(good + short)
        assert alone is not None and found is not None and found.word == "PASS"
        met = sum(order[p.suite, p.item_id] < found.items for p in short)
        assert (met == len(short)) == waits_for_all
        assert waits_for_all or 0.8**met < POLICY.alpha
    assert alone.items < 200


@pytest.mark.parametrize("seed", range(10))
def test_a_later_answer_changes_no_earlier_look(seed):
    """A family's answers are short at first and meet nothing; what all answers say of it is not known until then."""
    rng = np.random.default_rng(seed)
    pairs = []
    for family, meets in (("long", 1.0), ("short", 0.02)):
        for i in range(150):
            through = rng.random() < meets
            lost, gained = rng.random(2) < 0.06 * through
            one = pair("s", i, float(not gained), float(not lost or gained))
            tokens = {"prefill": 1} | ({"decode": 3} if through else {})
            sides = {role: replace(getattr(one, role), stage_tokens=tokens) for role in ("baseline", "candidate")}
            pairs.append(replace(one, family=family, item_id=f"{family}{i}", **sides))
    looks = plan_looks(map(placed, pairs), 1, POLICY.block_items)
    whole = find_stop(pairs, DECODE, looks, POLICY)
    for end in looks.ends:
        decided_by_then = whole if whole is not None and whole.items <= end else None
        assert find_stop(pairs, DECODE, looks.first(end), POLICY) == decided_by_then


def test_an_arm_that_was_stopped_by_looks_which_counted_prompts_is_judged_by_all_that_it_has():
    """Looks of earlier versions were over prompts without a verdict, too: `items` of a stored stop may count some."""
    judged, prompts = suite("t", 200, lost=10), [replace(p, metric="") for p in suite("own", 100)]
    order = plan_looks(map(placed, judged + prompts), 1, 20)
    end = order.ends[3]
    asked = [p for p in judged if order.position[p.suite, p.item_id] < end]
    assert len(asked) < end
    held = [p if order.position[p.suite, p.item_id] < end else replace(p, candidate=None) for p in judged + prompts]
    stopped = by_hand.arm("kv8", "fp8", seed=1, details={"stopped": {"items": end, "planned": order.planned}})
    looks, stop = look_back(stopped, held, DECODE, POLICY, ({}, {}))
    assert looks is not None and (looks.ends[-1], looks.planned, stop) == (len(asked), 200, None)
