"""Answers written token by token: prefill computes the prompt and the first token, decode goes on from there."""

from collections.abc import Mapping, Sequence
from time import perf_counter

from torch import Tensor

from evalsvc.errors import EngineError

from .arm import Arm
from .jobs import Job, Ticket, deadline_problem, refuse, whole
from .prompts import Lane, Prompt
from .requests import GenerateRequest, GenerateResult, TextPiece, Timings, TokenLogprobs
from .sampling import Choice, Sampling, all_top_logprobs, choose, problem
from .text import Text, foreign_id, hash_ids
from .writing import Writer


class GenerateJob(Job):
    """One answer being written.

    Attributes:
        request: What was asked.
        generated: Tokens so far, the one that ends the answer included.
    """

    request: GenerateRequest

    def __init__(self, request: GenerateRequest, arm: Arm, ticket: Ticket, sample: int, prompt: list[int], text: Text):
        super().__init__(request, arm, ticket, sample)
        self.prompt, self.generated = prompt, list[int]()
        self._sampling = Sampling.from_request(request)
        eos_ids = () if request.ignore_eos else text.eos_ids
        self._writer = Writer(text, prompt[-1], request.stop, eos_ids, request.keep_special)
        self._logprobs: list[TokenLogprobs] = []
        self._text = text
        self._times = list[float]()

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(self.generated)

    def choice(self) -> Choice:
        """How the next token is to be drawn."""
        seen = () if self._sampling.repetition_penalty == 1 else [*self.prompt, *self.generated]
        return Choice(self._sampling, self.sample, len(self.generated), seen)

    def push(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Takes a token, with its log-probabilities where they were asked; finishes with the one that ends it."""
        request = self.request
        self.generated.append(token)
        self._times.append(perf_counter() - self.submitted)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        ended = self._writer.push(token)
        done = ended or len(self.generated) == request.max_tokens
        text = self._writer.finish() if done else ""
        if self.ticket.streaming:
            self._stream()
        if done:
            self._finish(text, "stop" if ended else "length")

    def _stream(self) -> None:
        piece = self._writer.settled()
        if piece:
            self.ticket.outcomes.append(
                TextPiece(
                    id=self.request.id,
                    arm=self.arm.name,
                    sample=self.sample,
                    text=piece,
                    token_ids=tuple(self.generated),
                )
            )

    def _finish(self, text: str, reason) -> None:
        now = perf_counter()
        first = self.first_token or now
        result = GenerateResult(
            id=self.request.id,
            arm=self.arm.name,
            sample=self.sample,
            text=text,
            token_ids=tuple(self.generated),
            logprobs=None if self.request.logprobs is None else tuple(self._logprobs),
            texts=self._text.apart({token for entry in self._logprobs for token, _ in entry.top}),
            prompt_tokens=len(self.prompt),
            prompt_sha256=hash_ids(self.prompt),
            finish_reason=reason,
            stage_tokens={"prefill": 1, "decode": len(self.generated) - 1},
            timings=Timings(
                queue_s=self.admitted - self.submitted, prefill_s=first - self.admitted, decode_s=now - first
            ),
            token_times_s=tuple(self._times),
        )
        self.finish(result)


def generate_jobs(
    request: GenerateRequest, arms: Sequence[Arm], text: Text, ticket: Ticket, max_length: int
) -> tuple[list[GenerateJob], list[Prompt]]:
    """Jobs and prompts of a request; none of either, and failures on the ticket, for one that cannot be served.

    Arms that share a prefill stage share the prompt.
    """
    try:
        prompt = text.encode(request.prompt, request.tools) if isinstance(request.prompt, Sequence | Mapping) else []
        error = _problem(request, prompt, max_length, arms[0].vocabulary)
    except EngineError as unreadable:
        prompt, error = [], ("bad_request", str(unreadable))
    if error is not None:
        refuse(ticket, request, list(arms), *error)
        return [], []
    jobs: list[GenerateJob] = []
    prompts = {arm.prefill: Prompt(None, arm.prefill, prompt, logits=True) for arm in arms}
    for arm in arms:
        for sample in range(request.n):
            job = GenerateJob(request, arm, ticket, sample, prompt, text)
            jobs.append(job)
            lane = Lane(job, arm.decode, [], len(prompt) + request.max_tokens)
            prompts[arm.prefill].lanes.append(lane)
    return jobs, list(prompts.values())


def _problem(request: GenerateRequest, prompt: list[int], max_length: int, vocabulary: int) -> tuple[str, str] | None:
    if not isinstance(request.prompt, Sequence | Mapping):
        return "bad_request", f"the prompt is {request.prompt!r:.80}; it must be text, a list of token ids, or messages"
    if not prompt:
        return "bad_request", "the prompt is empty"
    foreign = foreign_id(prompt, vocabulary)
    if foreign is not None:
        return "bad_request", foreign
    for name, number in (("max_tokens", request.max_tokens), ("n", request.n)):
        if not whole(number, 1):
            return "bad_request", f"{name} is {number!r}; it must be a whole number, at least 1"
    if not isinstance(request.stop, Sequence) or isinstance(request.stop, str):
        return "bad_request", f"stop is {request.stop!r}; it must be a list of strings"
    for stop in request.stop:
        if not isinstance(stop, str) or not stop:
            return "bad_request", f"a stop string is empty or no text: {stop!r}"
    if request.logprobs is not None and not whole(request.logprobs, 0, vocabulary):
        return "bad_request", f"logprobs is {request.logprobs!r}; it must be a whole number from 0 to {vocabulary}"
    wrong = deadline_problem(request.deadline_s) or problem(Sampling.from_request(request))
    if wrong is not None:
        return "bad_request", wrong
    if len(prompt) + request.max_tokens > max_length:
        return "too_long", f"{len(prompt)} prompt tokens + {request.max_tokens} new ones exceed the {max_length} served"
    return None


def take_tokens(rows: Tensor, takers: Sequence[tuple[int, GenerateJob, Lane]]) -> None:
    """Draws the next token of each job from its row of logits, and feeds it to its lane.

    Args:
        rows: Shape: (rows, vocabulary), fp32.
        takers: (row, job, lane).
    """
    if not takers:
        return
    which = [row for row, _, _ in takers]
    logits = rows if which == list(range(len(rows))) else rows[which]
    tokens = choose(logits, [job.choice() for _, job, _ in takers])
    asked = [i for i, (_, job, _) in enumerate(takers) if job.request.logprobs is not None]
    found: dict[int, TokenLogprobs] = {}
    if asked:
        mine = logits if len(asked) == len(takers) else logits[asked]
        ks = [takers[i][1].request.logprobs or 0 for i in asked]
        found = dict(zip(asked, all_top_logprobs(mine, [tokens[i] for i in asked], ks), strict=True))
    for i, (token, (_, job, lane)) in enumerate(zip(tokens, takers, strict=True)):
        job.push(token, found.get(i))
        if not job.done:
            lane.feed.append(token)
