"""Conversations with the small real model: what it answers decides whether and how they go on, up to the stored turns.

A system message tells it the tools and how to call them; four calls before show it. Which answers are right is the
model's affair, and read off what it wrote.
"""

import json

import pytest

from evalsvc.questions import questions
from evalsvc.rescoring import answers_of, rescore
from evalsvc.store import queries
from evalsvc.store.answers import answers
from evalsvc.store.session import open_store
from evalsvc.suites.strict_json import NotJson, parse
from evalsvc.suites.toolcall import ToolCallSuite

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

TOOLS = [
    {"name": "set_alarm", "description": "wake the user at a time", "arguments": {"time": "string"}},
    {"name": "add_task", "description": "add to the task list", "arguments": {"text": "string"}},
    {"name": "show_weather", "description": "weather of a city", "arguments": {"city": "string"}},
]
SHOWN = [
    ("Wake me at 06:30.", "set_alarm", {"time": "06:30"}),
    ("Result of set_alarm: done\n\nAdd a task: buy milk.", "add_task", {"text": "buy milk"}),
    ("Result of add_task: done\n\nWake me at 09:15.", "set_alarm", {"time": "09:15"}),
    ("Result of set_alarm: done\n\nWeather in Oslo?", "show_weather", {"city": "Oslo"}),
]
TASK = ("Add a task: wash the car.", {"calls": [{"name": "add_task", "arguments": {"text": "wash the car"}}]})
CITY = ("Weather in Lima?", {"calls": [{"name": "show_weather", "arguments": {"city": "Lima"}}]})
WAKE = ("Wake me at 05:10.", {"calls": [{"name": "set_alarm", "arguments": {"time": "05:10"}}]})
TALKS = {"two": [TASK, CITY], "three": [TASK, CITY, WAKE], "other": [WAKE, TASK]}


def case(name, talk):
    said = [
        message
        for text, called, arguments in SHOWN
        for message in (
            {"role": "user", "content": text},
            {"role": "assistant", "content": json.dumps({"name": called, "arguments": arguments})},
        )
    ]
    (first, expect), *rest = talk
    said.append({"role": "user", "content": f"Result of show_weather: rain\n\n{first}"})
    turns = [{"results": ["done"], "user": text, "expect": wanted} for text, wanted in rest]
    return {"id": name, "messages": said, "tools": TOOLS, "expect": expect, "turns": turns, "max_tokens": 40}


@pytest.fixture(scope="module")
def talked(small_model, write_experiment, execute_file, tmp_path_factory):
    """Cases and database of a run of two arms that share a prefill stage."""
    folder = tmp_path_factory.mktemp("talks")
    (folder / "talks.jsonl").write_text("".join(json.dumps(case(*talk)) + "\n" for talk in TALKS.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_CACHE", str(folder / "cache"))
        path = write_experiment(
            folder,
            model=str(small_model),
            arms={"bf16": {"plan": "w=bf16"}, "kv8": {"plan": "kv=bf16 > kv=fp8:token-head"}},
            suites=[{"name": "talks", "kind": "toolcall", "cases": "talks.jsonl", "format": "json"}],
            kv_tokens=4096,
            aa=None,
            probe=None,
        )
        execute_file(path, folder / "runs.sqlite")
    return folder / "talks.jsonl", folder / "runs.sqlite"


def right_turns(texts, talk):
    """How many answers in a row are the one call that was wanted, written as plain JSON."""
    for number, (text, (_, expect)) in enumerate(zip(texts, talk, strict=False)):
        (wanted,) = expect["calls"]
        try:
            said = parse(text.strip())
        except NotJson:
            return number
        if said != wanted:
            return number
    return len(texts)


def test_conversations_go_on_while_the_model_is_right_and_every_turn_is_stored(talked):
    path, database = talked
    asked = questions([ToolCallSuite("talks", path, form="json")], ())
    by_item = {question.item.id: question for question in asked}
    longest = 0
    with open_store(database, read_only=True) as store:
        arms = queries.arms(store, 1)
        assert [arm.proof_status for arm in arms] == ["matched"] * 2
        for arm in arms:
            held = answers(store, arm)
            assert {stored.item_id for stored in held} == set(TALKS)
            for stored in held:
                talk = TALKS[stored.item_id]
                said = answers_of(stored, by_item[stored.item_id])  # refuses one that goes on
                right = right_turns([answer.text for answer in said], talk)
                assert len(said) == min(right + 1, len(talk))
                assert list(stored.values.values()) == [float(right == len(talk))]
                assert stored.status == "scored" and stored.prompt_tokens > 400 * len(said)
                longest = max(longest, len(said))
    assert longest >= 2, "the model was right once at least, and was asked on"


def test_what_the_model_said_turn_by_turn_is_scored_again_alike(talked, monkeypatch):
    path, database = talked
    monkeypatch.setattr(ToolCallSuite, "scoring_version", "toolcall-next")
    with open_store(database) as store:
        asked = questions([ToolCallSuite("talks", path, form="json")], ())
        reports = rescore(store, asked, queries.run_record(store, 1))
    assert [(r.added, r.changed, r.left) for r in reports] == [(3, 0, {})] * 2
