"""How a call's arguments differ from the right ones, and from their schema."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from evalsvc.suites.schema import Problem, problems, validator_of
from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import WantedCall
from evalsvc.suites.toolcall.matchers import Matcher, object_problems


def argument_error(call: Call, wanted: WantedCall, schema: Mapping[str, Any]) -> str | None:
    """The worst thing about a call's arguments: something missing, too much, of another type, of another value."""
    wrong = object_problems(call.arguments, wanted.arguments)
    kinds = {kind for _, kind in wrong}
    if not kinds:
        return None
    for kind, error in (("missing", "missing_required"), ("extra", "extra_argument")):
        if kind in kinds:
            return error
    refused = {problem.path[:1] for problem in misfits(call, schema) if problem.keyword == "type"}
    mistyped = ((key,) in refused or _other_type(call.arguments[key], wanted.arguments[key]) for key, _ in wrong)
    return "wrong_type" if any(mistyped) else "wrong_value"


def _other_type(got: Any, wanted: Matcher) -> bool:
    match wanted.way:
        case "any":
            return False
        case "exact" | "one_of":
            values = [wanted.exact] if wanted.way == "exact" else wanted.one_of or []
            return all(type(got) is not type(value) for value in values)
        case "number":
            return isinstance(got, bool) or not isinstance(got, int | float)
        case "any_of":
            return all(_other_type(got, inner) for inner in wanted.any_of or ())
        case "object" | "items":
            return not isinstance(got, dict if wanted.way == "object" else list)
    return not isinstance(got, str)


def misfits(call: Call, schema: Mapping[str, Any]) -> list[Problem]:
    """How a call's arguments break their schema."""
    return list(problems(_validator(json.dumps(schema)), call.arguments))


@lru_cache(maxsize=4096)
def _validator(schema: str) -> Any:
    return validator_of(json.loads(schema), "parameters")
