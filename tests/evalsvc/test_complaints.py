"""Whatever stands in the wrong place of a file, the complaint is one sentence in words of our own."""

import copy
import re

import pytest
from pydantic import BaseModel, ValidationError

from evalsvc.complaints import first_mistake, mistakes
from evalsvc.experiment import Experiment
from evalsvc.jobs.spec import JobsFile
from evalsvc.policy import Policy
from evalsvc.suites.formats.case import FormatCase
from evalsvc.suites.toolcall.cases import ToolCase

VALUES = (None, True, 3, 2.5, float("nan"), "text", "", [], ["x"], [None], {}, {"k": None}, {1: 2})
EXPERIMENT = {
    "name": "e",
    "model": "m",
    "baseline": "a",
    "arms": {"a": {"plan": "w=bf16"}, "b": {"plan": "w=fp8", "inject": {"decode_k_scale": 0.5}}},
    "suites": [{"name": "t", "kind": "lmeval", "tasks": ["x"], "data_files": {"a": {"b": "c"}}}],
    "aa": {"batch": 11},
    "seed": 1,
}
POLICY = {
    "name": "p",
    "margins": [{"suite": "t", "margin_points": 3}],
    "proof": "required",
    "budgets": {"latency_p95_s": 2.5},
    "baseline": {"max_age_days": 30, "same": ["engine"]},
    "more_sampling": {"signals": ["brier"]},
}
JOB = {"cron": "0 2 * * *", "experiment": "e.yaml", "policy": "p.yaml", "notify": ["t"], "retries": 2}
JOBS = {
    "jobs": {"n": JOB},
    "channels": {
        "t": {"kind": "slack", "url_env": "X"},
        "e": {"kind": "email", "host": "h", "sender": "a@b", "to": ["a@b"]},
        "c": {"kind": "command", "argv": ["x"], "timeout_s": 3},
    },
}
CASE = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "stop": ["\n"], "max_tokens": 9}
FORMAT = CASE | {"check": {"text_equals": "y"}, "constraints": [{"kind": "language", "language": "en"}]}
TOOL = CASE | {
    "tools": [{"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}],
    "expect": {"order": "free", "calls": [{"name": "g", "arguments": {"city": {"same_text": "rome"}}}]},
    "turns": [{"results": ["x"], "expect": {"no_call": True}}],
}
PYDANTIC = re.compile(r"input should|instance of|dictionary|validation|value error|literal\[|something else", re.I)


def places(held, at=()):
    yield at
    inner = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
    for key, value in inner:
        yield from places(value, (*at, key))


def with_value(document, at, value):
    made = copy.deepcopy(document)
    held = made
    for key in at[:-1]:
        held = held[key]
    held[at[-1]] = value
    return made


@pytest.mark.parametrize(
    ("model", "document"),
    [(Experiment, EXPERIMENT), (Policy, POLICY), (JobsFile, JOBS), (FormatCase, FORMAT), (ToolCase, TOOL)],
)
def test_no_wrong_value_anywhere_is_told_in_words_of_pydantic(model: type[BaseModel], document):
    model.model_validate(document)
    refused = 0
    for at in list(places(document))[1:]:
        for value in VALUES:
            try:
                model.model_validate(with_value(document, at, value), context={"file": "f"})
            except ValidationError as error:
                refused += 1
                told = [mistake.sentence for mistake in mistakes(error, model)]
                assert told and not any(PYDANTIC.search(one) or "\n" in one for one in told), (at, value, told)
    assert refused > 100


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (("constraints", 0, "language"), 3, "'constraints.0.language': wants a text, not 3; put it in quotes"),
        (("tools", 0, "function", "name"), 3, "'tools.0.name': wants a text, not 3; put it in quotes"),
        (("expect", "no_calls"), 3, "unknown key 'expect.no_calls'; did you mean 'no_call'?"),
        (
            ("turns", 0, "expect", "no_call"),
            3,
            "'turns.0.expect.no_call': wants true or a text, not 3; put it in quotes",
        ),
        (("messages", 0), "hi", "'messages.0': wants a mapping, such as `{role: ...}`, not 'hi'"),
        (
            ("check", "timeout_s"),
            "1.e1",
            "'check.timeout_s': wants a number, not '1.e1'; leave the quotes out and write 10 or 1.0e+1",
        ),
    ],
)
def test_a_place_is_that_of_the_file_without_names_of_alternatives(at, value, says):
    model, document = (FormatCase, FORMAT) if at[0] in ("check", "constraints") else (ToolCase, TOOL)
    with pytest.raises(ValidationError) as error:
        model.model_validate(with_value(document, at, value))
    assert first_mistake(error.value, model) == says
