"""The two shipped suites for small and large models: how much there is of what, and that nothing is wrong with it."""

import json
from collections import Counter, defaultdict

import pytest
from pydantic import ValidationError

from evalsvc.errors import ConfigError
from evalsvc.suites.formats import FormatSuite, case
from evalsvc.suites.formats.validate import validate as validate_formats
from evalsvc.suites.load import load_suite
from evalsvc.suites.spec import SuiteSpec
from evalsvc.suites.toolcall import ToolCallSuite
from evalsvc.suites.toolcall.validate import validate as validate_calls

CALLS = {"simple", "choice", "parallel", "nested", "enums", "dates", "irrelevant", "asking", "turns"}
SHAPES = {"json", "yaml", "csv", "table", "xml", "numbered", "marker", "casing", "code", "choice", "limits"}


@pytest.fixture(scope="module")
def rows(data):
    def read(name):
        return [json.loads(line) for line in (data / "suites" / f"{name}.jsonl").read_text().splitlines()]

    return {name: read(name) for name in ("calls", "shapes", "calls.prefixes", "shapes.prefixes")}


@pytest.mark.parametrize("form", ["json", "hermes", "pythonic"])
def test_nothing_is_wrong_with_the_calls(data, form):
    found = validate_calls(data / "suites" / "calls.jsonl", form)
    assert (found.problems, found.unproven) == ([], 0)
    assert found.cases >= 300


def test_nothing_is_wrong_with_the_shapes(data):
    found = validate_formats(data / "suites" / "shapes.jsonl")
    assert (found.problems, found.unproven) == ([], 0)
    assert found.cases >= 300


def test_forty_tools_are_offered_and_each_is_called(rows):
    offered = {tool["name"] for row in rows["calls"] for tool in row["tools"]}
    right = [row["expect"] for row in rows["calls"]] + [t["expect"] for r in rows["calls"] for t in r.get("turns", [])]
    called = {call["name"] for e in right for call in [*e.get("calls", []), *([e["call"]] if "call" in e else [])]}
    assert len(offered) == 40
    assert called == offered


def test_one_tool_has_one_description_and_one_schema(rows):
    said = defaultdict(set)
    for tool in (tool for row in rows["calls"] for tool in row["tools"]):
        said[tool["name"]].add(json.dumps(tool, sort_keys=True))
    assert {len(found) for found in said.values()} == {1}


@pytest.mark.parametrize(("name", "families"), [("calls", CALLS), ("shapes", SHAPES)])
def test_small_families_rotate_eight_prefixes_evenly(rows, name, families):
    small = [row for row in rows[name] if row["level"] == "small"]
    assert {row["family"] for row in small} == families
    for family in families:
        spread = Counter(row["prefix"] for row in small if row["family"] == family)
        assert len(spread) == 8
        assert len(set(spread.values())) == 1
    assert {row["id"] for row in rows[f"{name}.prefixes"]} == {row["prefix"] for row in small}
    assert len({row["text"] for row in rows[f"{name}.prefixes"]}) == len(rows[f"{name}.prefixes"])


def test_every_call_family_has_every_level(rows):
    assert {(row["family"], row["level"]) for row in rows["calls"]} == {
        (family, level) for family in CALLS for level in ("small", "medium", "hard")
    }


def test_conversations_go_on_over_recorded_results(rows):
    long = [row for row in rows["calls"] if "turns" in row]
    assert len(long) >= 10
    assert max(len(row["turns"]) for row in long) == 2


def test_every_kind_of_constraint_is_asked_for(rows):
    kinds = {one["kind"] for row in rows["shapes"] for one in row["constraints"]}
    known = set(case.AnyConstraint.__origin__.__args__)
    assert len(kinds) == len(known) == 37


def test_no_case_asks_for_what_its_prefix_shows(rows):
    text = {row["id"]: row["text"] for name in ("calls", "shapes") for row in rows[f"{name}.prefixes"]}
    small = [row for name in ("calls", "shapes") for row in rows[name] if row["level"] == "small"]
    assert not [row["id"] for row in small if row["input"] in text[row["prefix"]]]


@pytest.mark.parametrize(("kind", "name"), [("toolcall", "calls"), ("formats", "shapes"), ("prompts", "shapes")])
def test_a_suite_takes_the_levels_that_are_asked_for(data, rows, kind, name):
    def taken(**more):
        spec = SuiteSpec(name=name, kind=kind, cases=f"suites/{name}.jsonl", **more)
        return [item.id for item in load_suite(spec, data, template="{{ tools }}").items()]

    for levels in (["small"], ["hard", "medium"]):
        assert taken(levels=levels) == [row["id"] for row in rows[name] if row["level"] in levels]
    assert taken() == [row["id"] for row in rows[name]]
    assert len(taken(levels=["small"], limit=8)) == 8 * len({r["family"] for r in rows[name] if r["level"] == "small"})


def test_a_level_that_no_case_has_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="no case has the level 'huge'; there are: hard, medium, small"):
        FormatSuite("shapes", data / "suites" / "shapes.jsonl", levels=["small", "huge"])
    with pytest.raises(ConfigError, match="there are: none"):
        ToolCallSuite("tools", data / "suites" / "tools.jsonl", levels=["small"])
    with pytest.raises(ValidationError, match="`levels` goes with suites of case files"):
        SuiteSpec(name="tasks", kind="lmeval", tasks=["x"], levels=["small"])


def test_a_level_does_not_change_what_an_item_is(data, tmp_path):
    rows_ = [json.loads(line) for line in (data / "suites" / "formats.jsonl").read_text().splitlines()]
    tagged = tmp_path / "formats.jsonl"
    tagged.write_text("".join(json.dumps(row | {"level": "small"}) + "\n" for row in rows_))
    (tmp_path / "formats.prefixes.jsonl").write_text((data / "suites" / "formats.prefixes.jsonl").read_text())
    plain = FormatSuite("formats", data / "suites" / "formats.jsonl").items()
    assert [item.sha256 for item in FormatSuite("formats", tagged).items()] == [item.sha256 for item in plain]


def test_the_experiment_asks_for_the_small_part_of_both(data):
    from evalsvc.experiment import load_experiment

    experiment = load_experiment(data / "experiments" / "suites.yaml")
    asked = [load_suite(spec, data / "experiments", template="{{ tools }}").items() for spec in experiment.suites]
    assert [len({item.family for item in items}) for items in asked] == [len(CALLS), len(SHAPES)]
    assert all("-small-" in item.id for items in asked for item in items)
