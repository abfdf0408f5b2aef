"""The engine's loop: schedule, run, hand over, take what the logits say.

One loop serves all arms of an engine. A step runs every decode stage that has lanes, then every prefill stage that has
pieces. It is driven by whoever waits for an answer, by one thread at a time.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from threading import RLock
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from .batch import Chunk
from .devices import on
from .generation import GenerateJob, take_tokens
from .jobs import Job
from .kv.handoff import HandoffFault, handoff
from .kv.pages import Pages, Sequence
from .prompts import Lane, Piece, Prompt, Tail
from .requests import FinishReason, Incident
from .scheduler import Scheduler
from .scoring import Rows, ScoreJob, take_logprobs

NON_FINITE = "the model gave NaN or infinite logits"


class Loop:
    """Runs jobs until they are done.

    Attributes:
        scheduler: What waits and runs.
        lock: Held while anything of the engine's stages or of this loop changes.
    """

    def __init__(self, max_batch: int, chunk: int, logit_rows: int, device: torch.device):
        """Args as in `Scheduler`; `device` is where the stages are."""
        self._device = device
        self.scheduler = Scheduler(max_batch, chunk, logit_rows)
        self.lock = RLock()
        self._jobs: dict[Job, None] = {}
        self._timed: dict[Job, None] = {}  # those with a deadline
        self._running = False
        self._given_up: list[tuple[list[Job], str, str]] = []

    def submit(self, jobs: Iterable[Job], prompts: Iterable[Prompt]) -> None:
        """Queues jobs and their prompts.

        Raises:
            PoolFull: A prompt that could not even run alone; none of them is queued.
        """
        jobs = list(jobs)
        with self.lock:
            try:
                for prompt in prompts:
                    self.scheduler.submit(prompt)
            except EngineError:
                self._forget(jobs)
                raise
            self._jobs |= dict.fromkeys(jobs)
            self._timed |= dict.fromkeys(job for job in jobs if job.request.deadline_s is not None)

    def cancel(self, request_id: str) -> int:
        """Gives up all jobs under way of requests with this id, and returns how many there were."""
        with self.lock:
            jobs = [job for job in self._jobs if job.request.id == request_id]
            self.drop(jobs, "the request was cancelled")
        return len(jobs)

    def drop(self, jobs: Iterable[Job], message: str) -> None:
        """Gives jobs up and their pages back.

        Inside of a step (an iterator may be collected at any moment) that waits for the step's end.
        """
        with self.lock:
            if self._running:
                self._given_up.append((list(jobs), "cancelled", message))
            else:
                self._fail(list(jobs), "cancelled", message, "abort")

    def step(self) -> None:
        """One round. What goes wrong inside fails all that is under way, whoever waits for it, and frees its pages.

        Raises:
            EngineError: The stages cannot serve what was asked.
        """
        with self.lock:
            self._running = True
            try:
                with on(self._device):
                    self._round()
            except BaseException as error:
                what = f"the engine's step ended in {type(error).__name__}: {error}".rstrip(": ")
                self._fail(list(self._jobs), "engine", f"{what}; ask again", "error")
                raise
            finally:
                self._running = False
                for jobs, error, message in self._given_up:
                    self._fail(jobs, error, message, "abort")
                self._given_up.clear()

    def _round(self) -> None:
        now = perf_counter()
        overdue = [job for job in self._timed if job.overdue(now)]
        self._fail(overdue, "deadline", "the request's deadline has passed", "abort")
        worked = self._decode() + self._prefill()
        stuck = self.scheduler.oldest()
        if not worked and stuck is not None:  # pages are held by someone outside of this loop
            self._fail(_jobs_of(stuck), "pool", "the KV pool is held by others; raise `kv_tokens`", "error")

    # -- one forward of a stage ----------------------------------------------------------------------------------------

    def _decode(self) -> int:
        forwards = 0
        for stage, chosen in self.scheduler.next_lanes().items():
            lanes = [lane for lane in chosen if _wanted(lane)]
            if not lanes:
                continue
            _note(job for lane in lanes for job in _jobs_of(lane))
            wanted = [lane for lane in lanes if lane.wants_logits]
            chunks = [Chunk(lane.sequence, [lane.feed[lane.fed]], int(lane.wants_logits)) for lane in lanes]
            rows, faults = stage.run(chunks)  # pyright: ignore[reportAttributeAccessIssue]
            for lane in lanes:
                lane.fed += 1
            broken = self._break_off(stage, [(lanes[i], incident) for i, incident in faults.items()])
            takers = [(row, lane, lane.fed - 1) for row, lane in enumerate(wanted)]
            self._take(rows, [taker for taker in takers if taker[1] not in broken])
            for lane in lanes:
                if lane.fed == len(lane.feed):
                    self.scheduler.end(lane)
            forwards += 1
        return forwards

    def _prefill(self) -> int:
        forwards = 0
        for stage, chosen in self.scheduler.next_pieces().items():
            pieces = [piece for piece in chosen if _wanted(piece.of)]
            if not pieces:
                continue
            members = [job for piece in pieces for job in _jobs_of(piece.of)]
            _note(members)
            for job in members:
                job.admitted = job.admitted or perf_counter()
            chunks = [Chunk(piece.sequence, piece.tokens, piece.logits) for piece in pieces]
            rows, faults = stage.run(chunks)  # pyright: ignore[reportAttributeAccessIssue]
            takers: list[tuple[int, Lane | Tail | Prompt, int]] = []
            row = 0
            for i, piece in enumerate(pieces):
                if i not in faults:
                    takers += [(row + j, piece.of, _first(piece) + j) for j in range(piece.logits)]
                row += piece.logits
            for i, piece in enumerate(pieces):
                if i not in faults:
                    self.scheduler.computed(piece)
            broken = self._break_off(stage, [(pieces[i].of, incident) for i, incident in faults.items()])
            self._take(rows, [taker for taker in takers if taker[1] not in broken])
            forwards += 1
        complete = self.scheduler.complete()
        for prompt in complete:
            self._hand_over(prompt)
        return forwards + len(complete)

    def _hand_over(self, prompt: Prompt) -> None:
        for lane in prompt.lanes:
            lane.stage.pool.free(lane.sequence)
        first: dict[Pages, Sequence] = {}
        faults: dict[Pages, HandoffFault] = {}
        for lane in prompt.lanes:
            pool = lane.stage.pool
            if pool in faults:
                continue
            if pool in first:
                lane.sequence = pool.fork(first[pool])
            else:
                try:
                    first[pool] = self._hand_over_to(lane, prompt)
                except HandoffFault as fault:
                    faults[pool] = fault
            for job in _jobs_of(lane):
                job.admitted = job.admitted or perf_counter()
                job.first_token = job.first_token or perf_counter()
        lanes = list(prompt.lanes)
        for pool, fault in faults.items():
            bad = [lane for lane in lanes if lane.stage.pool is pool]
            stage: Any = bad[0].stage if fault.arrived else prompt.stage
            self._break_off(stage, [(lane, stage.incident(fault.bad, "handoff")) for lane in bad])
        if prompt.lanes or not lanes:
            self.scheduler.start(prompt)

    def _hand_over_to(self, lane: Lane, prompt: Prompt) -> Sequence:
        source, ids, cache = prompt.stage, prompt.ids, lane.stage.cache
        lane.sequence = cache.take(ids, len(ids), source.key)
        handoff(source.pool, prompt.sequence, lane.stage.pool, lane.sequence)
        cache.put(ids, lane.sequence, source.key)
        return lane.sequence

    def _break_off(self, stage: Any, met: Seq[tuple[Lane | Tail | Prompt, Incident]]) -> list[Lane | Tail | Prompt]:
        """Ends what met a page that lies, which goes into quarantine; returns what has ended."""
        for _, incident in met:
            stage.pool.quarantine(incident.page)
        for of, incident in met:
            message = f"a page does not hold what was written for this request: {incident}"
            self._fail(_jobs_of(of), "integrity", message, "integrity", incident)
        for of, why in self.scheduler.misfits() if met else ():
            self._fail(_jobs_of(of), "pool", why, "error")
        return [of for of, _ in met]

    def _take(self, rows: Tensor, takers: Seq[tuple[int, Any, int]]) -> None:
        """Gives each row of logits to whom it belongs: (row, prompt or tail or lane, index in it)."""
        finite = rows.isfinite().all(dim=-1).tolist()
        tokens: list[tuple[int, GenerateJob, Lane]] = []
        scores: list[tuple[int, Rows, int]] = []
        for row, of, index in takers:
            if not finite[row]:
                self._forget_pages(of)
                self._fail(_jobs_of(of), "non_finite_logits", NON_FINITE, "error")
            elif isinstance(of.owner, Rows):
                scores.append((row, of.owner, index))
            else:
                lanes = [of] if isinstance(of, Lane) else of.lanes
                tokens += [(row, lane.owner, lane) for lane in lanes]
        take_tokens(rows, tokens)
        take_logprobs(rows, scores)
        met = {one: None for _, of, _ in takers for job in _jobs_of(of) for one in (job, *job.compared())}
        self._forget(job for job in met if job.done)

    def _forget_pages(self, of: Lane | Tail | Prompt) -> None:
        """What led to a bad row leaves the caches, or who asks again would meet it again."""
        prompt = of if isinstance(of, Prompt) else of.prompt
        if prompt is not None:
            prompt.stage.cache.forget(prompt.ids)
            if isinstance(of, Lane):
                of.stage.cache.forget(prompt.ids, prompt.stage.key)

    def _fail(
        self, jobs: Seq[Job], error: str, message: str, reason: FinishReason, incident: Incident | None = None
    ) -> None:
        """Fails jobs, each for this reason, and after them those that were compared with one of them."""
        for job in jobs:
            job.fail(error, message, reason, incident)
        self._forget(jobs)
        for job in jobs:
            if isinstance(job, ScoreJob) and job.comparison is not None:
                left = job.comparison.failed(job)
                self._fail(left, "reference", f"the reference arm has no answer: {message}", "error")

    def _forget(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs.pop(job, None)
            self._timed.pop(job, None)
            for owner in job.owners():
                self.scheduler.remove(owner)


def _jobs_of(of: Lane | Tail | Prompt) -> list[Job]:
    """Jobs that a lane, a tail or a prompt works for."""
    if isinstance(of, Prompt) and of.owner is None:
        return [job for lane in of.lanes for job in _jobs_of(lane)]
    return list(of.owner.jobs) if isinstance(of.owner, Rows) else [of.owner]


def _wanted(of: Lane | Tail | Prompt) -> bool:
    """Whether anyone still waits for it: another stage's forward of the same step may have failed a whole request."""
    return any(not job.done for job in _jobs_of(of))


def _first(piece: Piece) -> int:
    """Index of a piece's first row of logits among those of its prompt or tail."""
    return piece.of.computed if isinstance(piece.of, Tail) else 0


def _note(jobs: Iterable[Job]) -> None:
    """Notes for each arm which of its requests one forward served."""
    by_arm: dict[Any, list[str]] = {}
    for job in jobs:
        by_arm.setdefault(job.arm, []).append(job.request.id)
    for arm, ids in by_arm.items():
        arm.note_batch(ids)
