"""Items of lm-eval tasks: what they are called, what they flip together with, what their scores depend on."""

import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError
from evalsvc.suites.base import Item
from evalsvc.suites.items import content_hash
from evalsvc.suites.task_build import Built
from evalsvc.suites.task_check import generation_of, reads_all_repeats
from evalsvc.suites.task_questions import Asking, Question, render
from evalsvc.suites.task_scores import Value, own_metric, values_of

MANY_TASKS = 6  # a group of so many is a sample of subjects: its tasks are clusters


def task_items(built: Built, asking: Asking) -> list[Item]:
    """Items of all tasks, task by task, in the order of their documents.

    Raises:
        ConfigError: A task that lm-eval cannot render or score, or draws of examples where no task has any.
        CapabilityError: A task that is asked or scored in a way that is not served.
    """
    if asking.draws is not None and not any(task.config.num_fewshot for task in built.tasks.values()):
        raise ConfigError("prefix_draws: no task has few-shot examples to draw (num_fewshot is 0)")
    return [item for task in built.tasks.values() for item in _items(task, asking, built.widest_group(task.task_name))]


def _items(task: Any, asking: Asking, group_size: int) -> Iterator[Item]:
    drawn = task.OUTPUT_TYPE == "generate_until" and generation_of(task.config.generation_kwargs or {}, "").drawn
    together = reads_all_repeats(task)
    questions, probe = _questions(task, asking, task.config.repeats if drawn and together else 1)
    metric = own_metric(task, probe)
    if metric is None:
        raise CapabilityError(
            f"task {task.task_name!r}: no metric of it is a number for each document; lm-eval alone can score it"
        )
    metadata = task.config.metadata if isinstance(task.config.metadata, dict) else {}
    chosen = task.OUTPUT_TYPE == "multiple_choice"
    fixed = _common(task)
    for question in questions:
        doc = question.doc
        choices = task.doc_to_choice(doc) if chosen else None
        target = task.doc_to_text(doc) if chosen and task.multiple_input else task.doc_to_target(doc)
        yield Item(
            id=f"{task.task_name}:{question.doc_id}",
            family=str(metadata.get("family", task.task_name)),
            cluster=_cluster(task, metadata, question, group_size),
            sha256=content_hash({"doc": doc, "target": target, "choices": choices, **fixed}),
            metric=metric,
            filter=task._filters[0].name,
            chance=(len(target) if isinstance(target, list) else 1) / len(choices) if choices else 0.0,
            scored_by="generation" if task.OUTPUT_TYPE == "generate_until" else "loglikelihood",
            right_answer=_right_answer(target) if task.OUTPUT_TYPE == "generate_until" else None,
            gold=None if "acc_mutual_info" in task._metric_fn_list else _gold(target, choices),
            repeats=task.config.repeats if drawn and not together else 1,
            payload=question,
        )


def _common(task: Any) -> dict[str, Any]:
    """What the scores of all documents depend on."""
    config = task.config
    known = {"output_type": task.OUTPUT_TYPE, "metrics": config.metric_list, "filters": config.filter_list}
    if config.process_results is not None:
        known["process_results"] = config.process_results
    return {key: _plain(value) for key, value in known.items()}


def _plain(value: Any) -> Any:
    """Functions as their source, which is the same in every process."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if not callable(value):
        return value
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return getattr(value, "__qualname__", type(value).__name__)


def _cluster(task: Any, metadata: dict[str, Any], question: Question, group_size: int) -> str:
    """What makes documents flip together: a named prefix, the subject, a drawn set of examples, or the only set."""
    if "prefix" in metadata:
        return str(metadata["prefix"])
    if group_size >= MANY_TASKS:
        return task.task_name
    if question.seed is not None:
        return f"{task.task_name} examples {question.seed}"
    sampler = getattr(task, "sampler", None)
    return task.task_name if task.config.num_fewshot and type(sampler).__name__ == "FirstNSampler" else ""


def _gold(target: Any, choices: Sequence[str] | None) -> int | None:
    """The right choice as lm-eval finds it: by its number or its text."""
    if isinstance(target, str) and choices and target in choices:
        return list(choices).index(target)
    return target if type(target) is int and choices and 0 <= target < len(choices) else None


def _right_answer(target: Any) -> str:
    """A target as text; several as JSON."""
    return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False, default=repr)


def _questions(task: Any, asking: Asking, answers: int) -> tuple[list[Question], list[Value]]:
    """All questions, and the values of an answer made up to the first of them."""
    try:
        questions = list(render(task, asking, answers))
        if not questions:
            raise ConfigError(f"task {task.task_name!r}: has no documents")
        for question in questions:
            question.request("")
        probe = list(values_of(questions[0], _made_up(questions[0])))
    except EvalsvcError as error:
        if isinstance(error, ConfigError) and "task " not in str(error):
            raise ConfigError(f"task {task.task_name!r}: {error}") from error
        raise
    except (Exception, SystemExit) as error:  # templates and metrics of a task file raise whatever they meet
        first = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"task {task.task_name!r}: lm-eval cannot render or score its documents: {type(error).__name__}: {first}"
        ) from error
    return questions, probe


def _made_up(question: Question) -> list[list[Any]]:
    """Answers of the right kind to each of lm-eval's requests."""
    kinds = {"loglikelihood": (-1.0, False), "loglikelihood_rolling": -1.0, "generate_until": ""}
    repeats = question.task.config.repeats if reads_all_repeats(question.task) else 1
    return [[kinds[instance.request_type]] * repeats for instance in question.instances()]
