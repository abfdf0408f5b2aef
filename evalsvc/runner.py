"""One run: which samples are missing, ask the target, score, store. Resuming is the same loop."""

import hashlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest, Request, RequestFailure, ScoreRequest
from evalsvc.errors import ConfigError, EngineError, EvidenceError
from evalsvc.store import writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import Store
from evalsvc.suites.base import Item, Score, Suite
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
    if not asked:
        raise ConfigError("the suites hold no item")
    places = Counter((question.suite.name, question.item.id, question.through) for question in asked)
    (suite, item, _), count = places.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"suite {suite}: item {item} stands in it twice")
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


@dataclass
class Outcome:
    """What one call of `run_arm` did.

    Attributes:
        stored: Samples stored.
        errors: Those of them that have no score.
        first_error: Why the first of these has none.
    """

    stored: int = 0
    errors: int = 0
    first_error: str = ""

    def note(self, sample: NewSample) -> None:
        """Counts an error."""
        if sample.status == "error":
            self.errors += 1
            self.first_error = self.first_error or f"{sample.suite}/{sample.item_id}: {sample.error_message}"


def run_arm(
    store: Store,
    target: Target,
    arm: ArmRun,
    asked: Sequence[Question],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Answers what is missing of one arm and stores every sample.

    Args:
        store: Where samples go, a few at a time.
        target: Who answers.
        arm: Which arm of which run.
        asked: Everything that the arm answers.
        seed: Of the order of asking.
        progress: Called with samples stored and samples in all.

    Raises:
        EngineError: The target left a request without answer and without error; what it answered is stored.
        StoreError: A sample cannot be stored.
    """
    done = writer.done_keys(store, arm.arm_id)
    missing = [question for question in asked if question.key not in done]
    random.Random(seed).shuffle(missing)
    progress(len(asked) - len(missing), len(asked))
    outcome = Outcome()
    buffer: list[NewSample] = []
    flushed = time.monotonic()
    try:
        with closing(_answers(target, arm.facts.name, missing)) as samples:
            for sample in samples:
                buffer.append(sample)
                outcome.note(sample)
                if len(buffer) >= FLUSH_SAMPLES or time.monotonic() - flushed > FLUSH_SECONDS:
                    outcome.stored += writer.add_samples(store, arm.run_id, arm.arm_id, buffer)
                    buffer, flushed = [], time.monotonic()
                    progress(len(asked) - len(missing) + outcome.stored, len(asked))
    finally:  # Ctrl-C too: what was answered is kept
        outcome.stored += writer.add_samples(store, arm.run_id, arm.arm_id, buffer)
    progress(len(asked) - len(missing) + outcome.stored, len(asked))
    return outcome


def _answers(target: Target, arm: str, missing: Sequence[Question]) -> Generator[NewSample]:
    """Asks, and asks on while a suite has a next request for an item."""
    answers: dict[str, list[Answer]] = {str(i): [] for i in range(len(missing))}
    pending = [replace(question.request, id=str(i)) for i, question in enumerate(missing)]
    while pending:
        following: list[Request] = []
        unanswered = {request.id for request in pending}
        for answer in target.submit(arm, pending):
            unanswered.discard(answer.id)
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
        if unanswered:
            raise EngineError(f"arm {arm}: {len(unanswered)} of {len(pending)} requests were never answered; run again")
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
    """The sample of a complete item. Where scoring itself fails, the answer is kept and its status is error."""
    scores, problem = _scores(question, answers)
    last = answers[-1]
    stage_tokens = {stage: sum(a.stage_tokens[stage] for a in answers) for stage in last.stage_tokens}
    generated = not hasattr(last, "logprobs")
    return NewSample(
        **_common(question),
        rendered_hash=_hash([answer.prompt_sha256 for answer in answers]),
        status="scored" if problem is None else "error",
        error_class=None if problem is None else "scoring",
        error_message=problem,
        answer=_answer_text(question.request, last),
        finish_reason=getattr(last, "finish_reason", None),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        answer_tokens=sum(stage_tokens.values()),
        stage_tokens={str(stage): count for stage, count in stage_tokens.items()},
        handed_over=(stage_tokens["decode"] > 0) if generated else bool(getattr(last, "handed_over", False)),
        timings={name: sum(getattr(a.timings, name) for a in answers) for name in asdict(last.timings)},
        scores=tuple(
            NewScore(metric=s.metric, filter=s.filter, value=s.value, error_class=s.error_class) for s in scores
        ),
    )


def _scores(question: Question, answers: Sequence[Answer]) -> tuple[Sequence[Score], str | None]:
    """Scores of a complete item, or none and why: an error of the instrument is never a score."""
    item = question.item
    try:
        scores = question.suite.score(item, answers)
    except EvidenceError as error:
        return (), str(error)
    broken = next((score for score in scores if not math.isfinite(score.value)), None)
    if broken is not None:
        return (), f"{broken.metric} is {broken.value}"
    if not any((score.metric, score.filter) == (item.metric, item.filter) for score in scores):
        return (), f"no score of {item.metric} through filter {item.filter}"
    return scores, None


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
