"""From what a person names to arms: identity, what must be said together, and what the gate will refuse."""

from pathlib import Path

import pytest

from evalsvc.errors import ConfigError
from evalsvc.recorded.load import Sources, load

from .conftest import chosen_row, written_row


def sources(named, **changes):
    values = {"name": "n", "baseline": next(iter(named), "a"), "arms": {k: [v] for k, v in named.items()}, "plans": {}}
    return Sources(**(values | changes))


@pytest.fixture
def two(write):
    return {"a": write("a.csv", "item,correct\n1,1\n2,0\n"), "b": write("b.csv", "item,correct\n1,1\n2,1\n")}


def test_an_arm_without_a_plan_says_nothing_of_formats_and_has_no_proof(two):
    found = load(sources(two))
    base, other = found.arms
    assert (base.name, base.plan, base.stages, base.proof_status) == ("a", "", {"prefill": {}, "decode": {}}, None)
    assert base.details["recorded"] == [str(two["a"])] and str(two["a"]) in base.details["note"]
    assert base.fingerprint != other.fingerprint and found.notes == ()


def test_a_declared_plan_is_declared_for_all_or_none(two):
    found = load(sources(two, plans={"a": "w=bf16", "b": "w=fp8"}))
    assert [arm.proof_status for arm in found.arms] == ["declared", "declared"]
    with pytest.raises(ConfigError, match="--plan is missing for arm 'b'"):
        load(sources(two, plans={"a": "w=bf16"}))
    with pytest.raises(ConfigError, match="--plan names arm 'c'; arms: a, b"):
        load(sources(two, plans={"c": "w=bf16"}))


def test_the_baseline_comes_first_wherever_it_was_named(two):
    assert [arm.name for arm in load(sources(two, baseline="b")).arms] == ["b", "a"]


def test_arms_of_equal_answers_are_still_two_arms(two):
    """All right in both is evidence; taking them for one arm would make every gate an A/A."""
    base, other = load(sources({"a": two["a"], "b": two["a"]})).arms
    assert base.fingerprint != other.fingerprint


def test_an_arm_is_known_again_by_what_it_says_and_not_by_the_order_of_its_rows(two, write):
    def identity(arms, **changes):
        found = load(sources(arms, **changes))
        return found.experiment_hash, found.arms[0].fingerprint

    first = identity(two)
    assert identity({**two, "a": write("c.csv", "correct,item\n0,2\n1,1\n")}) == first
    for changed in (
        identity({**two, "a": write("d.csv", "item,correct\n1,1\n2,1\n")}),
        identity({**two, "a": write("e.csv", "item,correct\n1,1\n2,\n")}),
        identity({**two, "a": write("f.csv", "item,correct,answer\n1,1,x\n2,0,\n")}),
        identity(two, plans={"a": "w=bf16", "b": "w=bf16"}),
    ):
        assert changed[0] != first[0] and changed[1] != first[1]
    assert identity(two, name="other")[0] != first[0]


def test_the_second_run_of_the_baseline_is_the_same_arm_with_other_answers(two):
    found = load(sources({"a": two["a"]}, again=[two["b"]]))
    assert found.again is not None
    assert found.again.fingerprint == found.arms[0].fingerprint and found.again.samples != found.arms[0].samples
    with pytest.raises(ConfigError, match="--again names the baseline's own evidence"):
        load(sources({"a": two["a"]}, again=[two["a"]]))


def test_a_second_run_that_says_the_same_is_a_quiet_one_and_is_said(two, tmp_path):
    """A server that repeats itself writes the same file twice: no noise was found, which is a result."""
    second = tmp_path / "second.csv"
    second.write_bytes(two["a"].read_bytes())
    found = load(sources({"a": two["a"]}, again=[second]))
    assert found.again is not None and found.again.samples == found.arms[0].samples
    assert any("a server that repeats itself, or a copy" in note for note in found.notes)


def test_a_folder_holds_the_baselines_own_evidence_where_its_newest_file_is_the_arms(samples_file):
    rows = [written_row(0, "x", 1.0), written_row(1, "y", 0.0)]
    older, newest = (samples_file("a", "t", rows, date=f"2026-01-0{day}T00-00-00.000000") for day in (1, 2))
    for arm, again in ((newest, newest.parent), (newest.parent, newest)):
        with pytest.raises(ConfigError, match="--again names the baseline's own evidence"):
            load(sources({"a": arm}, again=[again]))
    assert load(sources({"a": older}, again=[older.parent])).again is not None


def test_a_table_gives_arms_and_takes_a_second_run(write, two):
    path = write("t.csv", "item,x,y\n1,1,0\n2,0,0\n")
    found = load(sources({}, baseline="y", table=path, again=[two["b"]]))
    assert [arm.name for arm in found.arms] == ["y", "x"] and found.again is not None
    with pytest.raises(ConfigError, match="--baseline z is no column; arms there: x, y"):
        load(sources({}, baseline="z", table=path))
    with pytest.raises(ConfigError, match="column 'a b': begin with a letter"):
        load(sources({}, baseline="y", table=write("u.csv", "item,y,a b\n1,1,1\n")))


def test_what_the_gate_will_refuse_is_said_at_once(write, samples_file):
    a = write("a.csv", "item,correct\n1,1\n2,0\n3,0\n")
    b = write("b.csv", "item,correct,family\n2,0,n\n3,1,f\n4,1,n\n5,1,n\n")
    assert load(sources({"a": a, "b": b})).notes == (
        "b: 1 answer is only in the baseline; the gate will say INVALID",
        "b: 2 answers are not in the baseline; the gate will say INVALID",
        "b: 1 of 3 items has another item than in the baseline; the gate will say INVALID",
    )
    ours = samples_file("a", "t", [chosen_row(0, [-1.0, -2.0], 0)])
    theirs = samples_file("b", "t", [chosen_row(0, [-1.0, -2.0], 0, prompt="another")])
    assert load(sources({"a": ours, "b": theirs})).notes[1:] == (
        "b: 1 of 1 items has another request than in the baseline; the gate will say INVALID",
    )


def test_a_declared_format_that_no_answer_met_is_said_at_once(write, two):
    plans = {"a": "w=bf16", "b": "w=fp8,kv=bf16 > w=bf16,kv=fp8"}

    def notes(**changes):
        return [note.split(",")[0] for note in load(sources(two, plans=plans, **changes)).notes]

    said = "b: no answer is known to have met"
    assert notes() == [f"{said} prefill.weights", f"{said} decode.kv"]
    assert notes(scored_by="loglikelihood") == [f"{said} decode.kv"]
    assert notes(scored_by="generation") == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arms": {}}, "give either --arm NAME=PATH for each arm, or --table"),
        ({"table": Path("t.csv")}, "give either --arm NAME=PATH for each arm, or --table"),
        ({"baseline": "c"}, "--baseline c is no arm; arms: a, b"),
        ({"name": "a b"}, "NAME 'a b'"),
        ({"arms": {"a": [Path("nowhere.csv")]}}, r"nowhere\.csv: no such file or folder"),
        ({"metric": "acc"}, "--metric belongs to lm-eval's samples"),
        ({"filter": "none"}, "--filter belongs to lm-eval's samples"),
        ({"plans": {"a": "w=q3", "b": "w=q3"}}, "plan 'w=q3'"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(two, changes, says):
    with pytest.raises(ConfigError, match=says):
        load(sources(two, **changes))


def test_one_kind_of_file_at_a_time(two, samples_file):
    samples = samples_file("s", "t", [written_row(0, "x", 1.0)])
    with pytest.raises(ConfigError, match=r"a\.csv: is a table"):
        load(sources({"a": two["a"], "s": samples}))
    with pytest.raises(ConfigError, match="--scored-by belongs to tables"):
        load(sources({"s": samples}, scored_by="generation"))
