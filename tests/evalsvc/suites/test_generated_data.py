"""The shipped data is what the script writes, and spreads its items evenly over its few-shot prefixes."""

import json
from collections import Counter, defaultdict
from itertools import takewhile

import pytest

from evalsvc.suites.load import load_suite
from evalsvc.suites.spec import SuiteSpec

SPECS = [
    SuiteSpec(name="tasks", kind="lmeval", tasks=["tasks/addition", "tasks/copying", "tasks/dates"]),
    SuiteSpec(name="tools", kind="toolcall", cases="suites/tools.jsonl"),
    SuiteSpec(name="formats", kind="formats", cases="suites/formats.jsonl"),
]
FAMILIES = {
    "tasks": {"addition", "copying", "dates"},
    "tools": {"choosing", "refraining"},
    "formats": {"json", "marker"},
}


@pytest.fixture(scope="module")
def suites(data):
    return {spec.name: load_suite(spec, data) for spec in SPECS}


def files_under(folder):
    found = [p for sub in ("tasks", "suites") for p in (folder / sub).rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def test_the_script_writes_the_committed_bytes(generator, data, tmp_path):
    generator.main(tmp_path)
    assert files_under(tmp_path) == files_under(data)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_rotates_eight_prefixes_evenly(suites, name):
    items = suites[name].items()
    assert {item.family for item in items} == FAMILIES[name]
    assert len({item.id for item in items}) == len(items)
    for family in FAMILIES[name]:
        spread = Counter(item.cluster for item in items if item.family == family)
        assert len(spread) >= 8
        assert len(set(spread.values())) == 1
        assert 24 <= spread.total() <= 32


def prompt_of(suite, item):
    request = suite.next_request(item, [])
    return getattr(request, "prompt", None) or request.context


def shown(suite):
    """By cluster the whole lines with which all its prompts begin: its few-shot examples."""
    prompts = defaultdict(list)
    for item in suite.items():
        prompts[item.cluster].append(prompt_of(suite, item).splitlines(keepends=True))
    common = {c: takewhile(lambda lines: len(set(lines)) == 1, zip(*g, strict=False)) for c, g in prompts.items()}
    return {cluster: "".join(lines[0] for lines in found) for cluster, found in common.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_items_ask_different_things_under_different_prefixes(suites, name):
    suite = suites[name]
    asked, prefixes = Counter(), shown(suite)
    for item in suite.items():
        asked[item.family, prompt_of(suite, item).removeprefix(prefixes[item.cluster])] += 1
    assert set(asked.values()) == {1}
    assert all(text.count("\n") >= 4 for text in prefixes.values())
    assert len(set(prefixes.values())) == len(prefixes)


def test_no_answer_stands_in_the_items_own_prefix(suites):
    tools, formats = shown(suites["tools"]), shown(suites["formats"])
    for item in suites["tools"].items():
        call = item.payload.expect.call
        if call:
            assert json.dumps({"name": call.name, "arguments": call.arguments}) not in tools[item.cluster]
    for item in suites["formats"].items():
        check = item.payload.check
        wanted = check.text_equals or json.dumps(check.json_equals)
        assert f"{wanted}\n" not in formats[item.cluster]
    for item in suites["tasks"].items():
        question = item.payload
        shots = question.task.fewshot_docs()
        right = (lambda doc: doc["a"] + doc["b"]) if item.family == "addition" else question.task.doc_to_target
        assert right(question.doc) not in [right(shot) for shot in shots]


def test_the_right_choice_stands_in_every_place_equally_often(suites):
    places = Counter(item.payload.doc["gold"] for item in suites["tasks"].items() if item.family == "addition")
    assert set(places) == {0, 1, 2, 3}
    assert len(set(places.values())) == 1


def test_more_items_a_prefix_is_one_number(generator, tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "PER_PREFIX", dict.fromkeys(generator.PER_PREFIX, 5))
    generator.main(tmp_path)
    for spec in SPECS:
        spread = Counter(item.cluster for item in load_suite(spec, tmp_path).items())
        assert set(spread.values()) == {5}
