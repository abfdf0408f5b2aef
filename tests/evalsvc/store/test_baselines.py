"""Promotions: the newest of a name counts, all stay, and what can be no baseline is refused."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.session import open_store


def test_the_newest_promotion_of_a_name_counts_and_the_earlier_ones_stay(store, build):
    first, _ = build.finished("base")
    second, _ = build.finished("base", experiment_hash="h2")
    for run_id, why in ((first, "release 1"), (second, "release 2"), (first, "release 2 was withdrawn")):
        promote(store, queries.resolve_arm(store, f"{run_id}:base"), "prod", why)
    promote(store, queries.resolve_arm(store, f"{second}:base"), "next", "to be tried")
    assert queries.resolve_arm(store, "@prod").run_id == first
    assert queries.resolve_arm(store, "@next").run_id == second
    assert [(b.name, b.address, b.why, b.current) for b in queries.baselines(store)] == [
        ("prod", f"{first}:base", "release 1", False),
        ("prod", f"{second}:base", "release 2", False),
        ("prod", f"{first}:base", "release 2 was withdrawn", True),
        ("next", f"{second}:base", "to be tried", True),
    ]


def test_an_unknown_name_lists_the_known_ones(store, build):
    build.finished("base")
    with pytest.raises(ConfigError, match="no arm was promoted yet"):
        queries.resolve_arm(store, "@prod")
    promote(store, queries.resolve_arm(store, "base"), "prod", "why not")
    with pytest.raises(ConfigError, match=r"@prdo: .* it has @prod"):
        queries.resolve_arm(store, "@prdo")


def test_what_can_be_no_baseline_is_refused_with_its_reason(store, build):
    run_id, _ = build.finished("base")
    open_run = build.run()
    arm_id = build.arm(open_run, "late")
    writer.finish_arm(store, arm_id, None, "matched")  # the arm is finished, its run is not
    damaged = build.arm(open_run, "damaged", injected={"decode_k_scale": 0.25})
    mixed_up = build.arm(open_run, "mixed-up")
    for arm in (damaged, mixed_up):
        writer.finish_arm(store, arm, {}, "mismatched")
    again, _ = build.finished("base", kind="aa", linked_run_id=run_id)
    for address, says in (
        (f"{open_run}:late", "unfinished"),
        (f"{open_run}:damaged", r"planted faults \(decode_k_scale 0.25\)"),
        (f"{again}:base", f"an A/A, the second run of {run_id}:base"),
    ):
        with pytest.raises(ConfigError, match=f"^{address} cannot be promoted: .*{says}"):
            promote(store, queries.resolve_arm(store, address), "prod", "because")
    writer.finish_run(store, open_run)
    with pytest.raises(ConfigError, match="does not match its plan"):
        promote(store, queries.resolve_arm(store, f"{open_run}:mixed-up"), "prod", "because")
    assert queries.baselines(store) == []


@pytest.mark.parametrize("name", ["", "@prod", "a b", "a:b", "-x", "x" * 61, "prod\n", "ü"])
def test_a_name_that_no_address_can_hold_is_refused(store, build, name):
    build.finished("base")
    with pytest.raises(ConfigError, match="--name"):
        promote(store, queries.resolve_arm(store, "base"), name, "because")


def test_a_promotion_needs_a_reason(store, build):
    build.finished("base")
    with pytest.raises(ConfigError, match="--why is empty"):
        promote(store, queries.resolve_arm(store, "base"), "prod", " \n")


def test_a_database_that_has_every_table_is_not_written_to_when_it_is_opened(path, store, build):
    """A gate must open it while a run holds the write lock."""
    build.finished("base")
    with store.transaction() as session:
        session.connection()
        open_store(path, timeout_s=0.1).close()
