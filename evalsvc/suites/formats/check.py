"""`check`: a form and the one right content in it, judged apart."""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from evalsvc.suites.patterns import PatternTimeout, compiled, matches
from evalsvc.suites.strict_json import NotJson, begins_with_json, parse, same

Kind = Literal["string", "integer", "number", "boolean", "array", "object", "null"]
KINDS: dict[type, tuple[Kind, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


_OF_COMMANDS = ("command", "timeout_s")


class Check(BaseModel):
    """What is right; exactly one of these.

    Attributes:
        json_equals: One JSON object with these keys and values (`strict_json.same`).
        json_keys: One JSON object with these keys and values of these JSON types.
        text_equals: This text, spaces around it aside; `marker` names the word it has to end with.
        regex: A pattern that the whole stripped answer matches.
        command: A program and its arguments that reads the answer and ends with status 0 where it is right, 1 where it
            is wrong; runs in the case file's folder, and only where `--allow-code` says so.
        timeout_s: Seconds that `command` may take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    json_equals: dict[str, Any] | None = None
    json_keys: dict[str, Kind] | None = None
    text_equals: str | None = None
    marker: str | None = Field(default=None, min_length=1)
    regex: str | None = None
    command: list[str] | None = Field(default=None, min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=600)

    @model_serializer(mode="wrap")
    def _as_before_commands(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys of commands where there is none: items keep the hash that they had."""
        said = handler(self)
        return said if self.command is not None else {k: v for k, v in said.items() if k not in _OF_COMMANDS}

    @model_validator(mode="after")
    def _one_check(self) -> "Check":
        ways = (self.json_equals, self.json_keys, self.text_equals, self.regex, self.command)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("has exactly one of `json_equals`, `json_keys`, `text_equals`, `regex`, `command`")
        if self.command is None and "timeout_s" in self.model_fields_set:
            raise ValueError("`timeout_s` goes with `command`")
        if self.command is not None and (not self.command[0].strip() or any("\0" in part for part in self.command)):
            raise ValueError("`command` names no program")
        if self.text_equals is not None and self.text_equals != self.text_equals.strip():
            raise ValueError("`text_equals` begins or ends with spaces, which are cut from answers")
        if self.marker is not None and not (self.text_equals or "").endswith(self.marker):
            raise ValueError("`marker` is the end of `text_equals`")
        return self

    def ready(self, where: str) -> None:
        """Refuses a pattern that does not compile."""
        if self.regex is not None:
            compiled(self.regex, f"{where}.regex")


def errors_of(text: str, check: Check) -> tuple[str | None, str | None]:
    """How an answer's form is wrong, and how the answer is wrong; None for right.

    A `command` is not run here.

    Returns:
        The form's error class, and the answer's: the form's where that is wrong, else what is wrong in the content.
    """
    said = text.strip()
    if check.regex is not None:
        error = _regex_error(said, check.regex)
        return error, error
    if check.text_equals is not None:
        form = _marker_error(said, check.text_equals, check.marker)
        return form, form or (None if said == check.text_equals else "wrong_value")
    form, got = _json_form(said, check)
    content = check.json_equals is not None and form is None and not same(got, check.json_equals)
    return form, form or ("wrong_value" if content else None)


def _json_form(said: str, check: Check) -> tuple[str | None, Any]:
    try:
        got = parse(said)
    except NotJson:
        return ("extra_text" if begins_with_json(said) else "not_json"), None
    if not isinstance(got, dict):
        return "not_an_object", None
    keys = check.json_equals if check.json_equals is not None else check.json_keys or {}
    if got.keys() != keys.keys():
        return "wrong_keys", None
    if check.json_keys is not None and any(kind not in KINDS[type(got[k])] for k, kind in check.json_keys.items()):
        return "wrong_type", None
    return None, got


def _marker_error(said: str, wanted: str, marker: str | None) -> str | None:
    if marker is None:
        return None if said else "empty"
    if said.endswith(marker) and said.count(marker) == wanted.count(marker):
        return None
    return "extra_text" if marker in said else "marker_missing"


def _regex_error(said: str, pattern: str) -> str | None:
    try:
        return None if matches(pattern, said, whole=True) else "no_match"
    except PatternTimeout:
        return "pattern_timeout"
