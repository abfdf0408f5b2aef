"""What a model is shown of a case: the messages so far, turn by turn, and the tools where no template shows them."""

from collections.abc import Sequence
from typing import Any

from evalsvc.suites.toolcall.calls import Parsed
from evalsvc.suites.toolcall.cases import Tool, ToolCase, Turn
from evalsvc.suites.toolcall.parsers import NATIVE
from evalsvc.suites.toolcall.parsers.base import compact

AS_TEXT = (NATIVE, "deepseek_v31")  # endpoints, and templates that join arguments to text, want JSON text
Messages = list[dict[str, Any]]


def opening(case: ToolCase, form: str) -> Messages:
    """The messages of the first turn. In plain JSON the system message lists the tools and says how to call them."""
    messages = [message.model_dump(exclude_none=True) for message in case.messages or ()]
    if form != "json":
        return messages
    told = instructions(case.tools)
    if messages[0]["role"] in ("system", "developer"):
        return [messages[0] | {"content": f"{messages[0].get('content', '')}\n\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def instructions(tools: Sequence[Tool]) -> str:
    """How to call tools in plain JSON."""
    listed = "\n".join(compact(tool.wrapped["function"]) for tool in tools)
    return (
        f"You can call these tools, each given with the JSON Schema of its arguments:\n{listed}\n"
        'To call one, answer with {"name": NAME, "arguments": {...}} and nothing else; to call several at once, answer '
        "with a JSON list of such objects. Where no tool fits, answer in words. Where something is missing, ask for it."
    )


def following(answer: str, parsed: Parsed, order: Sequence[int], turn: Turn, form: str) -> Messages:
    """What a turn adds: the answer before it, the recorded results of its calls, and what the user says then.

    Args:
        answer: The answer as it was written.
        parsed: The same, taken apart.
        order: For each expected call the place of the call that answers it.
        turn: The turn that begins.
        form: Format of the calls.
    """
    if not parsed.calls:
        added: Messages = [{"role": "assistant", "content": parsed.text}]
    elif form == "json":
        lines = [
            f"Result of {parsed.calls[place].name}: {said}" for place, said in zip(order, turn.results, strict=True)
        ]
        return _merged([{"role": "assistant", "content": answer.strip()}], "\n".join(lines), turn.user)
    else:
        # nine letters and digits: Mistral's templates take no other id
        ids = [call.id or f"call{number:05d}" for number, call in enumerate(parsed.calls)]
        called = [
            {
                "id": ids[number],
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": compact(call.arguments) if form in AS_TEXT else call.arguments,
                },
            }
            for number, call in enumerate(parsed.calls)
        ]
        results = [
            {"role": "tool", "tool_call_id": ids[place], "name": parsed.calls[place].name, "content": said}
            for place, said in sorted(zip(order, turn.results, strict=True))
        ]
        added = [{"role": "assistant", "content": parsed.text, "tool_calls": called}, *results]
    return added if turn.user is None else [*added, {"role": "user", "content": turn.user}]


def _merged(messages: Messages, results: str, user: str | None) -> Messages:
    """Results and the user's next words as one message: templates often ask that the roles take turns."""
    said = results if user is None else f"{results}\n\n{user}"
    return [*messages, {"role": "user", "content": said}]
