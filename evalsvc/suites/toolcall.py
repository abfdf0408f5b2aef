"""Tool calls: one call in plain JSON, or the agreed words when no tool fits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evalsvc.engine.requests import Answer
from evalsvc.suites.base import Item, Score
from evalsvc.suites.cases import CaseSuite
from evalsvc.suites.prompts import Case, answer_text
from evalsvc.suites.strict_json import NotJson, parse, same

REFUSAL = "no tool"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tool(_Part):
    """A tool on offer; `arguments` maps each argument to the name of its JSON type."""

    name: str = Field(min_length=1)
    description: str = ""
    arguments: dict[str, str] = {}


class Call(_Part):
    """The one right call."""

    name: str
    arguments: dict[str, Any]


class Expect(_Part):
    """What is right: a call, or no call and the words that say so."""

    call: Call | None = None
    no_call: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "Expect":
        if (self.call is None) == (self.no_call is None):
            raise ValueError("says either `call` or `no_call`")
        return self


class ToolCase(Case):
    """A case whose answer is a call or a refusal."""

    tools: list[Tool] = Field(min_length=1)
    expect: Expect

    @model_validator(mode="after")
    def _known_tool(self) -> "ToolCase":
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise ValueError("tools: two tools have the same name")
        if self.expect.call is not None and self.expect.call.name not in names:
            raise ValueError(f"expect.call: {self.expect.call.name!r} is not among the tools")
        return self


def error_of(text: str, expect: Expect) -> str | None:
    """How an answer is wrong; None when it is right.

    A call is `{"name": ..., "arguments": {...}}` and nothing else, read strictly (`strict_json`): a repeated key, NaN,
    a third key or text around the object is wrong, and so is `5.0` or `"5"` where 5 is asked. A refusal is the agreed
    words, spaces around them aside.

    Returns:
        `not_json`, `not_a_call`, `wrong_tool`, `wrong_arguments` or `refused_when_should_call` where a call is right;
        `called_when_should_refrain` (a call, whole or begun) or `other_text` where a refusal is right.
    """
    said = text.strip()
    if expect.call is None:
        if said == expect.no_call:
            return None
        return "called_when_should_refrain" if said.startswith("{") else "other_text"
    if said == REFUSAL:
        return "refused_when_should_call"
    try:
        got = parse(said)
    except NotJson:
        return "not_json"
    if not isinstance(got, dict) or got.keys() != {"name", "arguments"} or not isinstance(got["arguments"], dict):
        return "not_a_call"
    if not same(got["name"], expect.call.name):
        return "wrong_tool"
    return None if same(got["arguments"], expect.call.arguments) else "wrong_arguments"


class ToolCallSuite(CaseSuite[ToolCase]):
    """Cases of one file. Metric `correct`: 1 for exactly the expected call or refusal."""

    scoring_version = "toolcall-1"

    def __init__(self, name: str, path: Path, limit: int | None = None) -> None:
        super().__init__(name, path, ToolCase, limit)

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """One score. Any text has one, however hostile."""
        error = error_of(answer_text(answers), item.payload.expect)
        return [Score(metric="correct", value=float(error is None), error_class=error)]
