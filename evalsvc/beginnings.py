"""How many beginning-of-sequence tokens prompts begin with: one too many or too few is another prompt to the model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from evalsvc.engine.requests import GenerateRequest, RollingRequest
from evalsvc.suites.base import Asked

_COUNTED = {"0": "no", "1": "one"}


class Beginner(Protocol):
    """Who knows how a prompt begins."""

    def begins(self, prompt: Any, tools: Sequence[Mapping[str, Any]] = ()) -> int | None:
        """Beginning-of-sequence tokens at the start of a prompt; None for one that cannot be written."""
        ...

    @property
    def adds_bos(self) -> bool | None:
        """Whether the tokenizer begins a plain text with one; None where it knows no such token."""
        ...


def beginnings(target: Beginner, requests: Sequence[Asked]) -> dict[str, Any] | None:
    """What a proof says of it: whether the tokenizer adds the token, and prompts by how many they begin with.

    A context that is empty is left out: it is a prefix token and nothing else.

    Returns:
        None where the tokenizer knows no such token.
    """
    if target.adds_bos is None:
        return None
    found = [target.begins(prompt, tools) for request in requests for prompt, tools in _prompts(request)]
    counts = Counter(count for count in found if count is not None)
    return {"tokenizer_adds": target.adds_bos, "prompts": {str(count): counts[count] for count in sorted(counts)}}


def _prompts(request: Asked) -> Iterator[tuple[Any, Sequence[Mapping[str, Any]]]]:
    if isinstance(request, GenerateRequest):
        yield request.prompt, request.tools
    elif isinstance(request, RollingRequest):
        yield request.text, ()
    else:
        for context in request.contexts or (request.context,):
            if context:
                yield context, ()


def flaws(begun: Mapping[str, Any] | None) -> list[str]:
    """What is odd about how the prompts of a proof begin, in words; empty where all begin as the tokenizer has it."""
    if not begun:
        return []
    counts = {int(count): prompts for count, prompts in begun["prompts"].items()}
    total = sum(counts.values())
    doubled = sum(prompts for count, prompts in counts.items() if count > 1)
    missing = counts.get(0, 0) if begun["tokenizer_adds"] else 0
    found = []
    if doubled:
        found.append(f"{doubled:,} of {total:,} prompts begin with more than one beginning-of-sequence token")
    if missing:
        found.append(
            f"{missing:,} of {total:,} prompts begin without the beginning-of-sequence token "
            "that the tokenizer adds to plain text"
        )
    return found


def in_words(begun: Mapping[str, Any] | None) -> str | None:
    """All of it in one line; None where nobody knows."""
    if not begun:
        return None
    each = [f"{prompts:,} with {_COUNTED.get(count, count)}" for count, prompts in begun["prompts"].items()]
    if not each:
        return None
    several = "s" * (next(iter(begun["prompts"])) not in _COUNTED)
    each[0] += f" beginning-of-sequence token{several}"
    adds = "adds one to" if begun["tokenizer_adds"] else "adds none to"
    return f"{', '.join(each)} (the tokenizer {adds} plain text)"
