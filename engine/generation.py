"""Greedy generation: prefill computes the prompt and the first token, decode goes on from the handed-over pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from evalsvc.errors import EngineError

from .arm import Arm
from .kv.handoff import handoff
from .kv.pool import PAGE, PoolFull
from .kv.pool import Sequence as KVSequence
from .requests import FinishReason, GenerateRequest, GenerateResult, RequestFailure, Timings
from .scheduler import Scheduler
from .text import Text, cut_at_stop, foreign_id, hash_ids


@dataclass
class _Running:
    request: GenerateRequest
    prompt: list[int]
    shared: int
    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    generated: list[int] = field(default_factory=list)
    pages: KVSequence = field(default_factory=KVSequence)


def generate(
    arm: Arm, text: Text, requests: Sequence[GenerateRequest], max_batch: int, max_length: int
) -> Iterator[GenerateResult | RequestFailure]:
    """Answers requests, in the order in which they finish.

    Args:
        arm: Whose stages answer.
        text: The tokenizer.
        requests: Ids must differ.
        max_batch: Most requests side by side. It changes no answer.
        max_length: Longest prompt and answer together, in tokens.
    """
    scheduler = Scheduler(arm.decode.pool.n_pages, max_batch)
    jobs: dict[int, _Running] = {}
    for key, request in enumerate(requests):
        try:
            prompt = text.encode(request.prompt)
        except EngineError as error:
            yield RequestFailure(id=request.id, error="bad_request", message=str(error))
            continue
        problem = _problem(request, prompt, max_length, arm.vocabulary)
        if problem is None and not scheduler.submit(key, -(-(len(prompt) + request.max_tokens) // PAGE)):
            problem = (
                "pool",
                f"{len(prompt)} + {request.max_tokens} tokens do not fit in the KV pool; raise `kv_tokens`",
            )
        if problem is not None:
            yield RequestFailure(id=request.id, error=problem[0], message=problem[1])
            continue
        jobs[key] = _Running(request, prompt, text.shared_tokens(prompt, request.shared_prefix), perf_counter())
    try:
        while scheduler.busy:
            for key, row in _step(arm, scheduler, jobs):
                result = _advance(jobs[key], row, text)
                if result is not None:
                    arm.decode.pool.free(jobs.pop(key).pages)
                    scheduler.finish(key)
                    yield result
    finally:  # the caller may stop listening at any answer
        for job in jobs.values():
            arm.decode.pool.free(job.pages)


def _step(arm: Arm, scheduler: Scheduler, jobs: dict[int, _Running]) -> list[tuple[int, Tensor | EngineError]]:
    """One forward: newly admitted prompts when there are any, else the next token of all that run."""
    admitted = {key: jobs[key] for key in scheduler.admit()}
    if admitted:
        return _start(arm, admitted)
    running = {key: jobs[key] for key in scheduler.running}
    arm.note_batch(job.request.id for job in running.values())
    rows = arm.decode.step([j.pages for j in running.values()], [j.generated[-1] for j in running.values()])
    return list(zip(running, rows, strict=True))


def _problem(request: GenerateRequest, prompt: list[int], max_length: int, vocabulary: int) -> tuple[str, str] | None:
    if not prompt:
        return "bad_request", "the prompt is empty"
    foreign = foreign_id(prompt, vocabulary)
    if foreign is not None:
        return "bad_request", foreign
    if request.max_tokens < 1:
        return "bad_request", "max_tokens must be at least 1"
    if any(not stop for stop in request.stop):
        return "bad_request", "a stop string is empty"
    if len(prompt) + request.max_tokens > max_length:
        return "too_long", f"{len(prompt)} prompt tokens + {request.max_tokens} new ones exceed the {max_length} served"
    return None


def _start(arm: Arm, admitted: dict[int, _Running]) -> list[tuple[int, Tensor | EngineError]]:
    """Prefills and hands over; halves the batch when the prefill pool is too small for all of it."""
    now = perf_counter()
    try:
        arm.note_batch(job.request.id for job in admitted.values())
        sequences, logits = arm.prefill.prefill([(job.prompt, job.shared) for job in admitted.values()])
    except PoolFull as error:
        if len(admitted) == 1:
            return [(key, error) for key in admitted]
        keys = list(admitted)
        half = len(keys) // 2
        parts = (keys[:half], keys[half:])
        return [entry for part in parts for entry in _start(arm, {key: admitted[key] for key in part})]
    try:
        for job, sequence in zip(admitted.values(), sequences, strict=True):
            job.admitted = now
            job.pages = handoff(arm.prefill.pool, sequence, arm.decode.pool)
            job.first_token = perf_counter()
    finally:
        for sequence in sequences:
            arm.prefill.pool.free(sequence)
    return list(zip(admitted, logits, strict=True))


def _advance(job: _Running, row: Tensor | EngineError, text: Text) -> GenerateResult | RequestFailure | None:
    """Takes the next token from logits of shape (vocabulary,); a result once the request has ended."""
    request = job.request
    if isinstance(row, EngineError):
        return RequestFailure(id=request.id, error="pool", message=str(row))
    if not bool(row.isfinite().all()):
        return RequestFailure(id=request.id, error="non_finite_logits", message="the model gave NaN or infinite logits")
    token = int(row.argmax())
    job.generated.append(token)
    ended = token in text.eos_ids
    written = text.decode(job.prompt[-1], job.generated[:-1] if ended else job.generated)
    cut = cut_at_stop(written, request.stop)
    if not ended and cut is None and len(job.generated) < request.max_tokens:
        return None
    reason: FinishReason = "stop" if ended or cut is not None else "length"
    now = perf_counter()
    return GenerateResult(
        id=request.id,
        text=written if cut is None else cut,
        token_ids=tuple(job.generated),
        prompt_tokens=len(job.prompt),
        prompt_sha256=hash_ids(job.prompt),
        finish_reason=reason,
        stage_tokens={"prefill": 1, "decode": len(job.generated) - 1},
        timings=Timings(
            queue_s=job.admitted - job.submitted,
            prefill_s=job.first_token - job.admitted,
            decode_s=now - job.first_token,
        ),
    )
