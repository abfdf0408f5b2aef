"""How an answer with an endpoint's own list of calls is stored: as text, from which it comes back exactly."""

import json
from collections.abc import Mapping
from typing import Any

from evalsvc.engine.requests import GenerateResult

_BEGIN, _KEYS = '{"content": ', {"content", "tool_calls"}


def stored_text(answer: GenerateResult) -> str:
    """The answer's text; with a list of calls a JSON object of `content` and `tool_calls`.

    A text that looks like such an object is wrapped as well, so that no model can write a list of calls.
    """
    if answer.tool_calls is None and _unwrapped(answer.text) is None:
        return answer.text
    return json.dumps({"content": answer.text, "tool_calls": answer.tool_calls}, ensure_ascii=False)


def read_text(text: str) -> tuple[str, tuple[Mapping[str, Any], ...] | None]:
    """The text and the list of calls of a stored answer; no list where none was given."""
    held = _unwrapped(text)
    if held is None:
        return text, None
    listed = held["tool_calls"]
    return held["content"], None if listed is None else tuple(listed)


def _unwrapped(text: str) -> dict[str, Any] | None:
    if not text.startswith(_BEGIN):
        return None
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(held, dict) or held.keys() != _KEYS or not isinstance(held["content"], str):
        return None
    return held if held["tool_calls"] is None or isinstance(held["tool_calls"], list) else None
