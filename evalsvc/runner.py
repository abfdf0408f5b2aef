"""One run: which samples are missing, ask the target, score, store. Resuming is the same loop."""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest, Request, RequestFailure, ScoreRequest
from evalsvc.errors import ConfigError
from evalsvc.store import writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import Store
from evalsvc.suites.base import Item, Suite
from evalsvc.targets.base import ArmFacts, Target

FLUSH_SAMPLES = 16
FLUSH_SECONDS = 2.0


@dataclass(frozen=True)
class Question:
    """One item through one stage: what becomes one sample.

    Attributes:
        through: Stage that scores a log-likelihood item; empty for a generation.
    """

    suite: Suite
    item: Item
    request: Request
    through: str

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """As `NewSample.key`."""
        asked, settings = request_hash(self.request), settings_hash(self.request)
        return (self.suite.name, self.item.id, self.item.sha256, asked, settings, 0)


def questions(suites: Sequence[Suite], throughs: Sequence[str]) -> list[Question]:
    """Everything that each arm answers.

    Args:
        suites: In the order of the experiment.
        throughs: Stages that score log-likelihood items; each makes a question of its own.

    Raises:
        ConfigError: Nothing to ask, or one item twice.
    """
    asked: list[Question] = []
    for suite in suites:
        for item in suite.items():
            request = suite.next_request(item, ())
            if request is None:
                raise ConfigError(f"suite {suite.name}: item {item.id} asks nothing")
            if isinstance(request, ScoreRequest):
                asked += [Question(suite, item, replace(request, through=t), t) for t in throughs]  # pyright: ignore[reportArgumentType]
            else:
                asked.append(Question(suite, item, request, ""))
    keys = [question.key for question in asked]
    if not asked:
        raise ConfigError("the suites hold no item")
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"suite {twice[0]}: item {twice[1]} stands in it twice")
    return asked


def request_hash(request: Request) -> str:
    """Hash of what the suite asked, without how it is to be answered."""
    if isinstance(request, ScoreRequest):
        return _hash(["score", request.context, list(request.continuations)])
    return _hash(["generate", request.prompt])


def settings_hash(request: Request) -> str:
    """Hash of sampling, stop, limits and scoring stage."""
    if isinstance(request, ScoreRequest):
        return _hash({"through": request.through})
    return _hash({"stop": list(request.stop), "max_tokens": request.max_tokens, "temperature": 0.0})


@dataclass
class ArmRun:
    """An arm of a run being answered."""

    run_id: int
    arm_id: int
    facts: ArmFacts


def run_arm(
    store: Store,
    target: Target,
    arm: ArmRun,
    asked: Sequence[Question],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Answers what is missing of one arm and stores every sample.

    Args:
        store: Where samples go, a few at a time.
        target: Who answers.
        arm: Which arm of which run.
        asked: Everything that the arm answers.
        seed: Of the order of asking.
        progress: Called with samples stored and samples in all.

    Returns:
        How many samples were answered now.
    """
    done = writer.done_keys(store, arm.arm_id)
    missing = [question for question in asked if question.key not in done]
    random.Random(seed).shuffle(missing)
    progress(len(asked) - len(missing), len(asked))
    stored = 0
    buffer: list[NewSample] = []
    flushed = time.monotonic()
    samples = _answers(target, arm.facts.name, missing)
    try:
        for sample in samples:
            buffer.append(sample)
            if len(buffer) >= FLUSH_SAMPLES or time.monotonic() - flushed > FLUSH_SECONDS:
                stored += writer.add_samples(store, arm.run_id, arm.arm_id, buffer)
                buffer, flushed = [], time.monotonic()
                progress(len(asked) - len(missing) + stored, len(asked))
    finally:
        stored += writer.add_samples(store, arm.run_id, arm.arm_id, buffer)
    progress(len(asked) - len(missing) + stored, len(asked))
    return stored


def _answers(target: Target, arm: str, missing: Sequence[Question]) -> Iterator[NewSample]:
    """Asks, and asks on while a suite has a next request for an item."""
    answers: dict[str, list[Answer]] = {str(i): [] for i in range(len(missing))}
    pending = [replace(question.request, id=str(i)) for i, question in enumerate(missing)]
    while pending:
        following: list[Request] = []
        for answer in target.submit(arm, pending):
            question = missing[int(answer.id)]
            if isinstance(answer, RequestFailure):
                yield _failed(question, answer)
                continue
            answers[answer.id].append(answer)
            request = question.suite.next_request(question.item, answers[answer.id])
            if request is not None:
                following.append(replace(request, id=answer.id))
            else:
                yield _scored(question, answers[answer.id])
        pending = following


def _common(question: Question) -> dict[str, Any]:
    item, request = question.item, question.request
    return {
        "suite": question.suite.name,
        "item_id": item.id,
        "item_hash": item.sha256,
        "family": item.family,
        "cluster": item.cluster,
        "metric": item.metric,
        "filter": item.filter,
        "chance": item.chance,
        "scored_by": item.scored_by,
        "request_hash": request_hash(request),
        "settings_hash": settings_hash(request),
        "through": question.through,
        "prompt": _text(request.prompt if isinstance(request, GenerateRequest) else request.context),
        "scoring_version": question.suite.scoring_version,
    }


def _failed(question: Question, failure: RequestFailure) -> NewSample:
    return NewSample(
        **_common(question),
        rendered_hash=None,
        status="error",
        error_class=failure.error,
        error_message=failure.message,
    )


def _scored(question: Question, answers: Sequence[Answer]) -> NewSample:
    scores = question.suite.score(question.item, answers)
    last = answers[-1]
    stage_tokens = {stage: sum(a.stage_tokens[stage] for a in answers) for stage in last.stage_tokens}
    generated = not hasattr(last, "logprobs")
    return NewSample(
        **_common(question),
        rendered_hash=_hash([answer.prompt_sha256 for answer in answers]),
        status="scored",
        answer=_answer_text(question.request, last),
        finish_reason=getattr(last, "finish_reason", None),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        answer_tokens=sum(stage_tokens.values()),
        stage_tokens={str(stage): count for stage, count in stage_tokens.items()},
        handed_over=(stage_tokens["decode"] > 0) if generated else bool(getattr(last, "handed_over", False)),
        timings=asdict(last.timings),
        scores=tuple(
            NewScore(metric=s.metric, filter=s.filter, value=s.value, error_class=s.error_class) for s in scores
        ),
    )


def _answer_text(request: Request, answer: Answer) -> str:
    if isinstance(request, ScoreRequest):
        texts = [_text(continuation) for continuation in request.continuations]
        logprobs = getattr(answer, "logprobs", ())
        return json.dumps({"choices": texts, "logprobs": list(logprobs)}, ensure_ascii=False)
    return str(getattr(answer, "text", ""))


def _text(prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(list(prompt))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode("utf-8", "surrogatepass")).hexdigest()
