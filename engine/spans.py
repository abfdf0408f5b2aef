"""What a scoring request asks, in token ids: contexts, what is scored after each, and what is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsvc.errors import EngineError

from .arm import Arm
from .jobs import deadline_problem, whole
from .requests import RollingRequest, ScoreRequest
from .text import Text, foreign_id

Place = tuple[int, int]  # continuation, token in it


@dataclass(frozen=True)
class Span:
    """A context and the continuation that is scored after it, in token ids."""

    context: list[int]
    tokens: list[int]


def spans_of(request: ScoreRequest | RollingRequest, text: Text, window: int) -> list[Span]:
    """What a request asks, in token ids; a rolling text in windows of so many tokens.

    Raises:
        EngineError: A context, a continuation or a list of them that is of another type.
    """
    if isinstance(request, RollingRequest):
        _check_sequence("text", request.text)
        ids = text.encode(request.text) if request.text else []
        return rolling_windows(ids, text.prefix_id, window)
    _check_sequence("context", request.context)
    if isinstance(request.continuations, str) or not isinstance(request.continuations, Sequence):
        raise EngineError(f"continuations is {request.continuations!r:.80}; it must be a list")
    for continuation in request.continuations:
        _check_sequence("a continuation", continuation)
    contexts = request.contexts or [request.context] * len(request.continuations)
    if len(contexts) != len(request.continuations):
        raise EngineError(f"{len(contexts)} contexts for {len(request.continuations)} continuations")
    pairs = [text.encode_pair(context, one) for context, one in zip(contexts, request.continuations, strict=True)]
    return [Span(context, tokens) for context, tokens in pairs]


def _check_sequence(what: str, value: object) -> None:
    if not isinstance(value, Sequence):
        raise EngineError(f"{what} is {value!r:.80}; it must be text or a list of token ids")


def rolling_windows(ids: Sequence[int], prefix_id: int, max_length: int) -> list[Span]:
    """Every token of a text once, each window as long as the model can hold.

    The first window begins after `prefix_id`; a later one scores as many tokens and sees at least one before them, the
    last one more, as many as fit (lm-eval's `get_rolling_token_windows` with `context_len=1`, made disjoint).

    Args:
        ids: Tokens of the text.
        prefix_id: What the first token follows.
        max_length: Most tokens that go into the model: a context and what is scored after it but for its last token.
    """
    spans: list[Span] = []
    for start in range(0, len(ids), max_length):
        stop = min(len(ids), start + max_length)
        before = list(ids[stop - max_length - 1 : start]) if start else [prefix_id]
        spans.append(Span(before, list(ids[start:stop])))
    return spans


def problem_of(
    request: ScoreRequest | RollingRequest, spans: list[Span], arms: Sequence[Arm], max_length: int
) -> tuple[str, str] | None:
    """Why a request cannot be served, as the error class and the message of its failure; None where it can."""
    if request.through not in ("prefill", "decode"):
        return "bad_request", f"through must be prefill or decode, not {request.through!r}"
    if isinstance(request, RollingRequest) and not spans:
        return "bad_request", "the text is empty"
    if not spans or not all(span.tokens for span in spans):
        return "bad_request", "a continuation has no token of its own"
    if not all(span.context for span in spans):
        return "bad_request", "the context is empty"
    foreign = foreign_id([i for span in spans for i in (*span.context, *span.tokens)], arms[0].vocabulary)
    if foreign is not None:
        return "bad_request", foreign
    if isinstance(request, ScoreRequest):
        names = [arm.name for arm in arms]
        if request.compare_with is not None and request.compare_with not in names:
            return "bad_request", f"compare_with {request.compare_with!r} is not one of the request's arms {names}"
        if not whole(request.top_logprobs, 0, arms[0].vocabulary):
            return "bad_request", f"top_logprobs must be a whole number from 0 to {arms[0].vocabulary}"
    wrong = deadline_problem(request.deadline_s)
    if wrong is not None:
        return "bad_request", wrong
    longest = max(len(span.context) + len(span.tokens) - 1 for span in spans)  # the last one is scored, not read
    if longest > max_length:
        if isinstance(request, RollingRequest):
            return "too_long", f"a window of {longest} tokens exceeds the {max_length} of a pool; raise `kv_tokens`"
        return "too_long", f"{longest + 1} tokens of context and continuation exceed the {max_length} + 1 served"
    return None
