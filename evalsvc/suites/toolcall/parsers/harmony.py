"""gpt-oss harmony: messages with a channel; a call is one on `commentary` to `functions.NAME`, ended by `<|call|>`."""

import re
from collections.abc import Sequence

from evalsvc.suites.toolcall.calls import Call, Leniency, Malformed, Parsed
from evalsvc.suites.toolcall.parsers.base import CallFormat, Schemas, compact, json_value, skip

START, CHANNEL, MESSAGE, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|call|>"
LONGEST_HEADER = 300
ENDS = re.compile(r"<\|(?:end|return|call|start)\|>")
HEADER = re.compile(  # nothing is given back: a header that does not fit is read once
    r"(?:<\|start\|>)?+(?:assistant)?+(?:\s*+to=(?P<before>[^\s<]++))?+\s*+"
    r"<\|channel\|>(?P<channel>analysis|commentary|final)(?:\s++to=(?P<to>[^\s<]++))?+"
    r"\s*+(?:(?:<\|constrain\|>)?+\s*+(?P<kind>\w++)\s*+)?+<\|message\|>"
)


def read(text: str, schemas: Schemas, leniency: Leniency) -> Parsed:
    """Messages one after another. A header that is not one ends the reading, and the raw text is kept."""
    if START not in text and CHANNEL not in text and MESSAGE not in text:
        return Parsed(text=text.strip())
    calls: list[Call] = []
    said: list[str] = []
    thought: list[str] = []
    at, problems, attempted = skip(text, 0), (), False
    while at < len(text):
        attempted = attempted or "to=functions." in text[at : at + LONGEST_HEADER].split(MESSAGE)[0]
        try:
            at = _message(text, at, calls, said, thought, leniency)
        except Malformed as error:
            problems = (str(error),)
            said.append(text[at:])
            break
        at = skip(text, at)
    return Parsed(
        calls=tuple(calls),
        text="\n".join(said).strip(),
        reasoning="\n".join(thought).strip(),
        problems=problems,
        repairs=tuple(leniency.done),
        attempted=attempted,
    )


def _message(text: str, at: int, calls: list[Call], said: list[str], thought: list[str], leniency: Leniency) -> int:
    """Takes one message; where it ends."""
    header = HEADER.match(text, at)
    if header is None:
        raise Malformed("not a header")
    to, at = header["to"] or header["before"], header.end()
    if header["kind"] is not None and to is None:
        raise Malformed("not a header")
    if to is not None:
        if not to.startswith("functions.") or to == "functions.":
            raise Malformed(f"no function {to!r}")
        arguments, end = json_value(text, at, leniency)
        if not isinstance(arguments, dict):
            raise Malformed("arguments are not an object")
        if header["channel"] != "commentary":
            leniency.repair("a call on another channel")
        end = skip(text, end)
        if end < len(text) and not text.startswith(CALL, end):  # servers cut what ends the answer
            leniency.repair("no <|call|>")
        calls.append(Call(to.removeprefix("functions."), arguments))
        return end + len(CALL) if text.startswith(CALL, end) else end
    ended = ENDS.search(text, at)
    end = len(text) if ended is None else ended.start()
    (thought if header["channel"] == "analysis" else said).append(text[at:end].strip())
    return end if ended is None or ended[0] == START else ended.end()


def write(calls: Sequence[Call]) -> str:
    """A message for each call, as one generation after `<|start|>assistant`."""
    return f"{START}assistant".join(
        f"{CHANNEL}commentary to=functions.{call.name} <|constrain|>json{MESSAGE}{compact(call.arguments)}{CALL}"
        for call in calls
    )


HARMONY = CallFormat("harmony", (f"{CHANNEL}commentary to=", " to=functions."), ((CHANNEL, START),), read, write)
