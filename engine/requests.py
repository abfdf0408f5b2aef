"""What an engine is asked and what it answers. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

StageName = Literal["prefill", "decode"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Greedy generation from a prompt.

    Attributes:
        prompt: Text or token ids.
        max_tokens: Most new tokens, at least 1.
        stop: Strings that end the answer; the text is cut before them.
        shared_prefix: Leading text of the prompt that other requests share. Its keys and values are computed once;
            it changes no answer.
        id: The caller's key, carried to the result.
    """

    prompt: str | Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    shared_prefix: str = ""
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Log-likelihood of each continuation after one context.

    Attributes:
        context: Text or token ids, not empty.
        continuations: Texts or token ids, each at least one token.
        through: Which stage produces the scored logits (ARCHITECTURE: `prefill` is what a deployment does for a
            one-token answer, `decode` forces the last context token and the continuation through the decode stage).
        shared_prefix: As in `GenerateRequest`.
        id: The caller's key.
    """

    context: str | Sequence[int]
    continuations: tuple[str | Sequence[int], ...]
    through: StageName = "prefill"
    shared_prefix: str = ""
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds of wall clock: waiting for admission, prefill (to the first token), and decode."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """One finished answer.

    Attributes:
        text: The answer, cut before the stop string.
        token_ids: Generated ids, the one that ended the answer included.
        prompt_tokens: Length of the rendered prompt in tokens.
        prompt_sha256: Hash of the rendered prompt's token ids.
        finish_reason: `stop` (EOS or stop string) or `length`.
        stage_tokens: Generated tokens that each stage produced.
    """

    id: str
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    prompt_sha256: str
    finish_reason: FinishReason
    stage_tokens: dict[StageName, int]
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """Log-likelihoods of the continuations, in the order asked.

    Attributes:
        logprobs: Summed natural-log probability of each continuation.
        greedy: Whether each continuation is what greedy decoding would have written.
        continuation_tokens: Tokens in each continuation.
        stage_tokens: Scored tokens that each stage produced.
        handed_over: Whether decode read a context that prefill computed.
    """

    id: str
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    continuation_tokens: tuple[int, ...]
    prompt_tokens: int
    prompt_sha256: str
    stage_tokens: dict[StageName, int]
    handed_over: bool = False
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """A request that got no answer: never scored as a wrong one."""

    id: str
    error: str
    message: str


Request = GenerateRequest | ScoreRequest
Answer = GenerateResult | ScoreResult
