"""lm-eval tasks: documents, prompts, targets, filters and metrics are lm-eval's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from pathlib import Path
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest, ScoreRequest, ScoreResult
from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError, EvidenceError
from evalsvc.suites.base import Asked, Item, Score
from evalsvc.suites.items import content_hash, take
from evalsvc.suites.prompts import answer_text
from evalsvc.suites.task_build import build_tasks, generation_limits


@dataclass(frozen=True)
class Question:
    """One document of one task with its rendered prompt; the payload of an item."""

    task: Any
    doc_id: int
    doc: dict[str, Any]
    context: str


class LmEvalSuite:
    """Items of one or more lm-eval tasks.

    A task's `metadata` may say `family: NAME` and `prefix: ID`; without them the task is its own family and its items
    are taken as independent. The verdict reads the first metric of `metric_list` through the first filter.

    Args:
        name: The suite's name.
        tasks: Task files, folders of task files, or names of lm-eval's own tasks.
        base_dir: Folder that relative paths start from.
        limit: Most items of each family, spread evenly over its prefixes.
    """

    def __init__(
        self, name: str, tasks: Sequence[str | Path], *, base_dir: Path | None = None, limit: int | None = None
    ) -> None:
        try:
            self.scoring_version = f"lmeval-2/lm-eval-{version('lm-eval')}"
        except PackageNotFoundError as error:
            raise CapabilityError(f"suite {name!r}: lm-eval tasks need the extra `engine`") from error
        self.name = name
        built = build_tasks(tasks, base_dir or Path())
        self._items = take([item for task in built for item in _items(task)], limit)

    def items(self) -> Sequence[Item]:
        """All items, task by task, in the order of their documents."""
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Asked | None:
        """The document's one request: its choices to score, or its prompt to continue."""
        if answers:
            return None
        question: Question = item.payload
        made = _instances(question)
        if item.scored_by == "loglikelihood":
            return ScoreRequest(
                id=item.id,
                context=question.context,
                continuations=tuple(instance.args[1] for instance in made),
            )
        stop, limit = generation_limits(question.task)
        return GenerateRequest(id=item.id, prompt=question.context, max_tokens=limit, stop=stop)

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """Every metric, once a filter. Of a metric of the whole corpus its parts, as `METRIC.0` and `METRIC.1`.

        Raises:
            EvidenceError: lm-eval's own scoring failed, which no answer is to blame for.
        """
        answer = answers[-1]
        if isinstance(answer, ScoreResult):
            responses: list[Any] = list(zip(answer.logprobs, answer.greedy, strict=True))
            tie = tie_of(answer.logprobs)
        else:
            responses, tie = [answer_text(answers)], None
        wrong = "wrong_choice" if isinstance(answer, ScoreResult) else "wrong_answer"
        try:
            found = list(_metrics(item.payload, responses))
        except Exception as error:
            raise EvidenceError(f"{self.name}: lm-eval cannot score item {item.id}: {error}") from error
        return [
            Score(
                metric=metric,
                filter=name,
                value=value,
                error_class=None if part else tie or (wrong if value < 1 else None),
            )
            for name, metric, value, part in found
        ]


def tie_of(logprobs: Sequence[float]) -> str | None:
    """`tie` when all choices are equally likely (broken logits do that), `tie_at_top` when the best two or more are.

    lm-eval then takes the first of them, so its metric says right or wrong by position.
    """
    best = max(logprobs)
    equal = sum(value == best for value in logprobs)
    if len(logprobs) < 2 or equal < 2:
        return None
    return "tie" if equal == len(logprobs) else "tie_at_top"


def _items(task: Any) -> Iterator[Item]:
    questions = _questions(task)
    metadata = task.config.metadata if isinstance(task.config.metadata, dict) else {}
    chosen = task.OUTPUT_TYPE == "multiple_choice"
    for question in questions:
        target = task.doc_to_target(question.doc)
        choices = task.doc_to_choice(question.doc) if chosen else None
        scored = {
            "doc": question.doc,
            "target": target,
            "choices": choices,
            "output_type": task.OUTPUT_TYPE,
            "metrics": task.config.metric_list,
            "filters": task.config.filter_list,
        }
        yield Item(
            id=f"{task.task_name}:{question.doc_id}",
            family=str(metadata.get("family", task.task_name)),
            cluster=str(metadata.get("prefix", "")),
            sha256=content_hash(scored),
            metric=next(iter(task._metric_fn_list)),
            filter=task._filters[0].name,
            chance=(len(target) if isinstance(target, list) else 1) / len(choices) if choices else 0.0,
            scored_by="loglikelihood" if chosen else "generation",
            gold=_gold(target, choices),
            payload=question,
        )


def _gold(target: Any, choices: Sequence[str] | None) -> int | None:
    """The right choice as lm-eval finds it: by its number or its text."""
    if isinstance(target, str) and choices and target in choices:
        return list(choices).index(target)
    return target if type(target) is int and choices and 0 <= target < len(choices) else None


def _questions(task: Any) -> list[Question]:
    """Renders all documents, in their order: lm-eval's default sampler draws shots document after document."""
    try:
        questions = [Question(task, doc_id, doc, _context(task, doc)) for doc_id, doc in task.doc_iterator()]
        if questions:
            instances = _instances(questions[0])
            chosen = task.OUTPUT_TYPE == "multiple_choice"
            list(_metrics(questions[0], [(-1.0, False)] * len(instances) if chosen else [""]))
    except EvalsvcError:
        raise
    except Exception as error:  # templates and metrics of a task file raise whatever they meet
        first = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"task {task.task_name!r}: lm-eval cannot render or score its documents: {type(error).__name__}: {first}"
        ) from error
    empty = next((q for q in questions if not q.context), None)
    if empty is not None:
        raise CapabilityError(f"task {task.task_name!r}: document {empty.doc_id} has an empty prompt")
    return questions


def _context(task: Any, doc: dict[str, Any]) -> str:
    return task.fewshot_context(doc, num_fewshot=task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(doc))


def _instances(question: Question) -> list[Any]:
    task = question.task
    made = task.construct_requests(
        doc=question.doc, ctx=question.context, metadata=(task.task_name, question.doc_id, 1)
    )
    return made if isinstance(made, list) else [made]


def _metrics(question: Question, responses: Sequence[Any]) -> Iterator[tuple[str, str, float, bool]]:
    """Filter, metric, value and whether it is a part, of one document, as lm-eval's evaluator finds them.

    What lm-eval hands to an aggregation as a tuple of numbers (right and given class, log-likelihood and weight) has
    two parts or more; tuples of anything else, and texts, are left out.
    """
    instances = _instances(question)
    for instance, response in zip(instances, responses, strict=True):
        instance.resps = [response]
    for ensemble in question.task._filters:
        ensemble.apply(instances)
    for ensemble in question.task._filters:
        filtered = [instance.filtered_resps[ensemble.name] for instance in instances]
        for metric, value in question.task.process_results(question.doc, filtered).items():
            if isinstance(value, tuple | list):
                if all(isinstance(part, Real) for part in value):
                    for index, part in enumerate(value):
                        yield ensemble.name, f"{metric}.{index}", float(part), True
            elif not isinstance(value, dict | str):
                yield ensemble.name, metric, float(value), False
