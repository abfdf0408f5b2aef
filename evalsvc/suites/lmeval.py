"""lm-eval tasks: documents, prompts, targets, filters and metrics are lm-eval's own."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest, RollingRequest, ScoreResult
from evalsvc.errors import CapabilityError, EvidenceError
from evalsvc.suites.base import Asked, Item, Score
from evalsvc.suites.items import take
from evalsvc.suites.prompts import answer_text
from evalsvc.suites.task_build import build_tasks
from evalsvc.suites.task_check import reads_all_repeats
from evalsvc.suites.task_items import task_items
from evalsvc.suites.task_questions import Asking, Question
from evalsvc.suites.task_scores import Value, aggregated, values_of


class LmEvalSuite:
    """Items of one or more lm-eval tasks, groups or tags.

    A task is its own family, so that a group's tasks are its slices; its `metadata` may say `family: NAME`. Documents
    under one prefix are a cluster: `prefix: ID` in the metadata, the set of examples where the suite draws them, or the
    task where its sampler takes the first ones for every document. Tasks of a group of six or more are clusters too
    (subjects of MMLU). The verdict reads the first right-or-wrong metric through the first filter, else the first
    metric of which more is better; all others are stored beside it.

    Args:
        name: The suite's name.
        tasks: Task or group files, folders of them, or names of lm-eval's own tasks, groups and tags.
        base_dir: Folder that relative paths start from.
        limit: Most items of each family, spread evenly over its clusters.
        asking: How documents become prompts.
        allow_code: Whether Python that task files name may run.
        data_files: Local files of lm-eval's own tasks, by task and split.

    Raises:
        ConfigError: Something named is missing or wrong.
        CapabilityError: A task needs what this version does not serve, or lm-eval is not installed.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[str | Path],
        *,
        base_dir: Path | None = None,
        limit: int | None = None,
        asking: Asking | None = None,
        allow_code: bool = False,
        data_files: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self.scoring_version = f"lmeval-4/lm-eval-{version('lm-eval')}"
        except PackageNotFoundError as error:
            raise CapabilityError(f"suite {name!r}: lm-eval tasks need the extra `engine`") from error
        asking = asking or Asking()
        self.name = name
        self._built = build_tasks(
            tasks,
            base_dir or Path(),
            num_fewshot=asking.num_fewshot,
            allow_code=allow_code,
            data_files=data_files,
        )
        self._items = take(task_items(self._built, asking), limit)

    def items(self) -> Sequence[Item]:
        """All items, task by task, in the order of their documents."""
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Asked | None:
        """The document's request: its choices or text to score, or its prompt to continue.

        Where a filter looks at all repeats together, the same request comes again until there are enough answers.
        """
        question: Question = item.payload
        return question.request(item.id) if len(answers) < question.answers else None

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """Every metric, once a filter. Of a metric of the whole corpus its parts, as `METRIC.0` and `METRIC.1`.

        Raises:
            EvidenceError: lm-eval's own scoring failed, which no answer is to blame for.
        """
        question: Question = item.payload
        better = question.task.higher_is_better()
        answer = answers[-1]
        tie = tie_of(_choices(question, answer)) if isinstance(answer, ScoreResult) else None
        wrong = "wrong_choice" if isinstance(answer, ScoreResult) else "wrong_answer"
        try:
            found = list(values_of(question, _responses(question, answers)))
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"
            raise EvidenceError(f"{self.name}: lm-eval cannot score item {item.id}: {said}") from error

        def error_class(value: Value) -> str | None:
            if value.part is not None or better.get(value.metric, True) is False:
                return None
            return tie or (wrong if 0 <= value.value < 1 else None)

        return [
            Score(
                metric=value.name,
                filter=value.filter,
                value=value.value,
                error_class=error_class(value),
                filtered=value.filtered,
            )
            for value in found
        ]

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of lm-eval's groups among what was named."""
        return tuple(self._built.groups)

    def aggregate(self, scores: Mapping[str, Sequence[Score]]) -> dict[str, dict[str, float]]:
        """What lm-eval reports of these scores, by task and by group, as `METRIC,FILTER` and value.

        Args:
            scores: By item; items that are missing are left out, as if they were not asked.
        """
        documents: dict[str, list[Sequence[Score]]] = {}
        for item in self._items:
            if item.id in scores:
                documents.setdefault(item.payload.task.task_name, []).append(scores[item.id])
        return aggregated(self._built.tasks, self._built.groups, documents)


def _responses(question: Question, answers: Sequence[Answer]) -> list[list[Any]]:
    """As lm-eval's models return them: of each request its repeats."""
    answer, asked = answers[-1], question.request("")
    repeats = question.task.config.repeats if reads_all_repeats(question.task) else 1
    if isinstance(answer, ScoreResult):
        if isinstance(asked, RollingRequest):
            return [[answer.logprobs[0]] * repeats]
        return [[pair] * repeats for pair in zip(answer.logprobs, answer.greedy, strict=True)]
    assert isinstance(asked, GenerateRequest)
    texts = [answer_text([each]) for each in answers]
    return [texts * repeats if len(texts) < repeats else texts]  # a greedy answer is the same each time


def _choices(question: Question, answer: ScoreResult) -> Sequence[float]:
    """Log-likelihoods of the choices, without those of the choices by themselves."""
    alone = question.task.OUTPUT_TYPE == "multiple_choice" and "acc_mutual_info" in question.task._metric_fn_list
    return answer.logprobs[: len(answer.logprobs) // 2] if alone else answer.logprobs


def tie_of(logprobs: Sequence[float]) -> str | None:
    """`tie` when all choices are equally likely (broken logits do that), `tie_at_top` when the best two or more are.

    lm-eval then takes the first of them, so its metric says right or wrong by position.
    """
    best = max(logprobs)
    equal = sum(value == best for value in logprobs)
    if len(logprobs) < 2 or equal < 2:
        return None
    return "tie" if equal == len(logprobs) else "tie_at_top"
