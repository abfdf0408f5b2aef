"""Stored answers scored again under changed rules. No model: what was answered is read back from the database."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evalsvc.engine.requests import Answer, GenerateRequest, GenerateResult, RollingRequest, ScoreResult, Timings
from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.listed import read_text
from evalsvc.questions import Question, request_hash
from evalsvc.runner import new_scores
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.records import ArmRecord, Rescored, RunRecord, StoredAnswer, Turn
from evalsvc.store.session import Store

Place = tuple[str, str, str, int]

NO_LONGER = "no longer in the suites"
CHANGED = "changed since it was answered"


@dataclass
class SuiteReport:
    """What scoring again found in one suite of one arm.

    Attributes:
        arm: `RUN:ARM`.
        before: Scoring versions that were read before.
        version: The suite's now.
        added: Samples that got scores under it.
        changed: Those of them whose own metric is another one than before.
        held: Samples that had scores under it.
        errors: Samples without an answer, which stay errors.
        left: By item why it has no score under this version.
    """

    arm: str
    suite: str
    version: str
    before: set[str] = field(default_factory=set)
    added: int = 0
    changed: int = 0
    held: int = 0
    errors: int = 0
    left: dict[str, str] = field(default_factory=dict)

    @property
    def switches(self) -> bool:
        """Whether the arm is read under the new version from now on."""
        return (self.added > 0 or self.held > 0) and self.before != {self.version}


def run_to_rescore(store: Store, experiment: str, run_id: int | None) -> RunRecord:
    """The run that is meant: the latest main run of an experiment's name, unless one is given.

    Raises:
        ConfigError: There is none, or the given one is an A/A (which is scored with the run that it repeats).
    """
    if run_id is not None:
        run = queries.run_record(store, run_id)
        if run.kind != "main":
            raise ConfigError(f"run {run_id} is the A/A of run {run.linked_run_id} and is scored with that one")
        return run
    named = [run for run in queries.runs(store) if run.experiment == experiment and run.kind == "main"]
    if not named:
        raise ConfigError(f"{store.name} holds no run of experiment '{experiment}'; --run N names another")
    return named[-1]


def rescore(
    store: Store,
    asked: Sequence[Question],
    run: RunRecord,
    hash_under: Callable[[Mapping[str, str]], str] | None = None,
) -> list[SuiteReport]:
    """Scores what a run and its A/A hold again, and adds the scores in one transaction.

    A sample is scored again where its item and request are what is asked today; stop strings and limits belong to the
    answer. Samples that have a score under the suite's scoring version are left alone, so that a second call does
    nothing.

    Where the run was of today's file but for its scoring versions, and nothing was left, it is the run of today's file
    from then on: the same file goes on with it, or finds it finished.

    Args:
        store: Open for writing, and locked by the caller.
        asked: What the suites ask today.
        run: A main run.
        hash_under: Hash of today's file if its suites were scored under these versions; None leaves the run's as it is.

    Returns:
        One report an arm and suite.

    Raises:
        ConfigError: The run holds nothing of these suites.
        StoreError: Nothing was added.
    """
    today: dict[Place, Question] = {(q.suite.name, q.item.id, q.through, q.repeat): q for q in asked}
    reports: list[SuiteReport] = []
    additions: list[Rescored] = []
    switched: dict[int, dict[str, str]] = {}
    run_ids = (run.id, *(r.id for r in queries.runs(store) if r.linked_run_id == run.id))
    for run_id in run_ids:
        for arm in queries.arms(store, run_id):
            found, added = _rescore_arm(arm, answers(store, arm), today)
            reports += found.values()
            additions += added
            switched[arm.id] = {name: report.version for name, report in found.items() if report.switches}
    if not any(report.added or report.held for report in reports):
        suites = ", ".join(sorted({question.suite.name for question in asked}))
        first = next((f": {item} {why}" for report in reports for item, why in report.left.items()), "")
        raise ConfigError(f"run {run.id} of {store.name}: no sample of the suites {suites} can be scored again{first}")
    switched = {arm_id: by_suite for arm_id, by_suite in switched.items() if by_suite}
    if additions or switched:
        adopted = None if hash_under is None else _adopted(reports, run, hash_under)
        writer.add_scores(store, additions, switched, dict.fromkeys(run_ids if adopted else (), adopted or ""))
    return reports


def _adopted(
    reports: Sequence[SuiteReport], run: RunRecord, hash_under: Callable[[Mapping[str, str]], str]
) -> str | None:
    """The hash of today's file where the run was of it but for scoring versions, and all of it is scored again."""
    before: dict[str, str] = {}
    for report in reports:
        for version in report.before or {report.version}:
            if report.left or before.setdefault(report.suite, version) != version:
                return None
    return hash_under({}) if hash_under(before) == run.experiment_hash else None


def _rescore_arm(
    arm: ArmRecord, held: Sequence[StoredAnswer], today: Mapping[Place, Question]
) -> tuple[dict[str, SuiteReport], list[Rescored]]:
    versions = {place[0]: question.suite.scoring_version for place, question in today.items()}
    reports: dict[str, SuiteReport] = {}
    added: list[Rescored] = []
    for stored in held:
        version = versions.get(stored.suite, "")
        report = reports.setdefault(stored.suite, SuiteReport(arm.address, stored.suite, version))
        read = arm.rescored.get(stored.suite) or next(reversed(stored.values or dict.fromkeys(stored.versions)), None)
        if stored.status == "scored" and read in stored.versions:
            report.before.add(read)
        question = today.get((stored.suite, stored.item_id, stored.through, stored.repeat))
        new = _rescore_sample(stored, question, report)
        if new is None:
            continue
        added.append(new)
        report.added += 1
        own = next((s.value for s in new.scores if _is_own(s.metric, s.filter, stored)), None)
        report.changed += own != stored.values.get(read or "")
    return reports, added


def _rescore_sample(stored: StoredAnswer, question: Question | None, report: SuiteReport) -> Rescored | None:
    """The scores to add, or None; the report says why."""
    if stored.status != "scored":
        report.errors += 1
        return None
    why = _why_not(stored, question)
    if question is None or why is not None:
        report.left[_name(stored)] = why or NO_LONGER
        return None
    if question.suite.scoring_version in stored.versions:
        report.held += 1
        return None
    try:
        scores, problem = new_scores(question, answers_of(stored, question))
    except EvidenceError as error:
        scores, problem = (), str(error)
    if problem is not None:
        report.left[_name(stored)] = problem
        return None
    return Rescored(sample_id=stored.sample_id, scoring_version=question.suite.scoring_version, scores=scores)


def _why_not(stored: StoredAnswer, question: Question | None) -> str | None:
    if question is None:
        return NO_LONGER
    item = question.item
    if (item.sha256, request_hash(question.request)) != (stored.item_hash, stored.request_hash):
        return CHANGED
    if (item.metric, item.filter) != (stored.metric, stored.filter):
        return f"is read by {item.metric} ({item.filter}) now and was by {stored.metric} ({stored.filter})"
    return None


def _is_own(metric: str, name: str, stored: StoredAnswer) -> bool:
    return name == stored.filter and metric in (stored.metric, f"{stored.metric}.0")


def _name(stored: StoredAnswer) -> str:
    parts = [f" through {stored.through}"] * bool(stored.through) + [f" repeat {stored.repeat}"] * (stored.repeat > 0)
    return stored.item_id + "".join(parts)


def answers_of(stored: StoredAnswer, question: Question) -> Sequence[Answer]:
    """The answers as the suite saw them.

    Raises:
        EvidenceError: Not all that they are made of was stored.
    """
    request = question.request
    generated = isinstance(request, GenerateRequest)
    made = _generated(stored) if generated else [_scored(stored, rolling=isinstance(request, RollingRequest))]
    if question.suite.next_request(question.item, made) is not None:
        raise EvidenceError("its earlier turns were not stored, or its conversation goes on today")
    return made


def _generated(stored: StoredAnswer) -> Sequence[Answer]:
    turns = stored.turns or (Turn(None, None, ()),)  # before turns were stored; the suite says whether one is all
    last = len(turns) - 1
    said = [read_text(stored.answer if turn.answer is None else turn.answer) for turn in turns]
    return [
        GenerateResult(
            id=stored.item_id,
            text=text,
            tool_calls=tool_calls,
            token_ids=turn.token_ids,
            prompt_tokens=stored.prompt_tokens or 0,
            prompt_sha256="",
            finish_reason=(stored.finish_reason if number == last else turn.finish_reason),  # pyright: ignore[reportArgumentType]
            stage_tokens=stored.stage_tokens,  # pyright: ignore[reportArgumentType]
            timings=Timings(**stored.timings),
        )
        for number, (turn, (text, tool_calls)) in enumerate(zip(turns, said, strict=True))
    ]


def _scored(stored: StoredAnswer, *, rolling: bool) -> Answer:
    try:
        said = json.loads(stored.answer)
        logprobs = (said["logprob"],) if rolling else tuple(said["logprobs"])
        greedy = tuple(said["greedy"])
    except (ValueError, KeyError, TypeError):
        raise EvidenceError("which choices greedy decoding would have written was not stored") from None
    return ScoreResult(
        id=stored.item_id,
        logprobs=logprobs,
        greedy=greedy,
        continuation_tokens=(),
        prompt_tokens=stored.prompt_tokens or 0,
        prompt_sha256="",
        stage_tokens=stored.stage_tokens,  # pyright: ignore[reportArgumentType]
        handed_over=stored.handed_over,
        timings=Timings(**stored.timings),
    )
