"""What log-likelihoods cannot be: such answers come of a broken server or model, and are errors, never scores.

A server that returns log-probabilities of generated tokens alone leaves sums of nothing: 0 for every choice, of which
lm-eval takes the first.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import exp, isfinite
from typing import Any

from evalsvc.engine.requests import RollingRequest, ScoreRequest, ScoreResult

ROUNDING = 0.05  # of a sum of probabilities that were computed apart, in formats of few bits


def impossible_answer(request: ScoreRequest | RollingRequest, answer: ScoreResult) -> str | None:
    """Why an answer cannot be one to its request, in a sentence; None where it can."""
    asked = 1 if isinstance(request, RollingRequest) else len(request.continuations)
    if len(answer.logprobs) != asked:
        return f"{len(answer.logprobs)} log-likelihoods came of {asked} that were asked"
    wanted, scored = sum(answer.continuation_tokens), sum(answer.stage_tokens.values())
    if answer.continuation_tokens and scored < wanted:
        return f"log-probabilities of {scored} tokens came, and {wanted} were asked"
    if isinstance(request, RollingRequest):
        return impossible((), (), answer.logprobs)
    contexts = request.contexts or (request.context,) * asked
    return impossible(contexts, request.continuations, answer.logprobs)


def all_zero(logprobs: Sequence[float]) -> str | None:
    """Why choices that are all certain are no answer, in a sentence; None where one is not, or there is only one."""
    if len(logprobs) < 2 or any(logprobs):
        return None
    return f"all {len(logprobs)} log-likelihoods are 0: did the server return those of generated tokens alone?"


def impossible(contexts: Sequence[Any], continuations: Sequence[Any], logprobs: Sequence[float]) -> str | None:
    """Why no model can have given these log-likelihoods, in a sentence; None where one can, or where nobody knows.

    Continuations of one context of which none begins with another exclude each other: their probabilities sum to at
    most 1.

    Args:
        contexts: One a log-likelihood.
        continuations: One a log-likelihood; texts or token ids.
        logprobs: Natural; one that is not finite is not looked at.
    """
    above = next((value for value in logprobs if isfinite(value) and value > ROUNDING), None)
    if above is not None:
        return f"a log-likelihood is {above:g}, above 0: is it a logit, or of another sign?"
    if (zeros := all_zero(logprobs)) is not None:
        return zeros
    held: dict[Hashable, dict[tuple[Any, ...], float]] = defaultdict(dict)
    for context, continuation, value in zip(contexts, continuations, logprobs, strict=False):
        held[repr(context)][tuple(continuation)] = value
    for choices in held.values():
        apart = [value for ids, value in choices.items() if not any(ids[:n] in choices for n in range(len(ids)))]
        total = sum(exp(value) for value in apart if isfinite(value))
        if total > 1 + ROUNDING:
            return f"probabilities of {len(apart)} choices that exclude each other sum to {total:.3g}, above 1"
    return None
