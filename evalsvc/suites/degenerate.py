"""Failure modes of a generated text, whatever was asked: pure functions, linear in the text.

A mode is a sign, not a proof: an answer that was asked to repeat a word repeats it. What counts is the rate of one arm
beside the rate of another on the same prompts.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest, GenerateResult
from evalsvc.modes import ANY, ENTROPIES, PREFIX, Span
from evalsvc.suites.base import Asked, Item, Score
from evalsvc.suites.loops import loop_start
from evalsvc.suites.scripts import foreign

GIBBERISH_CHARACTERS = 200  # entropy of a shorter text says little
GIBBERISH_TOKENS = 64
REFUSAL_CHARACTERS = 160
_SPECIAL = re.compile(
    r"<\|(?!tool|python_tag|channel|message|constrain|call|recipient)[A-Za-z][A-Za-z0-9_]{0,40}\|>"
    r"|\[/?INST\]|<</?SYS>>|</?(?:bos|eos|pad|unk|start_of_turn|end_of_turn|begin_of_text|end_of_text)>"
    r"|<｜(?!tool)[^<>｜\s]{1,60}｜>"
)
_FRAME = frozenset(
    ("<|start|>", "<|end|>", "<|return|>")
)  # what stands around a channel belongs to the answer's format
_STRIKE = re.compile(r"</?s>")
_REFUSAL = re.compile(
    r"\b(?:i(?:['’]m| am) (?:so |very |truly )?sorry,? but|i(?:['’]m| am) (?:not able|unable) to|"
    r"i (?:can ?not|can['’]t|won['’]t|will not) (?:assist|help|provide|comply|fulfill?|do that|answer|create|write)|"
    r"as an ai (?:language )?model|i must decline|i have to decline)",
    re.IGNORECASE,
)


ALPHABETIC = Span(2.2, 5.7)  # prose 3.9 to 4.4, code and JSON to 5.2, random letters and digits 5.95
LOGOGRAPHIC = Span(2.2, 9.5)


def failures(text: str, finish_reason: str | None, prompt: str, entropy: Span | None = None) -> dict[str, float]:
    """The failure modes that an answer shows.

    Args:
        text: The answer, thinking included where the answer holds it.
        finish_reason: Why it ended; `length` is the limit of tokens.
        prompt: What was asked, as text.
        entropy: Bits per character that are ordinary; by default, of any text.

    Returns:
        1 by each name of `evalsvc.modes` that is shown; none of the others. `repetition.start` is the position of the
        character where the loop begins.
    """
    start = loop_start(text)
    shown = {
        "empty": not text.strip(),
        "truncated": finish_reason == "length",
        "repetition": start is not None,
        "gibberish": _gibberish(text, entropy),
        "broken_text": "\ufffd" in text or any("\ud800" <= character <= "\udfff" for character in set(text)),
        "special_tokens": _leaks(text, prompt),
        "endless_thinking": _thinks_on(text, prompt),
        "language_switch": foreign(text, prompt),
        "refusal": _REFUSAL.search(text.lstrip()[:REFUSAL_CHARACTERS]) is not None,
    }
    found = {name: 1.0 for name, is_shown in shown.items() if is_shown}
    return found if start is None else found | {"repetition.start": float(start)}


def failure_scores(item: Item, request: Asked, answers: Sequence[Answer]) -> list[Score]:
    """The failure modes of an item's answers as scores beside the suite's own, read through the item's own filter.

    Returns:
        `failure.any`, 1 for each mode that one of the answers shows, and the entropies of long answers; nothing for an
        item without generated answers.
    """
    prompt = prompt_text(request.prompt) if isinstance(request, GenerateRequest) else ""
    texts = [answer for answer in answers if isinstance(answer, GenerateResult)]
    if not texts:
        return []
    found: dict[str, float] = {}
    for answer in texts:
        said = failures(answer.text, answer.finish_reason, prompt)
        if getattr(answer, "tool_calls", None):
            said.pop("empty", None)  # the answer is the list of calls
        found |= said
    first = next(iter(found), None)
    metrics = {ANY: float(bool(found)), **{PREFIX + name: value for name, value in found.items()}, **_entropies(texts)}
    return [
        Score(metric=metric, value=value, filter=item.filter, error_class=first if metric == ANY else None)
        for metric, value in metrics.items()
    ]


def bits_per_character(text: str) -> float:
    """Shannon entropy of a text's characters, case aside. Unit: bits; 0 for no text."""
    counts = Counter(text.lower()).values()
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts) if total else 0.0


def bits_per_token(ids: Sequence[int]) -> float:
    """Shannon entropy of a text's tokens. Unit: bits; 0 for no token."""
    counts = Counter(ids).values()
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts) if total else 0.0


def _entropies(answers: Sequence[GenerateResult]) -> dict[str, float]:
    """Entropies of the longest answer, each where it is long enough to say something.

    That of tokens is of the first ones alone: it grows with their number, and would tell long answers from short ones.
    """
    longest = max(answers, key=lambda answer: len(answer.text))
    per_character, per_token = ENTROPIES
    found = {}
    if len(longest.text) >= GIBBERISH_CHARACTERS:
        found[per_character] = bits_per_character(longest.text)
    if len(longest.token_ids) >= GIBBERISH_TOKENS:
        found[per_token] = bits_per_token(longest.token_ids[:GIBBERISH_TOKENS])
    return found


def prompt_text(prompt: Any) -> str:
    """A request's prompt as text: as it is, or the contents of its messages; empty for token ids."""
    if isinstance(prompt, str):
        return prompt
    contents = [message.get("content") for message in prompt if isinstance(message, Mapping)]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def _gibberish(text: str, entropy: Span | None) -> bool:
    if len(text) < GIBBERISH_CHARACTERS:
        return False
    if entropy is None:
        wide = sum(character > "\u2e7f" for character in text)
        entropy = LOGOGRAPHIC if 10 * wide > len(text) else ALPHABETIC
    return not entropy.low <= bits_per_character(text) <= entropy.high


def _leaks(text: str, prompt: str) -> bool:
    """Whether a special token stands in the text, those of tool calls and channels aside.

    `<s>` counts alone, and only where the prompt has no such mark: it is HTML, too.
    """
    framed = _FRAME if "<|channel|>" in text else frozenset()
    if any(mark.group() not in framed for mark in _SPECIAL.finditer(text)):
        return True
    marks = set(_STRIKE.findall(text))
    return len(marks) == 1 and not marks & set(_STRIKE.findall(prompt))


def _thinks_on(text: str, prompt: str) -> bool:
    """Whether a thought begins, in the answer or at the prompt's very end, and never ends."""
    begun = prompt.rstrip().endswith("<think>") or "<think>" in text
    return begun and text.rfind("</think>") < max(text.rfind("<think>"), 0)
