"""Several addresses at once: names alone are arms of one run."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.store import writer
from evalsvc.store.addresses import resolve_arms


def found(store, *addresses):
    return [arm.address for arm in resolve_arms(store, addresses).arms]


def test_names_alone_are_arms_of_the_latest_finished_main_run_that_has_them_all(store, build):
    first, _ = build.finished("base", "cand", "more")
    second, _ = build.finished("base", "cand")
    third, _ = build.finished("base", "other")
    build.finished("base", "cand", kind="aa", linked_run_id=second)
    unfinished = build.run()
    for name in ("base", "cand", "more"):
        build.arm(unfinished, name)
    assert found(store, "base", "cand") == [f"{second}:base", f"{second}:cand"]
    assert found(store, "cand", "base", "more") == [f"{first}:cand", f"{first}:base", f"{first}:more"]
    assert found(store, "base") == [f"{third}:base"] == found(store, "base", "base")[:1]


def test_a_run_or_a_promotion_stands_for_itself_beside_names(store, build):
    first, _ = build.finished("base", "cand")
    second, _ = build.finished("base", "cand")
    third, _ = build.finished("base", "other")
    assert found(store, f"{first}:base", "cand") == [f"{first}:base", f"{second}:cand"]
    assert found(store, "base", f"{first}:cand") == [f"{third}:base", f"{first}:cand"]
    mixed = found(store, f"{third}:base", "base", f"{third}:other", "cand")
    assert mixed == [f"{third}:base", f"{second}:base", f"{third}:other", f"{second}:cand"]


def test_names_that_no_finished_run_has_together_are_refused_with_where_each_is(store, build):
    first, _ = build.finished("base", "cand")
    second, _ = build.finished("base", "other")
    both = build.run()
    for name in ("cand", "other"):
        build.arm(both, name)
    with pytest.raises(
        ConfigError,
        match=f"^no finished run has cand and other; write RUN:ARM, such as {first}:cand and {second}:other$",
    ):
        found(store, "cand", "other")
    with pytest.raises(ConfigError, match="no finished run has base, cand and other; write RUN:ARM, such as "):
        found(store, f"{first}:base", "base", "cand", "other")
    with pytest.raises(ConfigError, match="there is no arm 'nobody'"):
        found(store, "base", "nobody")


def test_which_run_was_taken_is_said_where_there_was_a_choice(store, build):
    first, _ = build.finished("base", "cand")
    assert resolve_arms(store, ("base", "cand")).shared == ""
    lone = build.run(experiment="lone")
    writer.finish_arm(store, build.arm(lone, "base"), None, "matched")
    writer.finish_run(store, lone)
    taken = "base, cand: of run 1 (e), the latest finished one that has them all"
    assert resolve_arms(store, ("base", "cand")).shared == f"{taken}; run {lone} (lone) is later and has no cand"
    build.finished("base", "cand")
    assert resolve_arms(store, ("base", "cand")).shared == taken.replace("run 1", "run 3")
    assert resolve_arms(store, (f"{first}:base", "cand")).shared == "" == resolve_arms(store, ("cand",)).shared
