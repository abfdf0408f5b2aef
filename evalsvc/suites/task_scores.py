"""Metrics of single documents as lm-eval finds them, and of whole tasks and groups from those."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

from evalsvc.suites import task_texts
from evalsvc.suites.base import Score
from evalsvc.suites.task_questions import Question

log = logging.getLogger(__name__)
RIGHT_OR_WRONG = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "em", "exact")


@dataclass(frozen=True)
class Value:
    """One metric of one document through one filter.

    Attributes:
        part: Which part of a metric of the whole corpus it is; None for a metric of the document.
        filtered: As `left_of` what the filter made of generated answers.
    """

    filter: str
    metric: str
    value: float
    part: int | None = None
    filtered: str | None = None

    @property
    def name(self) -> str:
        """As it is stored: parts as `METRIC.0` and `METRIC.1`."""
        return self.metric if self.part is None else f"{self.metric}.{self.part}"


def values_of(question: Question, responses: Sequence[Sequence[Any]]) -> Iterator[Value]:
    """All metrics, once a filter.

    What lm-eval hands to an aggregation as a tuple of numbers (right and given class, log-likelihood and weight) has
    two parts or more, a log-likelihood that becomes a perplexity has one, and a Brier score is one document's. Of a
    reference and an answer that become BLEU, chrF or TER the parts are counts (`task_texts`). Tuples of anything
    else, and texts, are left out: lm-eval alone can make something of them.

    Args:
        question: The document.
        responses: Of each of lm-eval's requests all its repeats.
    """
    instances = question.instances()
    for instance, repeats in zip(instances, responses, strict=True):
        instance.resps = list(repeats)
    for ensemble in question.task._filters:
        ensemble.apply(instances)
    for ensemble in question.task._filters:
        filtered = [instance.filtered_resps[ensemble.name] for instance in instances]
        generated = all(isinstance(response, str) for repeats in responses for response in repeats)
        left = left_of(filtered, responses[-1][-1]) if generated else None
        for metric, value in question.task.process_results(question.doc, filtered).items():
            for found in _values(question.task, ensemble.name, metric, value):
                yield replace(found, filtered=left)


def left_of(filtered: Sequence[Any], answer: str) -> str | None:
    """What a filter left, as text (JSON where it is anything else); None where that is the answer as it is stored.

    Args:
        filtered: Of each of lm-eval's requests what is left of its answers.
        answer: The stored answer.
    """
    whole = filtered[0] if len(filtered) == 1 else list(filtered)
    left = whole if isinstance(whole, str) else json.dumps(whole, ensure_ascii=False, default=str)
    return None if left == answer else left


def _values(task: Any, through: str, metric: str, value: Any) -> Iterator[Value]:
    aggregation = task.aggregation().get(metric)
    name = getattr(aggregation, "__name__", "")
    if isinstance(value, Real):
        yield Value(through, metric, float(value), 0 if name == "perplexity" else None)
    elif name == "brier_score" and isinstance(value, tuple):
        yield Value(through, metric, float(aggregation([value])))
    elif isinstance(value, tuple | list) and value and all(isinstance(part, Real) for part in value):
        for part, each in enumerate(value):
            yield Value(through, metric, float(each), part)
    elif (counted := task_texts.name_of(aggregation)) is not None:
        for part, each in enumerate(task_texts.statistics(counted, value) or ()):
            yield Value(through, metric, each, part)


def own_metric(task: Any, probe: Sequence[Value]) -> str | None:
    """The metric that a verdict reads, among those of one document through the first filter.

    The first that is right or wrong, else the first of which more is better, else the first.
    """
    order = list(task._metric_fn_list)
    mine = [value for value in probe if value.filter == task._filters[0].name]
    listed = sorted(mine, key=lambda value: order.index(value.metric) if value.metric in order else len(order))
    better = task.higher_is_better()
    whole = [value.metric for value in listed if value.part is None]
    known = [metric for metric in whole if metric in RIGHT_OR_WRONG]
    more = [metric for metric in whole if better.get(metric, True) is not False]
    return next(iter((*known, *more, *(value.metric for value in listed))), None)


def aggregated(
    tasks: Mapping[str, Any], groups: Mapping[str, Any], scores: Mapping[str, Sequence[Sequence[Score]]]
) -> dict[str, dict[str, float]]:
    """What lm-eval makes of these scores: by task and by group `METRIC,FILTER` and its value.

    Args:
        tasks: lm-eval's tasks by name.
        groups: lm-eval's groups by name.
        scores: Of each task's documents, in their order.
    """
    from lm_eval.api.metrics import mean

    found: dict[str, dict[str, Any]] = {}
    for name, documents in scores.items():
        columns: dict[tuple[str, str], list[Any]] = {}
        for document in documents:
            for key, value in _together(document).items():
                columns.setdefault(key, []).append(value)
        functions = tasks[name].aggregation()
        found[name] = {"sample_len": len(documents)}
        for (metric, through), column in columns.items():
            plain = mean if metric == "brier_score" else functions.get(metric, mean)
            if (counted := task_texts.name_of(plain)) is not None:
                plain = partial(task_texts.of_sums, counted)
            try:
                found[name][f"{metric},{through}"] = plain(column)
            except (Exception, SystemExit) as error:  # a task's own aggregation may want more than numbers
                log.warning("task %s: %s of the stored scores cannot be aggregated: %s", name, metric, error)
    for name, group in groups.items():
        found[name] = dict(group.aggregate(found))
    kept = {name: {key: v for key, v in values.items() if "," in key} for name, values in found.items()}
    return {
        name: {key: float(v) for key, v in values.items() if "_stderr," not in key} for name, values in kept.items()
    }


def _together(document: Sequence[Score]) -> dict[tuple[str, str], Any]:
    """A document's values by metric and filter; parts as lm-eval had them."""
    parts: dict[tuple[str, str], list[float]] = {}
    whole: dict[tuple[str, str], Any] = {}
    for score in document:
        base, dot, number = score.metric.rpartition(".")
        if dot and number.isdigit():
            parts.setdefault((base, score.filter), []).append(score.value)
        else:
            whole[score.metric, score.filter] = score.value
    return whole | {key: values[0] if len(values) == 1 else tuple(values) for key, values in parts.items()}
