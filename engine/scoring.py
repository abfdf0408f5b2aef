"""Log-likelihood of continuations, through prefill or through decode.

For continuation tokens c_1..c_m after a context: sum_j log softmax(logits before c_j)[c_j].

Through prefill the context is prefilled whole; continuations fork its pages and are prefilled. Through decode the
context but its last token is prefilled and handed over; decode computes the last token and then the continuation token
by token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from .arm import Arm
from .batch import Chunk
from .kv.handoff import handoff
from .kv.pool import PoolFull
from .kv.pool import Sequence as KVSequence
from .requests import RequestFailure, ScoreRequest, ScoreResult, Timings
from .stage import Stage
from .text import Text, foreign_id, hash_ids


@dataclass
class _Job:
    request: ScoreRequest
    context: list[int]
    continuations: list[list[int]]
    shared: int
    submitted: float
    started: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)
    finite: bool = True


def score(
    arm: Arm, text: Text, requests: Sequence[ScoreRequest], max_batch: int, max_length: int
) -> Iterator[ScoreResult | RequestFailure]:
    """Scores requests in groups; arguments as in `generate`."""
    jobs: dict[str, list[_Job]] = {"prefill": [], "decode": []}
    for request in requests:
        try:
            pairs = [text.encode_pair(request.context, c) for c in request.continuations]
            context = pairs[0][0] if pairs else text.encode(request.context)
        except EngineError as error:
            yield RequestFailure(id=request.id, error="bad_request", message=str(error))
            continue
        problem = _problem(request, context, [c for _, c in pairs], max_length, arm.vocabulary)
        if problem is not None:
            yield RequestFailure(id=request.id, error=problem[0], message=problem[1])
            continue
        shared = text.shared_tokens(context, request.shared_prefix)
        job = _Job(request, context, [c for _, c in pairs], shared, perf_counter())
        jobs[request.through].append(job)
    for through, waiting in jobs.items():
        for start in range(0, len(waiting), max_batch):
            yield from _score_group(arm, waiting[start : start + max_batch], through)


def _problem(
    request: ScoreRequest, context: list[int], continuations: list[list[int]], max_length: int, vocabulary: int
) -> tuple[str, str] | None:
    if request.through not in ("prefill", "decode"):
        return "bad_request", f"through must be prefill or decode, not {request.through!r}"
    if not context:
        return "bad_request", "the context is empty"
    if not continuations or not all(continuations):
        return "bad_request", "a continuation has no token of its own"
    foreign = foreign_id([*context, *(i for c in continuations for i in c)], vocabulary)
    if foreign is not None:
        return "bad_request", foreign
    longest = len(context) + max(len(c) for c in continuations)
    if longest > max_length:
        return "too_long", f"{longest} tokens of context and continuation exceed the {max_length} served"
    return None


def _score_group(arm: Arm, jobs: list[_Job], through: str) -> Iterator[ScoreResult | RequestFailure]:
    started = perf_counter()
    for job in jobs:
        job.started, job.logprobs, job.greedy, job.finite = started, [], [], True
    try:
        arm.note_batch(job.request.id for job in jobs)
        _through_prefill(arm, jobs) if through == "prefill" else _through_decode(arm, jobs)
    except PoolFull as error:
        if len(jobs) == 1:
            if arm.prefill.prefixes.drop_all():
                yield from _score_group(arm, jobs, through)
                return
            yield RequestFailure(id=jobs[0].request.id, error="pool", message=str(error))
            return
        half = len(jobs) // 2
        yield from _score_group(arm, jobs[:half], through)
        yield from _score_group(arm, jobs[half:], through)
        return
    for job in jobs:
        yield _result(job, through)


def _through_prefill(arm: Arm, jobs: list[_Job]) -> None:
    stage = arm.prefill
    contexts, logits = stage.prefill([(job.context, job.shared) for job in jobs])
    forks: list[KVSequence] = []
    try:
        chunks, owners = [], []
        for i, job in enumerate(jobs):
            for continuation in job.continuations:
                if len(continuation) > 1:
                    forks.append(stage.pool.fork(contexts[i]))
                    chunks.append(Chunk(forks[-1], continuation[:-1], len(continuation) - 1))
                owners.append((i, continuation))
        rest = stage.rows(chunks)
        for i, continuation in owners:
            rows = torch.stack([logits[i], *(next(rest) for _ in continuation[1:])])
            _add(jobs[i], rows, continuation)
    finally:
        _free(stage, [*contexts, *forks])


def _through_decode(arm: Arm, jobs: list[_Job]) -> None:
    stage = arm.decode
    prompts = [(job.context[:-1], min(job.shared, max(len(job.context) - 2, 0))) for job in jobs]
    several = [i for i, (ids, _) in enumerate(prompts) if ids]
    held = [KVSequence() for _ in jobs]
    forks: list[KVSequence] = []
    try:
        if several:
            sources, _ = arm.prefill.prefill([prompts[i] for i in several], logits=False)
            try:
                for i, source in zip(several, sources, strict=True):
                    held[i] = handoff(arm.prefill.pool, source, stage.pool)
            finally:
                _free(arm.prefill, sources)
        first = stage.step(held, [job.context[-1] for job in jobs])
        owners = [(i, c) for i, job in enumerate(jobs) for c in job.continuations]
        rows = [[first[i]] for i, _ in owners]
        for i, continuation in owners:
            forks.append(stage.pool.fork(held[i]) if len(continuation) > 1 else KVSequence())
        for position in range(max(len(c) for _, c in owners) - 1):
            live = [n for n, (_, c) in enumerate(owners) if position < len(c) - 1]
            step = stage.step([forks[n] for n in live], [owners[n][1][position] for n in live])
            for n, row in zip(live, step, strict=True):
                rows[n].append(row)
        for (i, continuation), found in zip(owners, rows, strict=True):
            _add(jobs[i], torch.stack(found), continuation)
    finally:
        _free(stage, [*held, *forks])


def _add(job: _Job, logits: Tensor, continuation: list[int]) -> None:
    """Adds one continuation's sum. `logits` Shape: (tokens of the continuation, vocabulary)."""
    if not bool(logits.isfinite().all()):
        job.finite = False
        return
    targets = torch.tensor(continuation)
    chosen = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None]).squeeze(1)
    job.logprobs.append(float(chosen.double().sum()))
    job.greedy.append(bool((logits.argmax(dim=-1) == targets).all()))


def _result(job: _Job, through: str) -> ScoreResult | RequestFailure:
    if not job.finite:
        message = "the model gave NaN or infinite logits"
        return RequestFailure(id=job.request.id, error="non_finite_logits", message=message)
    scored = sum(len(c) for c in job.continuations)
    now = perf_counter()
    return ScoreResult(
        id=job.request.id,
        logprobs=tuple(job.logprobs),
        greedy=tuple(job.greedy),
        continuation_tokens=tuple(len(c) for c in job.continuations),
        prompt_tokens=len(job.context),
        prompt_sha256=hash_ids([*job.context, -1, *(i for c in job.continuations for i in (*c, -1))]),
        stage_tokens={"prefill": scored, "decode": 0} if through == "prefill" else {"prefill": 0, "decode": scored},
        handed_over=through == "decode" and len(job.context) > 1,
        timings=Timings(
            queue_s=job.started - job.submitted,
            prefill_s=now - job.started if through == "prefill" else 0.0,
            decode_s=now - job.started if through == "decode" else 0.0,
        ),
    )


def _free(stage: Stage, sequences: list[KVSequence]) -> None:
    for sequence in sequences:
        stage.pool.free(sequence)
