"""Tool-call cases as people write them."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.suites.prompts import Case
from evalsvc.suites.schema import validator_of
from evalsvc.suites.toolcall.matchers import Matcher, pattern_problem, patterns

Kind = Literal["string", "integer", "number", "boolean", "array", "object", "null"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tool(_Part):
    """A tool on offer, also in the OpenAI wrapping `{"type": "function", "function": {...}}`.

    Attributes:
        name: Its function's name.
        description: What it does.
        parameters: JSON Schema (draft 2020-12) of its arguments' object.
        arguments: Short form of `parameters`: each argument, all needed, to the name of its JSON type.
    """

    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Kind] | None = None

    @model_validator(mode="before")
    @classmethod
    def _unwrapped(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") == "function" and given.keys() == {"type", "function"}:
            return given["function"]
        return given

    @model_validator(mode="after")
    def _is_schema(self) -> "Tool":
        if self.parameters is not None and self.arguments is not None:
            raise ValueError("has either `parameters` or their short form `arguments`")
        try:
            problem = _schema_problem(json.dumps(self.schema_), self.name)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"tool {self.name}: the schema is not JSON: {error}") from error
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def schema_(self) -> dict[str, Any]:
        """JSON Schema of the arguments' object."""
        if self.parameters is not None:
            return self.parameters
        kinds = self.arguments or {}
        properties = {name: {"type": kind} for name, kind in kinds.items()}
        return {"type": "object", "properties": properties, "required": list(kinds), "additionalProperties": False}

    @property
    def wrapped(self) -> dict[str, Any]:
        """The OpenAI form."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema_}
        return {"type": "function", "function": function}


@lru_cache(maxsize=4096)
def _schema_problem(schema: str, name: str) -> str | None:
    """Why a tool's schema cannot be used; many cases of a file offer the same tool."""
    try:
        validator_of(json.loads(schema), f"tool {name}")
    except (ConfigError, CapabilityError) as error:
        return str(error)
    return None


class PlainCall(_Part):
    """One right call, arguments as they stand."""

    name: str
    arguments: dict[str, Any]


class WantedCall(_Part):
    """One right call, each argument with its matcher; a value that is not an object stands for itself."""

    name: str
    arguments: dict[str, Matcher] = {}


class Expect(_Part):
    """What is right; exactly one of `call`, `calls`, `no_call` and `ask_back`.

    Attributes:
        call: This call and no other; short for `calls` with one call and exact arguments.
        calls: These calls and no other.
        order: Whether the calls may come in any order.
        no_call: No call: any text (`true`), or these words and no others.
        ask_back: No call but a question: any (`true`), or one that has one of these words.
    """

    call: PlainCall | None = None
    calls: list[WantedCall] | None = Field(default=None, min_length=1)
    order: Literal["free", "fixed"] = "free"
    no_call: Literal[True] | str | None = None
    ask_back: Literal[True] | list[str] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "Expect":
        given = [said for said in (self.call, self.calls, self.no_call, self.ask_back) if said is not None]
        if len(given) != 1:
            raise ValueError("says either `call` or `no_call`, or one of `calls` and `ask_back`")
        if self.order == "fixed" and self.calls is None:
            raise ValueError("`order` goes with `calls`")
        if self.no_call == "" or self.ask_back == []:
            raise ValueError("the words to answer are empty")
        found = [p for call in self.calls or () for m in call.arguments.values() for p in patterns(m)]
        problem = next((said for pattern in found if (said := pattern_problem(pattern))), None)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def wanted(self) -> Sequence[WantedCall]:
        """The right calls; empty where none is right."""
        if self.call is None:
            return self.calls or ()
        exact = {name: Matcher.model_validate({"exact": value}) for name, value in self.call.arguments.items()}
        return [WantedCall(name=self.call.name, arguments=exact)]


class Turn(_Part):
    """What follows once the turn before was answered right.

    Attributes:
        results: What the calls returned, recorded, one for each call that was expected, in that order.
        user: What the user says then.
        expect: What is right now.
    """

    results: list[str] = []
    user: str | None = None
    expect: Expect


class ToolCase(Case):
    """A case whose answer is calls, a question or a refusal."""

    tools: list[Tool] = Field(min_length=1)
    expect: Expect
    turns: list[Turn] = Field(default=[])

    @model_validator(mode="after")
    def _known_tools(self) -> "ToolCase":
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise ValueError("tools: two tools have the same name")
        for expect in self.expectations:
            for call in expect.wanted:
                if call.name not in names:
                    place = "call" if expect.call is not None else "calls"
                    raise ValueError(f"expect.{place}: {call.name!r} is not among the tools")
        return self

    @model_validator(mode="after")
    def _turns_follow(self) -> "ToolCase":
        if self.turns and self.messages is None:
            raise ValueError("`turns` go with `messages`")
        for number, (turn, before) in enumerate(zip(self.turns, self.expectations, strict=False)):
            if len(turn.results) != len(before.wanted):
                raise ValueError(f"turns.{number}: {len(turn.results)} results of {len(before.wanted)} calls before it")
            if not turn.results and turn.user is None:
                raise ValueError(f"turns.{number}: has neither `results` nor `user`")
        return self

    @property
    def expectations(self) -> list[Expect]:
        """What is right, turn by turn."""
        return [self.expect, *(turn.expect for turn in self.turns)]

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON Schemas of the arguments, by tool."""
        return {tool.name: tool.schema_ for tool in self.tools}
