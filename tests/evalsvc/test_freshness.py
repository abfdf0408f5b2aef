"""A baseline of another run: when it is stale, what stands in for it, and that nothing passes against a stale one."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from evalsvc.cli.deciding import decide_stored
from evalsvc.errors import ConfigError
from evalsvc.freshness import stale
from evalsvc.limits import Standing
from evalsvc.policy import Policy
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.schema import Arm, Run, Sample
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand

BF16 = {"weights": "bf16", "kv": "bf16"}
ITEMS = 60


def arm(store, run_id: int, name: str, wrong: int, *, kv: str = "bf16", engine: str = "e1") -> None:
    """An arm that gets the first `wrong` items wrong."""
    stages = {"prefill": BF16, "decode": {**BF16, "kv": kv}}
    details = {"engine": engine}
    about = {"plan": f"kv={kv}", "fingerprint": f"{name} {engine}", "stages": stages, "details": details}
    arm_id = by_hand.open_arm(store, run_id, name, expected=ITEMS, **about)
    rows = [by_hand.sample(f"i{n}", n >= wrong, suite="s", metric="acc", request_hash=f"r{n}") for n in range(ITEMS)]
    writer.add_samples(store, run_id, arm_id, rows)
    writer.finish_arm(store, arm_id, {}, "matched")


def run(store, days: float, *arms: tuple, engine: str = "e1") -> int:
    """A finished run that began so many days after the first of June."""
    run_id = by_hand.open_run(store)
    for name, wrong, kv in arms:
        arm(store, run_id, name, wrong, kv=kv, engine=engine)
    writer.finish_run(store, run_id)
    with store.transaction() as session:
        began = datetime(2026, 6, 1, tzinfo=UTC) + timedelta(days=days)
        session.get_one(Run, run_id).created_at = began.isoformat(timespec="seconds")
    return run_id


@pytest.fixture
def store(tmp_path):
    """A promoted baseline, and a candidate that loses 10 of 60 items against it and none against the fresh baseline."""
    with open_store(tmp_path / "b.sqlite", create=True) as store:
        run(store, 0, ("base", 5, "bf16"))
        promote(store, queries.resolve_arm(store, "1:base"), "prod", "release 1")
        run(store, 40, ("base", 15, "bf16"), ("fp8", 15, "fp8"), engine="e2")
        run(store, 41, ("fp8", 5, "fp8"), engine="e2")
        yield store


def decide(store, candidate: str, **rule):
    policy = Policy(name="p", margin_points=10.0, guard_points=20.0, baseline=Standing(**rule) if rule else None)
    arms = (queries.resolve_arm(store, address) for address in ("@prod", candidate))
    return decide_stored(store, *arms, policy)


def test_without_a_rule_any_baseline_is_taken(store):
    found = decide(store, "2:fp8")
    assert (found.verdict, found.baseline.address) == ("REGRESSED", "1:base")


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"max_age_days": 30.0}, "is stale: measured 40 days before the candidate, the policy accepts 30 days"),
        ({"same": ["engine"]}, "is stale: its engine is e1 and the candidate's e2"),
        ({"fresh": "always"}, "has to be run again beside the candidate"),
    ],
)
def test_a_fresh_run_beside_the_candidate_stands_in_and_it_is_said(store, rule, why):
    found = decide(store, "2:fp8", **rule)
    assert (found.verdict, found.baseline.address) == ("PASS", "2:base")
    assert found.notes[0] == f"baseline 1:base {why}: compared with its fresh run 2:base"
    assert found.notes[1] == "2:base against 1:base: lost 10, gained 0 of 60 (drop 16.67 points)"


@pytest.mark.parametrize(
    ("candidate", "rule", "says"),
    [
        (
            "3:fp8",
            {"max_age_days": 30.0},
            "run 3, the candidate's, has no arm with the baseline's plan and checkpoints that could stand in; "
            "run baseline and candidate in one experiment",
        ),
        ("3:fp8", {"fresh": "always"}, "run 3, the candidate's, has no arm with the baseline's plan"),
        ("2:fp8", {"max_age_days": 30.0, "fresh": "never"}, "accepts 30 days; promote a newer one"),
        ("3:fp8", {"same": ["driver"]}, "its driver is not known and the candidate's not known"),
    ],
)
def test_a_stale_baseline_that_nothing_stands_in_for_is_invalid(store, candidate, rule, says):
    found = decide(store, candidate, **rule)
    assert found.verdict == "INVALID" and found.exit_code == 4 and says in found.sentence


def test_a_baseline_within_its_age_and_settings_stands(store):
    found = decide(store, "3:fp8", max_age_days=41.5)
    assert (found.verdict, found.baseline.address) == ("PASS", "1:base")
    assert not any("stale" in note for note in found.notes)


def test_a_baseline_of_the_candidates_own_run_is_fresh(store):
    policy = Policy(name="p", margin_points=10.0, guard_points=20.0, baseline=Standing(fresh="always"))
    arms = [queries.resolve_arm(store, address) for address in ("2:base", "2:fp8")]
    assert decide_stored(store, *arms, policy).verdict == "PASS"


def copied(store, address: str, day: int) -> None:
    """Makes an arm one whose answers were copied, and first stored so many days after the first of June."""
    record = queries.resolve_arm(store, address)
    stored = (datetime(2026, 6, 1, tzinfo=UTC) + timedelta(days=day)).isoformat(timespec="seconds")
    with store.transaction() as session:
        arm = session.get_one(Arm, record.id)
        arm.details = {**arm.details, "reused": {"1:base": ITEMS}}
        session.execute(update(Sample).where(Sample.arm_id == record.id).values(created_at=stored))


@pytest.mark.parametrize("baseline", ["@prod", "2:base"])
def test_answers_that_were_copied_are_as_old_as_they_are(store, baseline):
    copied(store, "2:base", 0)
    arms = [queries.resolve_arm(store, address) for address in (baseline, "2:fp8")]
    for rule, why in (
        ({"max_age_days": 30.0}, "measured 40 days before"),
        ({"fresh": "always"}, "has to be run again"),
    ):
        found = decide_stored(store, *arms, Policy(name="p", baseline=Standing(**rule)))
        assert found.verdict == "INVALID" and why in found.sentence
        assert "2:base holds answers that were copied; `evalsvc run FILE --new` computes them" in found.sentence


def test_answers_that_were_copied_and_are_not_stale_stand_in(store):
    copied(store, "2:base", 20)
    found = decide(store, "2:fp8", max_age_days=30.0)
    assert (found.verdict, found.baseline.address) == ("PASS", "2:base")


def test_a_candidate_that_was_promoted_is_not_its_own_baseline(store):
    promote(store, queries.resolve_arm(store, "2:fp8"), "prod", "release 2")
    with pytest.raises(ConfigError, match="2:fp8 is baseline and candidate; name two arms"):
        decide(store, "2:fp8", fresh="always")


def test_an_age_is_that_of_the_runs_not_of_today():
    rule = Standing(max_age_days=1.0)
    assert not list(stale(rule, {}, "2020-01-01T00:00:00+00:00", {}, "2020-01-02T00:00:00+00:00"))
    assert list(stale(rule, {}, "2020-01-01T00:00:00+00:00", {}, "2020-01-02T00:00:01+00:00"))


@pytest.mark.parametrize(
    ("age_s", "days", "says"),
    [
        (172_800, 1e-7, "measured 2 days before the candidate, the policy accepts 0.00864 seconds"),
        (7_200, 1 / 24, "measured 2 hours before the candidate, the policy accepts 1 hour"),
        (4_000 * 86_400, 30.0, "measured 4,000 days before the candidate, the policy accepts 30 days"),
        (90 * 86_400, 30.0, "measured 90 days before the candidate, the policy accepts 30 days"),
        (30 * 86_400 + 10, 30.0, "measured 30.0001 days before the candidate, the policy accepts 30 days"),
    ],
)
def test_ages_are_in_units_of_people_and_never_look_equal(age_s, days, says):
    then = datetime(2026, 6, 1, tzinfo=UTC)
    times = (then.isoformat(), (then + timedelta(seconds=age_s)).isoformat())
    assert list(stale(Standing(max_age_days=days), {}, times[0], {}, times[1])) == [says]
