"""An endpoint's own list of calls goes from the answer into the store and back, and no text can pass for one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.engine.requests import GenerateResult
from evalsvc.listed import read_text, stored_text
from evalsvc.questions import questions
from evalsvc.rescoring import rescore
from evalsvc.runner import ArmRun, run_group
from evalsvc.store import queries, writer
from evalsvc.store.session import open_store
from evalsvc.suites.toolcall import ToolCallSuite
from evalsvc.targets.base import ArmFacts

TIMER = {"type": "function", "id": "c1", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}
CASE = {
    "id": "a",
    "messages": [{"role": "user", "content": "Five minutes, please."}],
    "tools": [{"name": "set_timer", "arguments": {"minutes": "integer"}}],
    "expect": {"call": {"name": "set_timer", "arguments": {"minutes": 5}}},
    "turns": [{"results": ["done"], "expect": {"no_call": True}}],
}


def said(text, calls=None):
    finish = "stop" if calls is None else "tool_calls"
    about = {"token_ids": (1,), "prompt_tokens": 1, "prompt_sha256": "p", "finish_reason": finish}
    return GenerateResult(id="", text=text, tool_calls=calls, stage_tokens={"prefill": 1, "decode": 0}, **about)


CALLS = st.none() | st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=2).map(tuple)
MIMIC = json.dumps({"content": "", "tool_calls": [TIMER]})


@given(
    st.text(max_size=40) | st.sampled_from([MIMIC, stored_text(said(MIMIC)), '{"content": ', '{"content": 1}']), CALLS
)
def test_every_answer_comes_back_exactly(text, calls):
    assert read_text(stored_text(said(text, calls))) == (text, calls)


def test_an_answer_without_a_list_is_stored_as_it_is():
    assert stored_text(said("Hello.")) == "Hello." and read_text("Hello.") == ("Hello.", None)
    assert read_text(stored_text(said(MIMIC))) == (MIMIC, None)


class Endpoint:
    """Answers the first turn by its list of calls, or by a text that only looks like one, and the second in words."""

    def __init__(self, first):
        self._first = first

    def submit(self, requests):
        for request in requests:
            for arm in request.arms:
                answer = self._first if len(request.prompt) == 1 else said("It runs.")
                yield replace(answer, id=request.id, arm=arm)


@pytest.mark.parametrize(
    ("first", "value", "error"), [(said("", (TIMER,)), 1.0, None), (said(MIMIC), 0.0, "not_triggered")]
)
def test_native_calls_are_scored_stored_and_scored_again(tmp_path, monkeypatch, first, value, error):
    (tmp_path / "calls.jsonl").write_text(json.dumps(CASE) + "\n")
    suite = ToolCallSuite("calls", tmp_path / "calls.jsonl", form="native")
    about = {"plan": "", "stages": {}, "injected": {}, "details": {}}
    with open_store(str(tmp_path / "r.sqlite"), create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        arm = writer.open_arm(store, run, name="base", fingerprint="f", expected=1, **about)
        facts = ArmFacts(name="base", fingerprint="f", **about)
        run_group(store, Endpoint(first), [ArmRun(run, arm, facts)], questions([suite], ()), 0)
        held = queries.arms(store) * 2
        (pair,) = queries.pairs(store, *held, scores_of=["calls"])
        assert (pair.baseline.value, pair.baseline.error_class) == (value, error)
        assert pair.baseline.scores["failure.empty"] == 0
        monkeypatch.setattr(ToolCallSuite, "scoring_version", "toolcall-next")
        (report,) = rescore(store, questions([suite], ()), queries.run_record(store, run))
        assert (report.added, report.changed, report.left) == (1, 0, {})
        (pair,) = queries.pairs(store, *held)
        assert (pair.baseline.value, pair.baseline.error_class) == (value, error)
