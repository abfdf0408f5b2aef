"""A group of arms: which samples each misses, ask the target once for all that miss one, score, store.

Resuming is the same loop.
"""

import json
import math
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from evalsvc import alternatives
from evalsvc.decision import Stop
from evalsvc.engine.requests import (
    Answer,
    GenerateRequest,
    GenerateResult,
    RequestFailure,
    RollingRequest,
    ScoreRequest,
    ScoreResult,
)
from evalsvc.errors import EngineError, EvidenceError
from evalsvc.listed import stored_text
from evalsvc.ordering import Looks, Placed, plan_looks
from evalsvc.questions import Key, Question, hash_of, item_fields, request_hash, seeded, settings_hash
from evalsvc.store import writer
from evalsvc.store.answers import values_of
from evalsvc.store.records import NewIncident, NewSample, NewScore, Turn
from evalsvc.store.session import Store
from evalsvc.suites.base import Asked, Score
from evalsvc.suites.degenerate import failure_scores
from evalsvc.suites.likelihoods import impossible_answer
from evalsvc.tally import Doing, Tally
from evalsvc.targets.base import ArmFacts, Target

Progress = Callable[[str, int, int, Doing], None]
FLUSH_SAMPLES = 16
FLUSH_SECONDS = 2.0


@dataclass
class ArmRun:
    """An arm of a run being answered."""

    run_id: int
    arm_id: int
    facts: ArmFacts


@dataclass(frozen=True)
class Watch:
    """How a sequential design looks on.

    Attributes:
        block_items: Least number of items between two looks.
        decide: The look that decided about an arm, from what is stored; None while none did.
    """

    block_items: int
    decide: Callable[[ArmRun], Stop | None]


@dataclass
class Outcome:
    """What one call of `run_group` did for an arm.

    Attributes:
        stored: Samples stored.
        errors: Those of them that have no score.
        first_error: Why the first of these has none.
        stop: The look that decided about it, after which it was asked nothing more.
    """

    stored: int = 0
    errors: int = 0
    first_error: str = ""
    stop: Stop | None = None

    def note(self, sample: NewSample) -> None:
        """Counts an error."""
        if sample.status == "error":
            self.errors += 1
            self.first_error = self.first_error or f"{sample.suite}/{sample.item_id}: {sample.error_message}"


def run_group(
    store: Store,
    target: Target,
    arms: Sequence[ArmRun],
    asked: Sequence[Question],
    seed: int,
    progress: Progress = lambda arm, done, total, doing: None,
    watch: Watch | None = None,
    baseline: str = "",
) -> dict[str, Outcome]:
    """Answers what is missing of each arm and stores every sample under its own arm.

    A question is asked once, for all arms that miss its sample. Under a sequential design an arm is asked block by
    block, until it is decided; what carries no verdict is asked of every arm, after all blocks.

    Args:
        store: Where samples go, a few at a time.
        target: Who answers.
        arms: Arms of one run.
        asked: Everything that each arm answers.
        seed: Of the order of asking.
        progress: Called with an arm's name, its samples stored and its samples in all, and what it is doing.
        watch: The sequential design; None asks everything.
        baseline: Name of the arm that flips are counted against for `progress`, wherever it is answered.

    Returns:
        What was done, by arm.

    Raises:
        EngineError: The target left a request without answer and without error, or answered what nobody asked; what it
            answered before is stored.
        StoreError: A sample cannot be stored.
    """
    keys = [question.key for question in asked]
    tally = _tally(store, arms, baseline)
    keepers = {arm.facts.name: _Keeper(store, arm, keys, tally, progress) for arm in arms}
    judged = [question for question in asked if watch is None or question.item.metric]
    looks = plan_looks(map(placed, judged), seed, len(asked) if watch is None else watch.block_items)
    with ExitStack() as leaving:
        for keeper in keepers.values():
            leaving.callback(keeper.flush)  # Ctrl-C too: what was answered is kept
        for block in _blocks(asked, looks):
            _note_stops(keepers, watch)
            missing = [(q, names) for q in block if (names := _names(keepers, q))]
            with closing(_answers(target, missing)) as samples:
                for name, sample in samples:
                    keepers[name].add(sample)
                    for keeper in keepers.values():
                        keeper.flush_if_due()
            for keeper in keepers.values():
                keeper.flush()
        _note_stops(keepers, watch)
    return {name: keeper.outcome for name, keeper in keepers.items()}


def _tally(store: Store, arms: Sequence[ArmRun], baseline: str) -> Tally:
    known = {arm.facts.name: values_of(store, arm.run_id, arm.facts.name) for arm in arms}
    if baseline and baseline not in known:
        known[baseline] = values_of(store, arms[0].run_id, baseline)
    return Tally(baseline, known)


def placed(question: Question) -> Placed:
    """Where a question's item stands in the order."""
    item = question.item
    return Placed(question.suite.name, item.family, item.cluster, item.id)


def _blocks(asked: Sequence[Question], looks: Looks) -> list[list[Question]]:
    """The questions between one look and the next, in order; last those that no look is about."""
    position = [looks.position.get(placed(question).place, looks.planned) for question in asked]
    blocks: list[list[Question]] = [[] for _ in (*looks.ends, None)]
    for index in sorted(range(len(asked)), key=position.__getitem__):
        blocks[bisect_right(looks.ends, position[index])].append(asked[index])
    return blocks


def _names(keepers: Mapping[str, "_Keeper"], question: Question) -> tuple[str, ...]:
    """Arms that miss a sample which a verdict does not need, or that are not decided."""
    missing = [name for name, keeper in keepers.items() if question.key in keeper.missing]
    return tuple(name for name in missing if not question.item.metric or keepers[name].outcome.stop is None)


def _note_stops(keepers: Mapping[str, "_Keeper"], watch: Watch | None) -> None:
    for keeper in keepers.values():
        if watch is not None and keeper.outcome.stop is None:
            keeper.outcome.stop = watch.decide(keeper.arm)


class _Keeper:
    """Takes an arm's samples to the store, a few at a time.

    Attributes:
        arm: The arm.
        missing: Keys of the samples that were not there at first.
        outcome: What was stored since.
    """

    def __init__(self, store: Store, arm: ArmRun, keys: Sequence[Key], tally: Tally, progress: Progress):
        self.missing = set(keys) - writer.done_keys(store, arm.arm_id)
        self.outcome = Outcome()
        self.arm, self._store, self._progress, self._tally = arm, store, progress, tally
        self._suite, self._tokens = "", 0
        self._had, self._all = len(keys) - len(self.missing), len(keys)
        self._buffer: list[NewSample] = []
        self._flushed = time.monotonic()
        self._tell()

    def add(self, sample: NewSample) -> None:
        """Takes a sample."""
        self._buffer.append(sample)
        self.outcome.note(sample)
        self._tally.add(self.arm.facts.name, sample)
        self._suite = sample.suite
        self._tokens += (sample.prompt_tokens or 0) + (sample.answer_tokens or 0)

    def flush_if_due(self) -> None:
        """Stores what is held once it is many samples, or old."""
        if len(self._buffer) >= FLUSH_SAMPLES or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Stores what is held."""
        stored = writer.add_samples(self._store, self.arm.run_id, self.arm.arm_id, self._buffer)
        self.outcome.stored += stored
        self._buffer, self._flushed = [], time.monotonic()
        if stored:
            self._tell()

    def _tell(self) -> None:
        name = self.arm.facts.name
        doing = Doing(self._suite, self._tokens, *self._tally.of(name))
        self._progress(name, self._had + self.outcome.stored, self._all, doing)


def _answers(target: Target, missing: Sequence[tuple[Question, tuple[str, ...]]]) -> Generator[tuple[str, NewSample]]:
    """Asks, and asks on while a suite has a next request for an item and an arm; gives arms and their samples."""
    answers: dict[tuple[str, str], list[Answer]] = {}
    pending = [_request(question, question.request, str(i), names) for i, (question, names) in enumerate(missing)]
    while pending:
        following: list[Asked] = []
        unanswered = {(request.id, name) for request in pending for name in request.arms}
        total = Counter(name for _, name in unanswered)
        for answer in target.submit(pending):
            place = (answer.id, answer.arm)
            if place not in unanswered:
                raise EngineError(f"arm {answer.arm}: an answer came twice, or unasked (request {answer.id})")
            unanswered.discard(place)
            question, _ = missing[int(answer.id)]
            if isinstance(answer, RequestFailure):
                yield answer.arm, _failed(question, answer)
                continue
            held = answers.setdefault(place, [])
            held.append(answer)
            request = question.suite.next_request(question.item, held)
            if request is None:
                yield answer.arm, _scored(question, held)
            else:
                following.append(_request(question, request, answer.id, (answer.arm,), turn=len(held)))
        if unanswered:
            left = sorted(Counter(name for _, name in unanswered).items())
            each = "; ".join(f"arm {name}: {n} of {total[name]} requests were never answered" for name, n in left)
            raise EngineError(f"{each}; run again")
        pending = _merged(following)


def _request(question: Question, request: Asked, key: str, arms: tuple[str, ...], turn: int = 0) -> Asked:
    """A suite's request as the target gets it."""
    if isinstance(request, GenerateRequest):
        request = seeded(request, question.suite, question.item, question.repeat, turn)
        request = request if request.logprobs is not None else replace(request, logprobs=alternatives.TOP)
    elif question.through:
        request = replace(request, through=question.through)  # pyright: ignore[reportArgumentType]
    return replace(request, id=key, arms=arms)


def _merged(requests: Iterable[Asked]) -> list[Asked]:
    """What several arms are to be asked in the same words as one request of them all."""
    by_id: dict[str, list[Asked]] = {}
    for request in requests:
        group = by_id.setdefault(request.id, [])
        same = next((i for i, other in enumerate(group) if replace(request, arms=other.arms) == other), None)
        if same is None:
            group.append(request)
        else:
            group[same] = replace(group[same], arms=(*group[same].arms, *request.arms))
    return [request for group in by_id.values() for request in group]


def _common(question: Question) -> dict[str, Any]:
    item, request = question.item, question.request
    return {
        **item_fields(question.suite.name, item),
        "scored_by": item.scored_by,
        "right_answer": item.right_answer,
        "request_hash": request_hash(request),
        "settings_hash": settings_hash(request),
        "through": question.through,
        "repeat": question.repeat,
        "prompt": _prompt(request),
        "scoring_version": question.suite.scoring_version,
    }


def _failed(question: Question, failure: RequestFailure) -> NewSample:
    return NewSample(
        **_common(question),
        rendered_hash=None,
        status="error",
        error_class=failure.error,
        error_message=failure.message,
        incident=_incident(failure),
    )


def _incident(failure: RequestFailure) -> NewIncident | None:
    """What the store keeps of a page that did not hold what was written for the request."""
    met = failure.incident
    if met is None:
        return None
    return NewIncident(
        stage=met.stage,
        page=met.page,
        slot=met.slot,
        layer=met.layer,
        expected_tag=met.expected[0],
        expected_position=met.expected[1],
        found_tag=met.found[0],
        found_position=met.found[1],
        content=met.content,
        step=met.step,
    )


def _scored(question: Question, answers: Sequence[Answer]) -> NewSample:
    """The sample of a complete item. Where scoring itself fails, the answer is kept and its status is error."""
    scores, problem = new_scores(question, answers)
    last = answers[-1]
    stage_tokens = {stage: sum(a.stage_tokens[stage] for a in answers) for stage in last.stage_tokens}
    return NewSample(
        **_common(question),
        rendered_hash=hash_of([answer.prompt_sha256 for answer in answers]),
        status="scored" if problem is None else "error",
        error_class=None if problem is None else "scoring",
        error_message=problem,
        answer=_answer_text(question, last),
        finish_reason=None if isinstance(last, ScoreResult) else last.finish_reason,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        answer_tokens=sum(stage_tokens.values()),
        stage_tokens={str(stage): count for stage, count in stage_tokens.items()},
        handed_over=last.handed_over if isinstance(last, ScoreResult) else stage_tokens["decode"] > 0,
        timings={name: sum(getattr(a.timings, name) for a in answers) for name in asdict(last.timings)},
        scores=scores,
        turns=_turns(answers),
        alternatives=_alternatives(answers),
    )


def _alternatives(answers: Sequence[Answer]) -> bytes | None:
    """What else the tokens of generated answers could have been, as it is stored; nothing of log-likelihoods."""
    generated = [answer for answer in answers if isinstance(answer, GenerateResult)]
    return alternatives.pack(generated) if generated else None


def _turns(answers: Sequence[Answer]) -> tuple[Turn, ...]:
    """What is stored of generated answers beside the last one's text; nothing of log-likelihoods."""
    turns = [Turn(stored_text(a), str(a.finish_reason), a.token_ids) for a in answers if isinstance(a, GenerateResult)]
    return (*turns[:-1], replace(turns[-1], answer=None, finish_reason=None)) if turns else ()


def new_scores(question: Question, answers: Sequence[Answer]) -> tuple[tuple[NewScore, ...], str | None]:
    """Scores of a complete item as they are stored, or none and why: an error of the instrument is never a score."""
    scores, problem = _scores(question, answers)
    if problem is not None:
        return (), problem
    found = (*scores, *failure_scores(question.item, question.request, answers))
    return tuple(NewScore(**vars(score)) for score in found), None


def _scores(question: Question, answers: Sequence[Answer]) -> tuple[Sequence[Score], str | None]:
    """The suite's scores, or none and why."""
    item, asked = question.item, question.request
    for answer in answers:
        if isinstance(answer, ScoreResult) and not isinstance(asked, GenerateRequest):
            problem = impossible_answer(asked, answer)
            if problem is not None:
                return (), problem
    try:
        scores = question.suite.score(item, answers)
    except EvidenceError as error:
        return (), str(error)
    broken = next((score for score in scores if not math.isfinite(score.value)), None)
    if broken is not None:
        return (), f"{broken.metric} is {broken.value}"
    if not item.metric:
        return scores, None
    own = {(item.metric, item.filter), (f"{item.metric}.0", item.filter)}  # the second one of a whole corpus
    if not any((score.metric, score.filter) in own for score in scores):
        return (), f"no score of {item.metric} through filter {item.filter}"
    return scores, None


def _answer_text(question: Question, answer: Answer) -> str:
    request = question.request
    if isinstance(request, RollingRequest):
        if not isinstance(answer, ScoreResult):
            return json.dumps({"logprob": None})
        return json.dumps({"logprob": answer.logprobs[0], "greedy": list(answer.greedy)})
    if isinstance(request, ScoreRequest):
        texts = [_text(continuation) for continuation in request.continuations]
        logprobs = answer.logprobs if isinstance(answer, ScoreResult) else ()
        greedy = answer.greedy if isinstance(answer, ScoreResult) else ()
        said = {"choices": texts, "logprobs": list(logprobs), "greedy": list(greedy)}
        if question.item.gold is not None:
            said["gold"] = question.item.gold
        return json.dumps(said, ensure_ascii=False)
    return stored_text(answer) if isinstance(answer, GenerateResult) else ""


def _prompt(request: Asked) -> str:
    """What was asked, as text; contexts that differ as a list of them."""
    if isinstance(request, GenerateRequest):
        return _text(request.prompt)
    if isinstance(request, RollingRequest):
        return _text(request.text)
    return _text(request.contexts or request.context)


def _text(prompt: str | Sequence[Any]) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(list(prompt), ensure_ascii=False)
