"""Case files: one JSON object a line or a YAML list, few-shot prefixes beside them, and the request a case becomes.

`NAME.jsonl` (or `NAME.yaml`) holds cases, `NAME.prefixes.jsonl` (optional) the texts that several cases begin with:
a prompt is the prefix's text followed by the case's `input`. A case with a whole `prompt`, or with `messages` for the
model's chat template, needs no prefix.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evalsvc.complaints import first_mistake
from evalsvc.engine.requests import Answer, GenerateRequest
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Item
from evalsvc.yamlfile import read_list, text_of

# Keys of a case that its score does not depend on.
UNSCORED = {"family", "level", "prefix", "stop", "max_tokens", "example", "faults"}


class Row(BaseModel):
    """A line of a case file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(min_length=1)


class Prefix(Row):
    """A few-shot text that several cases begin with; its items may flip together."""

    text: str = Field(min_length=1)


class Message(BaseModel):
    """One message of a conversation, as the OpenAI interface has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Message":
        if self.content is None and not self.tool_calls:
            raise ValueError("a message has `content`")
        return self


class Case(Row):
    """What all cases share.

    Attributes:
        family: The row that the case is described in; the suite's name when absent.
        level: What size of model the case tells something about; a suite may ask for some levels alone.
        prefix: Id of the prefix that `input` follows.
        prompt: The whole prompt, in place of `prefix` and `input`.
        messages: A conversation for the model's chat template, in place of both.
        stop: Strings that end the answer; for messages none, else a line end, where nothing is said.
        max_tokens: Most new tokens of the answer; for messages 512, else 64, where nothing is said.
        faults: What is known to be wrong with the case itself, in the words of `suite validate`; it stays as published.
    """

    family: str = ""
    level: str | None = None
    prefix: str | None = None
    input: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    stop: list[str] = ["\n"]
    max_tokens: int = Field(default=64, ge=1)
    faults: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _limits_of_messages(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("messages") is not None:
            return {"stop": [], "max_tokens": 512, **given}
        return given

    @model_validator(mode="after")
    def _one_prompt(self) -> "Case":
        if sum(said is not None for said in (self.prompt, self.input, self.messages)) != 1:
            raise ValueError("a case has either `prompt` or `input` or `messages`")
        if self.prefix is not None and self.input is None:
            raise ValueError("`prefix` goes with `input`")
        if not (self.prompt or self.input or self.messages):
            raise ValueError("the prompt is empty")
        if self.messages is not None and self.messages[-1].role == "assistant":
            raise ValueError("messages: the last one is not the assistant's")
        if "" in self.stop:
            raise ValueError("a stop string is empty")
        return self


RowT = TypeVar("RowT", bound=Row)


def read_rows(path: Path, kind: type[RowT]) -> list[tuple[int, RowT]]:
    """The rows of a JSONL file, or of a YAML list, with their line numbers; blank lines are skipped.

    Raises:
        ConfigError: Naming file and line: no such file, not JSON, a wrong key or value, a repeated id, no rows.
    """
    rows: list[tuple[int, RowT]] = []
    seen: dict[str, int] = {}
    for number, row in read_list(path, kind) if path.suffix in (".yaml", ".yml") else _lines(path, kind):
        if row.id in seen:
            raise ConfigError(f"{path}:{number}: the id {row.id!r} is already used on line {seen[row.id]}")
        seen[row.id] = number
        rows.append((number, row))
    if not rows:
        raise ConfigError(f"{path}: holds no cases")
    return rows


def _lines(path: Path, kind: type[RowT]) -> Iterator[tuple[int, RowT]]:
    lines = text_of(path).split("\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _row(line, kind, f"{path}:{number}")


def _row(line: str, kind: type[RowT], where: str) -> RowT:
    try:
        return kind.model_validate(read_line(line, where))
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_mistake(error, kind)}") from error


def read_line(line: str, where: str) -> Any:
    """The JSON value on a line. Stricter than `json.loads`: a repeated key, NaN and Infinity are refused.

    Raises:
        ConfigError: Beginning with `where`.
    """
    try:
        return _DECODER.decode(line)
    except json.JSONDecodeError as error:
        problem = f"{error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
        raise ConfigError(f"{where}: is no JSON: {problem}; each line holds one object") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: is no JSON that can be read: it is nested too deep") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key!r} stands twice in one object")
        made[key] = value
    return made


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON; write a finite one, or a text in quotes")


def _finite(digits: str) -> float:
    return number if math.isfinite(number := float(digits)) else _refuse(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)


def prefixes_of(path: Path, cases: Sequence[tuple[int, Case]]) -> dict[str, str]:
    """Texts of the prefixes that the cases name, by id. Raises ConfigError where one is missing."""
    beside = path.with_suffix(".prefixes.jsonl")
    known = {row.id: row.text for _, row in read_rows(beside, Prefix)} if beside.exists() else {}
    for number, case in cases:
        if case.prefix is not None and case.prefix not in known:
            raise ConfigError(f"{path}:{number}: the prefix {case.prefix!r} is not in {beside}")
    return known


def request_for(item: Item, case: Case, prefixes: dict[str, str]) -> GenerateRequest:
    """The one request of a case."""
    before = prefixes[case.prefix] if case.prefix is not None else ""
    prompt = case.prompt if case.prompt is not None else before + (case.input or "")
    if case.messages is not None:
        prompt = [message.model_dump(exclude_none=True) for message in case.messages]
    return GenerateRequest(id=item.id, prompt=prompt, max_tokens=case.max_tokens, stop=tuple(case.stop))


def answer_text(answers: Sequence[Answer]) -> str:
    """Text of the last answer. Raises TypeError for a log-likelihood, which no case asks for."""
    text: Any = getattr(answers[-1], "text", None)
    if not isinstance(text, str):
        raise TypeError(f"a case is answered by text, not by {type(answers[-1]).__name__}")
    return text
