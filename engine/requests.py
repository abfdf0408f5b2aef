"""What an engine is asked and what it answers. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

StageName = Literal["prefill", "decode"]
FinishReason = Literal["stop", "length", "tool_calls", "abort", "integrity", "error"]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Generation from a prompt, greedy at temperature 0.

    Attributes:
        prompt: Text, token ids, or messages (`[{"role": ..., "content": ...}]`) for the model's chat template. A last
            message of the assistant's that says `"prefix": True` is what the answer goes on from.
        tools: Functions that messages may be answered by a call of, as JSON schemas; the chat template shows them.
        keep_special: Whether special tokens stay in the answer's text; many formats of tool calls are made of them.
        max_tokens: Most new tokens, at least 1.
        ignore_eos: Whether end-of-sequence tokens are tokens like others, so that the answer has its whole length.
        stop: Strings that end the answer; the text is cut before them.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only so many likeliest tokens are drawn from; 0 for all.
        top_p: Only the likeliest tokens that together reach this probability are drawn from.
        min_p: Only tokens of at least this fraction of the likeliest one's probability are drawn from.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or answer (Keskar 2019).
        seed: Of this request's own draws; nothing else enters them.
        n: Answers to draw; the prompt is computed once.
        logprobs: None for none; k for each token's log-probability and the k likeliest ones there.
        deadline_s: Seconds after which the request is given up.
        arms: Who answers; empty for the arm named in the call.
        id: The caller's key, carried to the result.
    """

    prompt: str | Sequence[int] | Messages
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()
    keep_special: bool = False
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    n: int = 1
    logprobs: int | None = None
    deadline_s: float | None = None
    arms: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Log-likelihood of each continuation after one context.

    Attributes:
        context: Text, token ids or messages (as a prompt). Empty text is what follows the beginning of sequence, as in
            lm-eval; empty ids are refused.
        continuations: Texts or token ids, each at least one token.
        contexts: One for each continuation where they differ, in place of `context`.
        through: Which stage produces the scored logits (ARCHITECTURE: `prefill` is what a deployment does for a
            one-token answer, `decode` forces the last context token and the continuation through the decode stage).
        top_logprobs: How many of the likeliest tokens to name at each scored token.
        compare_with: An arm, itself among `arms`, whose whole next-token distribution each other arm's is compared
            with at every scored token.
        deadline_s: Seconds after which the request is given up.
        arms: As in `GenerateRequest`.
        id: The caller's key.
    """

    context: str | Sequence[int] | Messages
    continuations: Sequence[str | Sequence[int]]
    contexts: Sequence[str | Sequence[int] | Messages] = ()
    through: StageName = "prefill"
    top_logprobs: int = 0
    compare_with: str | None = None
    deadline_s: float | None = None
    arms: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class RollingRequest:
    """Log-likelihood of a whole text, in windows of the model's length as lm-eval makes them.

    Each token is scored once; in windows after the first it sees as much before it as fits. Text is encoded as a
    prompt is: where the tokenizer writes a beginning of sequence, that is scored too.

    Attributes:
        text: Text or token ids, not empty.
        through: As in `ScoreRequest`.
        deadline_s: As in `ScoreRequest`.
        arms: As in `GenerateRequest`.
        id: The caller's key.
    """

    text: str | Sequence[int]
    through: StageName = "prefill"
    deadline_s: float | None = None
    arms: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds of wall clock: waiting for admission, prefill (to the first token), and decode."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities at one token.

    Attributes:
        token: The token that was written or scored.
        logprob: Its own.
        top: The likeliest tokens and theirs, descending, as many as were asked.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Divergence:
    """One arm's next-token distribution against the reference's, at one token.

    Attributes:
        kl: KL(reference || arm), nats.
        same_top1: Whether both have the same likeliest token.
    """

    kl: float
    same_top1: bool


@dataclass(frozen=True, kw_only=True)
class TextPiece:
    """What a streamed answer grew by.

    Attributes:
        text: New text. What could still become a stop string or half a character is held back.
        token_ids: Tokens behind it, and behind what is held back.
    """

    id: str
    arm: str
    sample: int
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """One finished answer.

    Attributes:
        arm: Who answered.
        sample: Which of the request's `n` answers, from 0.
        text: The answer, cut before the stop string.
        token_ids: Generated ids, the one that ended the answer included.
        logprobs: One entry a token, when asked.
        texts: What each of the likeliest tokens in `logprobs` spells.
        prompt_tokens: Length of the rendered prompt in tokens.
        prompt_sha256: Hash of the rendered prompt's token ids.
        finish_reason: `stop` (EOS or stop string), `length`, or `tool_calls` where an endpoint listed calls; the other
            reasons are failures.
        stage_tokens: Generated tokens that each stage produced.
        token_times_s: By generated token the seconds from submission until it was written.
        tool_calls: The calls that an endpoint itself took out of the text, as the OpenAI interface has them; None where
            the text is all there is, as of the embedded engine.
    """

    id: str
    arm: str = ""
    sample: int = 0
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    prompt_tokens: int
    prompt_sha256: str
    finish_reason: FinishReason
    stage_tokens: dict[StageName, int]
    timings: Timings = field(default_factory=Timings)
    token_times_s: tuple[float, ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """Log-likelihoods of the continuations, in the order asked.

    Attributes:
        arm: Who answered.
        logprobs: Summed natural-log probability of each continuation.
        greedy: Whether each continuation is what greedy decoding would have written.
        continuation_tokens: Tokens in each continuation.
        tokens: Per continuation its tokens' log-probabilities, when `top_logprobs` asks for them.
        divergences: Per continuation and token the comparison with the reference arm, when asked and not itself.
        stage_tokens: Scored tokens that each stage produced.
        handed_over: Whether decode read a context that prefill computed.
    """

    id: str
    arm: str = ""
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    continuation_tokens: tuple[int, ...]
    tokens: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    divergences: tuple[tuple[Divergence, ...], ...] | None = None
    prompt_tokens: int
    prompt_sha256: str
    stage_tokens: dict[StageName, int]
    handed_over: bool = False
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A slot that did not hold what a request expected there.

    Attributes:
        stage: Where it was read: `prefill`, `decode`, or `handoff` between them.
        page: Number of the page; nobody gets it again.
        slot: Of the pool.
        layer: From 0.
        expected: Tag and position; `found` are those that were there.
        content: Tag and position were right, and the contents were not what had been stored.
        step: Forwards that the stage had run.
    """

    stage: str
    page: int
    slot: int
    layer: int
    expected: tuple[int, int]
    found: tuple[int, int]
    content: bool
    step: int

    def __str__(self) -> str:
        where = f"{self.stage}, page {self.page}, slot {self.slot}, layer {self.layer}, step {self.step}"
        (tag, position), (other, place) = self.expected, self.found
        if self.content:
            return f"the contents of position {position} are not what was stored ({where})"
        return f"position {position} was to hold tag {tag} and holds tag {other} of position {place} ({where})"


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """A request that got no answer: never scored as a wrong one.

    Attributes:
        arm: Whose answer is missing.
        sample: Which of the request's answers.
        error: What kind: `bad_request`, `too_long`, `pool`, `non_finite_logits`, `cancelled`, `deadline`, `reference`
            (the arm that it was compared with has no answer), `engine` (a step failed, and all under way with it),
            `integrity` (a page that it read does not hold what was written for it).
        message: One sentence.
        finish_reason: `abort` (cancelled, deadline), `integrity` or `error`.
        token_ids: What had been generated.
        incident: What was wrong with the page.
    """

    id: str
    arm: str = ""
    sample: int = 0
    error: str
    message: str
    finish_reason: FinishReason = "error"
    token_ids: tuple[int, ...] = ()
    incident: Incident | None = None


Request = GenerateRequest | ScoreRequest | RollingRequest
Answer = GenerateResult | ScoreResult
