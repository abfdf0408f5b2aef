"""What a chat template really shows of a conversation, tried with made-up ones: some drop what they do not know."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalsvc.errors import EngineError

_ASKED = {"role": "user", "content": "marker-user"}
_PARAMETERS = {"type": "object", "properties": {"marker_key": {"type": "string"}}}
_FUNCTION = {"name": "marker_tool", "description": "marker", "parameters": _PARAMETERS}
_CALL = {
    "type": "function",
    "id": "marker123",
    "function": {"name": "marker_tool", "arguments": {"marker_key": "marker-said"}},
}
_TRIED: tuple[tuple[str, list[dict[str, Any]], bool, tuple[str, ...]], ...] = (
    ("chat messages", [_ASKED], False, ("marker-user",)),
    ("system messages", [{"role": "system", "content": "marker-system"}, _ASKED], False, ("marker-system",)),
    ("tools on offer", [_ASKED], True, ("marker_tool", "marker_key")),
    (
        "results of tools",
        [
            _ASKED,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "marker123", "name": "marker_tool", "content": "marker-result"},
        ],
        True,
        ("marker-said", "marker-result"),
    ),
)

Write = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]


def tried(write: Write) -> dict[str, dict[str, Any]]:
    """By name whether a template shows a kind of message, {can, about}.

    Args:
        write: Renders messages and tools, as `engine.text.Text.write`.
    """
    return {name: _try(write, messages, tools=tools, shown=shown) for name, messages, tools, shown in _TRIED}


def _try(write: Write, messages: list[dict[str, Any]], *, tools: bool, shown: tuple[str, ...]) -> dict[str, Any]:
    try:
        text = write(messages, [{"type": "function", "function": _FUNCTION}] if tools else None)
    except EngineError as error:
        return {"can": False, "about": str(error)}
    lacking = [word for word in shown if word not in text]
    if lacking:
        return {"can": False, "about": "the chat template takes it and leaves it out"}
    return {"can": True, "about": "shown by the chat template"}
