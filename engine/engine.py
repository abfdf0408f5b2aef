"""The engine: one model, each distinct stage held once, requests answered for one arm or several at a time."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evalsvc.errors import ConfigError
from evalsvc.kernels import dispatch

from .alone import logits_alone
from .arm import Arm, ArmSpec
from .arms import Arms
from .checkpoint.base import Checkpoint
from .checkpoint.open import open_checkpoint
from .devices import resolve
from .fitting import check_arms
from .generation import generate_jobs
from .graphs import capture_for
from .jobs import Ticket, whole
from .kv.pages import PoolFull
from .kv.pool import Scales
from .kv.tags import check_mode
from .loop import Loop
from .model import check_kv
from .precision import PrecisionPlan, parse_plan
from .proof import measure, mismatches
from .requests import (
    GenerateRequest,
    GenerateResult,
    Request,
    RequestFailure,
    RollingRequest,
    ScoreRequest,
    ScoreResult,
    TextPiece,
)
from .scoring import score_jobs
from .stage import Stage
from .text import Text, foreign_id

LOGIT_ELEMENTS = 2**25  # of one prefill forward: 128 MiB in fp32
SIZES: tuple[str, ...] = ("kv_tokens", "max_batch", "chunk", "max_length")  # the last one None unless given
Answers = Iterator[GenerateResult | ScoreResult | RequestFailure]


def _check_asked(arms: Mapping[str, ArmSpec], sizes: Mapping[str, Any], integrity: str, device: str) -> torch.device:
    """Refuses, before a model is looked for, what no model could be served with.

    Returns:
        Where it computes.

    Raises:
        ConfigError: No arm, one that cannot be as written, a size, or a mode.
        CapabilityError: A device that is not here, or a form of kernels that was forced and cannot run.
    """
    check_mode(integrity)
    for name, size in sizes.items():
        if not whole(size, 1) and not (name == "max_length" and size is None):
            raise ConfigError(f"{name} is {size!r}; it must be a whole number from 1")
    if not arms:
        raise ConfigError("an engine needs at least one arm: give a plan")
    for spec in arms.values():
        spec.check()
    found = resolve(device)
    dispatch.form(found.type)
    return found


class Engine:
    """Serves one model under named arms.

    Stages are made when an arm is first asked, and shared between arms that ask the same; `release` lets go of an arm.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        arms: Mapping[str, ArmSpec],
        kv_tokens: int = 16384,
        max_batch: int = 32,
        chunk: int = 512,
        cache: Path | None = None,
        poison: bool = False,
        max_length: int | None = None,
        integrity: str = "tags",
        device: str = "auto",
        graphs: str = "auto",
    ):
        """Nothing heavy is loaded yet.

        Args:
            checkpoint: The model's files.
            arms: Name to specification.
            kv_tokens: Capacity of each stage's pool, in tokens.
            max_batch: Most requests side by side in a stage. It changes no answer.
            chunk: Most tokens in a prefill forward. It changes no answer.
            cache: Folder for calibrated scales; None computes them each time.
            poison: Fill pools with NaN.
            max_length: Tokens of the longest sequence that is served; None: all that the model is made for and a pool
                holds. Where rope's frequencies hang on the length (types `dynamic`, `longrope`), every request is
                computed with those of this length.
            integrity: What attention checks of the pages that it reads, one of `kv.tags.MODES`. It changes no answer; a
                request that meets a page which lies ends with finish reason `integrity`.
            device: Where it computes, as in `devices.resolve`.
            graphs: Whether decode steps are captured and replayed: `auto`: on a GPU; or `off`. It changes no answer.
        """
        sizes = dict(zip(SIZES, (kv_tokens, max_batch, chunk, max_length), strict=True))
        self.device = _check_asked(arms, sizes, integrity, device)
        capture = capture_for(self.device, graphs)
        for spec in arms.values():
            check_kv(checkpoint, spec.plan)
        self.checkpoint, self.specs, self.cache, self.integrity = checkpoint, dict(arms), cache, integrity
        kept = capture, kv_tokens, cache, poison, max_length, integrity
        self._arms = Arms(checkpoint, self.specs, self.device, *kept)
        self.hashes = self._arms.hashes
        vocabulary = int(checkpoint.config.get("vocab_size") or 2**15)
        self._loop = Loop(max_batch, chunk, max(1, LOGIT_ELEMENTS // vocabulary), self.device)

    @classmethod
    def load(
        cls,
        model: str | Path,
        plan: str | PrecisionPlan | None = None,
        plans: Mapping[str, str | PrecisionPlan | ArmSpec] | None = None,
        device: str = "auto",
        **options: Any,
    ) -> "Engine":
        """An engine for a model. What is asked is looked at before the model is: a wrong option needs no download.

        Of several arms each is held against the model before the first one is loaded (`fitting.check_arms`).

        Args:
            model: A directory with config.json, safetensors and a tokenizer; a `.gguf` file; or a hub id.
            plan: One plan, served as the arm `default`; or
            plans: Arms by name.
            device: As in `devices.resolve`.
            options: As in the constructor.

        Raises:
            ConfigError: Neither or both of `plan` and `plans`, a plan that cannot be read, or an option's value.
            TypeError: An option that there is not.
            CapabilityError: A device that is not here, or a format that is not served.
            EngineError: Model files that cannot be used.
        """
        if (plan is None) == (plans is None):
            raise ConfigError("give either `plan` or `plans`")
        named = {"default": plan} if plan is not None else dict(plans or {})
        specs = {}
        for name, value in named.items():
            if isinstance(value, ArmSpec):
                specs[name] = value
            else:
                specs[name] = ArmSpec(parse_plan(value) if isinstance(value, str) else value)  # pyright: ignore[reportArgumentType]
        asked = inspect.signature(cls).bind(None, specs, device=device, **options)
        asked.apply_defaults()
        sizes = {name: asked.arguments[name] for name in SIZES}
        capture_for(_check_asked(specs, sizes, asked.arguments["integrity"], device), asked.arguments["graphs"])
        checkpoint = open_checkpoint(model)
        if len(specs) > 1:  # a single arm is refused when it is loaded, before anything is answered
            check_arms(checkpoint, specs)
        return cls(checkpoint, specs, device=device, **options)

    # -- arms ----------------------------------------------------------------------------------------------------------

    @property
    def text(self) -> Text:
        """The tokenizer."""
        return self._arms.text

    @property
    def max_length(self) -> int:
        """As `Arms.max_length`."""
        return self._arms.max_length

    def arm(self, name: str | None = None) -> Arm:
        """As `Arms.get`."""
        with self._loop.lock:
            return self._arms.get(name)

    def release(self, name: str) -> None:
        """As `Arms.release`. Answers under way are finished. Asked again, the arm is loaded again."""
        with self._loop.lock:
            self._arms.release(name)

    def resize(self, kv_tokens: int) -> None:
        """Gives every loaded arm pools of another size; the weights stay where they are.

        Raises:
            ConfigError: Answers are under way, or a size that is no whole number from 1.
        """
        if not whole(kv_tokens, 1):
            raise ConfigError(f"kv_tokens is {kv_tokens!r}; it must be a whole number from 1")
        with self._loop.lock:
            if self._loop.scheduler.busy:
                raise ConfigError("answers are under way: pools are resized between them")
            self._arms.resize(kv_tokens)

    def scales(self, name: str) -> dict[str, Scales]:
        """As `Arms.scales`."""
        return self._arms.scales(name)

    # -- answers -------------------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[GenerateRequest], arm: str | None = None) -> Answers:
        """Answers generation requests as they finish; see `answer`."""
        return self.answer(requests, arm)

    def score(self, requests: Sequence[ScoreRequest | RollingRequest], arm: str | None = None) -> Answers:
        """Scores continuations and whole texts; see `answer`."""
        return self.answer(requests, arm)

    def answer(self, requests: Sequence[Request], arm: str | None = None) -> Answers:
        """Answers requests of all kinds, side by side, in the order in which they finish.

        Who stops listening gives up what is not answered yet. Several calls may be under way, also in several threads:
        each drives them all, and one thread computes at a time.

        Args:
            requests: Each names its arms, or is for `arm`.
            arm: For requests that name none; the only arm when None.

        Yields:
            One result or failure for each request and arm (and sample), with the request's id.

        Raises:
            ConfigError: A request for an arm that does not exist; none of this call's is answered.
        """
        for outcome in self._outcomes(requests, arm, Ticket()):
            assert not isinstance(outcome, TextPiece)
            yield outcome

    def stream(
        self, requests: Sequence[GenerateRequest], arm: str | None = None
    ) -> Iterator[TextPiece | GenerateResult | RequestFailure]:
        """As `generate`, with each answer's text piece by piece before its result."""
        for outcome in self._outcomes(requests, arm, Ticket(streaming=True)):
            assert not isinstance(outcome, ScoreResult)
            yield outcome

    def closed_loop(
        self, requests: Iterable[GenerateRequest], concurrency: int, arm: str | None = None
    ) -> Iterator[GenerateResult | RequestFailure]:
        """As `generate`, with so many requests under way: the next one is sent when one of them is answered.

        Args:
            requests: In the order in which they are sent; each for one answer.
            concurrency: Requests under way, at least 1.
            arm: As in `answer`.
        """
        if not whole(concurrency, 1):
            raise ConfigError(f"concurrency is {concurrency!r}; it must be a whole number from 1")
        for outcome in self._outcomes(requests, arm, Ticket(), concurrency):
            assert isinstance(outcome, GenerateResult | RequestFailure)
            yield outcome

    def cancel(self, request_id: str) -> int:
        """Gives up all answers under way to requests with this id; each gets a failure with what it had written.

        Returns:
            How many were given up.
        """
        return self._loop.cancel(request_id)

    def _outcomes(self, requests: Iterable[Request], arm: str | None, ticket: Ticket, at_once: int | None = None):
        """Sends requests, all or so many at once and the next one for each outcome, and drives the loop to the end."""
        waiting = iter(requests)
        try:
            for request in islice(waiting, at_once):
                self._submit(request, arm, ticket)
            while ticket.jobs or ticket.outcomes:
                while ticket.outcomes:
                    outcome = ticket.outcomes.popleft()
                    for request in islice(waiting, 1):
                        self._submit(request, arm, ticket)
                    yield outcome
                if ticket.jobs:
                    self._loop.step()
        finally:  # the caller may stop listening at any answer
            self._loop.drop(ticket.jobs, "nobody listens any more")

    def _submit(self, request: Request, arm: str | None, ticket: Ticket) -> None:
        if ticket.streaming and not isinstance(request, GenerateRequest):
            raise ConfigError("a score has no text to stream; ask `answer`")
        if isinstance(request.arms, str):
            raise ConfigError(f"arms is {request.arms!r}; it must be a list of names")
        with self._loop.lock:
            arms = [self.arm(name) for name in dict.fromkeys(request.arms)] or [self.arm(arm)]
            if isinstance(request, GenerateRequest):
                jobs, prompts = generate_jobs(request, arms, self.text, ticket, self.max_length)
            else:
                jobs, prompts = score_jobs(request, arms, self.text, ticket, self.max_length, self._arms.window)
            try:
                self._loop.submit(jobs, prompts)
            except PoolFull as error:
                for job in jobs:
                    job.fail("pool", str(error))

    def logits(self, token_ids: Sequence[int], arm: str | None = None, through: str = "prefill") -> Tensor:
        """Full logits of a prompt through one stage alone, for checking against other implementations.

        Returns:
            fp32. Shape: (tokens, vocabulary). Through `decode` every token is decoded, the first one included.

        Raises:
            ConfigError: No token, one that the model does not know, more than it can hold, or a stage without a name.
            PoolFull: The pool is held by answers under way.
        """
        return self.batch_logits([token_ids], arm, through)[0]

    def batch_logits(
        self, prompts: Sequence[Sequence[int]], arm: str | None = None, through: str = "prefill"
    ) -> list[Tensor]:
        """As `logits`, for several prompts side by side."""
        held = self.arm(arm)
        if through not in ("prefill", "decode"):
            raise ConfigError(f"through must be prefill or decode, not {through!r}")
        for ids in prompts:
            wrong = foreign_id(ids, held.vocabulary)
            if wrong is not None or not 0 < len(ids) <= self.max_length:
                raise ConfigError(wrong or f"{len(ids)} token ids are not from 1 to the {self.max_length} served")
        with self._loop.lock:
            return logits_alone(held.prefill if through == "prefill" else held.decode, prompts)

    # -- what was measured ---------------------------------------------------------------------------------------------

    def proof(self, arm: str | None = None) -> dict[str, Any]:
        """What the arm's stages hold and ran, with `mismatches` against its plan (empty when it matches).

        What a stage computed for several arms is in the proof of each; `shared_with` names the others.
        """
        held = self.arm(arm)
        measured: dict[str, Any] = {
            name: {**measure(stage, stage.work.since(start)), "shared_with": self._arms.sharing(stage, held)}
            for name, (stage, start) in held.started.items()
        }
        asked = held.spec.plan, held.spec.inject, self.scales(held.name)
        measured["mismatches"] = mismatches(*asked, measured, self.integrity)
        measured["batches"] = held.batches()
        measured["prefix_cache"] = _cache_counts(held.prefill)
        return measured

    def stats(self) -> dict[str, Any]:
        """What waits and runs, and per stage what was computed, served from its cache, and is held."""
        return {
            **self._loop.scheduler.counts(),
            "preemptions": self._loop.scheduler.preemptions,
            "stages": [
                {
                    "stage": stage.name,
                    "plan": str(stage.plan),
                    "tokens_computed": stage.work.tokens,
                    "forwards": stage.work.forwards,
                    "seconds": stage.work.seconds,
                    "cache": _cache_counts(stage),
                    "pages": {"all": stage.pool.n_pages, "free": stage.pool.free_pages, "idle": stage.pool.idle},
                }
                for stage in self._arms.stages.values()
            ],
        }

    def capacity(self, memory_bytes: int, arm: str | None = None) -> dict[str, int]:
        """KV tokens of each stage's format that fit in so much memory."""
        held = self.arm(arm)
        return {s.name: int(memory_bytes // s.pool.bytes_per_token()) for s in (held.prefill, held.decode)}


def _cache_counts(stage: Stage) -> dict[str, int]:
    return {"hit_tokens": stage.cache.hit_tokens, "missed_tokens": stage.cache.missed_tokens}
