"""The engine: one model, each distinct stage held once, requests answered for one arm or several at a time."""

import hashlib
import inspect
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from evalsvc.errors import ConfigError
from evalsvc.kernels import dispatch

from . import calibration as calibrating
from .arm import Arm, ArmSpec
from .batch import Chunk
from .checkpoint.base import Checkpoint
from .checkpoint.open import open_checkpoint
from .devices import on, resolve
from .fitting import check_arms
from .generation import generate_jobs
from .graphs import capture_for
from .jobs import Ticket, whole
from .kv.pages import PoolFull
from .kv.pool import Scales
from .kv.pool import Sequence as KVSequence
from .kv.tags import check_mode
from .layout import layout_of
from .loop import Loop
from .model import check_kv, empty_model, longest_sequence
from .precision import KVFormat, PrecisionPlan, StagePlan, WeightFormat, parse_plan
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
from .stage import DecodeStage, PrefillStage, Stage
from .text import Text, foreign_id
from .weights import WeightSet

LOGIT_ELEMENTS = 2**25  # of one prefill forward: 128 MiB in fp32
SIZES: tuple[str, ...] = ("kv_tokens", "max_batch", "chunk", "max_length")  # the last one None unless given
StageT = TypeVar("StageT", bound=Stage)
Answers = Iterator[GenerateResult | ScoreResult | RequestFailure]


def source_version() -> str:
    """sha256 over the sources of engine and kernels and the versions of what computes for them."""
    digest = hashlib.sha256()
    for module in (__file__, dispatch.__file__):
        root = Path(module).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(json.dumps([metadata.version(name) for name in ("torch", "transformers")]).encode())
    return digest.hexdigest()


def _stage_key(kind: type[Stage], spec: ArmSpec, scales: Scales | None) -> tuple:
    """Everything that makes two arms' stages the same."""
    plan: StagePlan = getattr(spec.plan, kind.name)
    sha256 = None if scales is None else scales.sha256()
    return kind.name, plan, sha256, spec.inject.get(f"{kind.name}_k_scale", 1.0)


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
        self._capture = capture_for(self.device, graphs)
        for spec in arms.values():
            check_kv(checkpoint, spec.plan)
        self.checkpoint, self.specs = checkpoint, dict(arms)
        self.kv_tokens, self.max_batch, self.cache, self.poison = kv_tokens, max_batch, cache, poison
        self._asked_length, self.integrity = max_length, integrity
        self.hashes = checkpoint.hashes()
        self._text: Text | None = None
        self._shared: dict[torch.dtype, dict[str, Tensor]] = {}
        self._weights: weakref.WeakValueDictionary[WeightFormat, WeightSet] = weakref.WeakValueDictionary()
        self._stages: dict[tuple, Stage] = {}
        self._arms: dict[str, Arm] = {}
        self._released: set[str] = set()
        self._magnitudes: dict[tuple, Tensor] = {}
        self._scales: dict[str, dict[str, Scales]] = {}
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
        if self._text is None:
            self._text = Text(self.checkpoint.tokenizer(), sorted(self.checkpoint.eos_ids()))
        return self._text

    def arm(self, name: str | None = None) -> Arm:
        """A loaded arm; the only one when no name is given.

        Raises:
            ConfigError: No arm of that name, or several and no name.
        """
        if name is None:
            if len(self.specs) != 1:
                raise ConfigError(f"name one of the arms {', '.join(self.specs)}")
            name = next(iter(self.specs))
        self._known(name)
        with self._loop.lock:
            if name not in self._arms:
                spec = self.specs[name]
                scales = self.scales(name)
                prefill = self._stage(PrefillStage, spec, scales.get("prefill"))
                decode = self._stage(DecodeStage, spec, scales.get("decode"))
                self._arms[name] = Arm(name, spec, prefill, decode)
                self._released.discard(name)
            return self._arms[name]

    def _known(self, name: str) -> None:
        if name not in self.specs:
            raise ConfigError(f"unknown arm {name!r}; known: {', '.join(self.specs)}")

    def release(self, name: str) -> None:
        """Lets go of an arm; its stages stay while an arm that was not released asks for the same.

        Answers under way are finished. Asked again, the arm is loaded again.

        Raises:
            ConfigError: No arm of that name.
        """
        self._known(name)
        with self._loop.lock:
            self._release(name)

    def _release(self, name: str) -> None:
        self._arms.pop(name, None)
        self._released.add(name)
        needed = set()
        for other, spec in self.specs.items():
            if other not in self._released:
                scales = self.scales(other)
                needed |= {_stage_key(kind, spec, scales.get(kind.name)) for kind in (PrefillStage, DecodeStage)}
        self._stages = {key: stage for key, stage in self._stages.items() if key in needed}

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
            names = list(self._arms)
            weights = [stage.weights for stage in self._stages.values()]  # held until the new stages hold them
            self._stages, self._arms, self.kv_tokens = {}, {}, kv_tokens
            self.__dict__.pop("max_length", None)
            self.__dict__.pop("window", None)
            for name in names:
                self.arm(name)
            del weights

    def scales(self, name: str) -> dict[str, Scales]:
        """Fixed scales of an arm's stages, by stage: read from its file, or from a calibration, cached or run now."""
        if name not in self._scales:
            spec = self.specs[name]
            plans = (("prefill", spec.plan.prefill.kv), ("decode", spec.plan.decode.kv))
            self._scales[name] = {
                stage: self._fixed_scales(spec, kv) for stage, kv in plans if kv.given or kv.calibrated
            }
        return self._scales[name]

    def _fixed_scales(self, spec: ArmSpec, kv: KVFormat) -> Scales:
        if kv.given:
            assert spec.scales is not None
            layout = layout_of(empty_model(self.checkpoint, torch.bfloat16))
            return calibrating.read_scales(spec.scales, kv, layout)
        assert spec.calibration is not None
        return calibrating.scales_from(self._amax(spec.plan.prefill.weights, spec.calibration), kv)

    def _amax(self, weights: WeightFormat, calibration: Path) -> Tensor:
        prompts = calibrating.read_prompts(calibration)
        key = (weights, tuple(prompts))
        if key not in self._magnitudes:
            recipe = [self.hashes, source_version(), str(weights), prompts]
            digest = hashlib.sha256(json.dumps(recipe).encode("utf-8", "surrogatepass")).hexdigest()
            path = None if self.cache is None else self.cache / f"{digest}.json"
            held = None if path is None else calibrating.load_amax(path)
            if held is None:
                ids = [self.text.encode(prompt) for prompt in prompts]
                with on(self.device):
                    held = calibrating.calibrate(self._weight_set(weights), ids).cpu()
                if path is not None:
                    calibrating.save_amax(path, held)
            self._magnitudes[key] = held
        return self._magnitudes[key]

    def _weight_set(self, fmt: WeightFormat) -> WeightSet:
        held = self._weights.get(fmt)
        if held is None:
            with on(self.device):
                held = self._weights[fmt] = WeightSet(self.checkpoint, fmt, self._shared, self.max_length)
        return held

    def _stage(self, kind: type[StageT], spec: ArmSpec, scales: Scales | None) -> StageT:
        key = _stage_key(kind, spec, scales)
        held = self._stages.get(key)
        if held is None:
            plan: StagePlan = getattr(spec.plan, kind.name)
            factor = spec.inject.get(f"{kind.name}_k_scale", 1.0)
            weights = self._weight_set(plan.weights)
            options = scales, factor, self.poison, str(key), self.integrity
            captured: dict[str, Any] = {"capture": self._capture} if kind is DecodeStage else {}
            with on(self.device):
                held = self._stages[key] = kind(weights, plan, self.kv_tokens, *options, **captured)
        assert isinstance(held, kind)
        return held

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
        for outcome in self._outcomes(requests, arm, streaming=False):
            assert not isinstance(outcome, TextPiece)
            yield outcome

    def stream(
        self, requests: Sequence[GenerateRequest], arm: str | None = None
    ) -> Iterator[TextPiece | GenerateResult | RequestFailure]:
        """As `generate`, with each answer's text piece by piece before its result."""
        for outcome in self._outcomes(requests, arm, streaming=True):
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
        waiting, ticket = iter(requests), Ticket()
        try:
            for request in islice(waiting, concurrency):
                self._submit(request, arm, ticket)
            while ticket.jobs or ticket.outcomes:
                while ticket.outcomes:
                    outcome = ticket.outcomes.popleft()
                    for request in islice(waiting, 1):
                        self._submit(request, arm, ticket)
                    assert isinstance(outcome, GenerateResult | RequestFailure)
                    yield outcome
                if ticket.jobs:
                    self._loop.step()
        finally:  # the caller may stop listening at any answer
            self._loop.drop(ticket.jobs, "nobody listens any more")

    def cancel(self, request_id: str) -> int:
        """Gives up all answers under way to requests with this id; each gets a failure with what it had written.

        Returns:
            How many were given up.
        """
        return self._loop.cancel(request_id)

    def _outcomes(self, requests: Sequence[Request], arm: str | None, streaming: bool):
        ticket = Ticket(streaming)
        try:
            for request in requests:
                self._submit(request, arm, ticket)
            while ticket.jobs or ticket.outcomes:
                while ticket.outcomes:
                    yield ticket.outcomes.popleft()
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
                jobs, prompts = score_jobs(request, arms, self.text, ticket, self.max_length, self.window)
            try:
                self._loop.submit(jobs, prompts)
            except PoolFull as error:
                for job in jobs:
                    job.fail("pool", str(error))

    @cached_property
    def max_length(self) -> int:
        """Longest sequence that is served, in tokens.

        Raises:
            ConfigError: More was asked than the model is made for or a pool holds.
        """
        made_for = longest_sequence(self.checkpoint) or self.kv_tokens
        if self._asked_length is None:
            return min(made_for, self.kv_tokens)
        if not 1 <= self._asked_length <= min(made_for, self.kv_tokens):
            raise ConfigError(
                f"max_length {self._asked_length} is not from 1 to {min(made_for, self.kv_tokens)}: the model is made "
                f"for {made_for} tokens, a pool holds {self.kv_tokens}"
            )
        return self._asked_length

    @cached_property
    def window(self) -> int:
        """Tokens of a rolling text's windows: the asked `max_length`, or what the model is made for.

        What a pool holds does not enter, since it must not change a score.
        """
        return self._asked_length or longest_sequence(self.checkpoint) or self.kv_tokens

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
            return self._logits(held.prefill if through == "prefill" else held.decode, prompts)

    def _logits(self, stage: Stage, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        sequences = [KVSequence() for _ in prompts]
        try:
            if isinstance(stage, PrefillStage):
                rows = stage.forward([Chunk(s, ids, len(ids)) for s, ids in zip(sequences, prompts, strict=True)])
                return list(rows.split([len(ids) for ids in prompts]))
            steps: list[list[Tensor]] = [[] for _ in prompts]
            for position in range(max(len(ids) for ids in prompts)):
                live = [i for i, ids in enumerate(prompts) if position < len(ids)]
                rows = stage.forward([Chunk(sequences[i], [prompts[i][position]]) for i in live])
                for i, row in zip(live, rows, strict=True):
                    steps[i].append(row)
            return [torch.stack(rows) for rows in steps]
        finally:
            for sequence in sequences:
                stage.pool.free(sequence)

    # -- what was measured ---------------------------------------------------------------------------------------------

    def proof(self, arm: str | None = None) -> dict[str, Any]:
        """What the arm's stages hold and ran, with `mismatches` against its plan (empty when it matches).

        What a stage computed for several arms is in the proof of each; `shared_with` names the others.
        """
        held = self.arm(arm)
        measured: dict[str, Any] = {
            name: {**measure(stage, stage.work.since(start)), "shared_with": self._shared_with(stage, held)}
            for name, (stage, start) in held.started.items()
        }
        asked = held.spec.plan, held.spec.inject, self.scales(held.name)
        measured["mismatches"] = mismatches(*asked, measured, self.integrity)
        measured["batches"] = held.batches()
        measured["prefix_cache"] = _cache_counts(held.prefill)
        return measured

    def _shared_with(self, stage: Stage, arm: Arm) -> list[str]:
        """Other loaded arms whose answers the stage worked for too."""
        others = [other for other in self._arms.values() if other is not arm and stage in (other.prefill, other.decode)]
        return [other.name for other in others if other.answered and arm.answered]

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
                for stage in self._stages.values()
            ],
        }

    def capacity(self, memory_bytes: int, arm: str | None = None) -> dict[str, int]:
        """KV tokens of each stage's format that fit in so much memory."""
        held = self.arm(arm)
        return {s.name: int(memory_bytes // s.pool.bytes_per_token()) for s in (held.prefill, held.decode)}


def _cache_counts(stage: Stage) -> dict[str, int]:
    return {"hit_tokens": stage.cache.hit_tokens, "missed_tokens": stage.cache.missed_tokens}
