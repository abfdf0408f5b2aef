"""Which metric of an lm-eval task carries its verdict, through which filter: one rule for all arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalsvc.errors import ConfigError
from evalsvc.recorded.lmeval_files import TaskFacts
from evalsvc.recorded.lmeval_rows import Document, score_name

_LOWER_IS_BETTER = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "wer", "ter"}


@dataclass(frozen=True)
class Chosen:
    """What carries the verdict of a task.

    Attributes:
        metric: Its name.
        filter: Through which filter.
        score: Name under which its value, or the first of its two parts, is stored.
        in_units: It is not from 0 to 1, so that only a policy's rule in its own units can judge it.
        others: The other scores of the task, as they are shown.
    """

    metric: str
    filter: str
    score: str
    in_units: bool
    others: tuple[str, ...]

    def sentence(self, task: str) -> str:
        """What an import says of the choice."""
        beside = f" (stored beside it: {', '.join(self.others)})" if self.others else ""
        rule = "; a policy judges it by a rule with `metric` and `margin`" if self.in_units else ""
        return f"task {task}: {self.metric} through filter {self.filter}{beside}{rule}"


def choose_all(
    tasks: Mapping[str, Sequence[Document]], facts: TaskFacts, metric: str | None, filter_: str | None
) -> dict[str, Chosen]:
    """The choice of each task.

    Args:
        tasks: Each task's documents of all arms.
        facts: What results files say.
        metric: Carries the verdict of the tasks that have it; None takes each task's first metric whose values lie
            between 0 and 1 in every arm and of which more is better, else its first in units of its own.
        filter_: Through which filter, where a task has it; None takes each task's first.

    Raises:
        ConfigError: No task has what was asked for, or one has nothing that can carry a verdict.
    """
    scores = {task: _scores(documents) for task, documents in tasks.items()}
    if filter_ is not None and not any(filter_ in found for found in scores.values()):
        there = dict.fromkeys(name for found in scores.values() for name in found)
        raise ConfigError(f"no task has a filter '{filter_}'; there are {', '.join(there) or 'none'}")
    chosen = {task: _choose(task, found, facts, metric, filter_) for task, found in scores.items()}
    if metric is not None and all(choice.metric != metric for choice in chosen.values()):
        there = dict.fromkeys(name for found in scores.values() for metrics in found.values() for name in metrics)
        raise ConfigError(f"no task has a metric '{metric}'; there are {', '.join(there) or 'none'}")
    return chosen


_Values = Mapping[str, Sequence[float]]


def _scores(documents: Sequence[Document]) -> dict[str, dict[str, list[float]]]:
    """By filter and metric, in the order of the file, the values of all documents; those of parts are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for document in documents:
        for (score, name), value in document.values.items():
            values = found.setdefault(name, {}).setdefault(score_name(score), [])
            if value is not None and score_name(score) == score:
                values.append(value)
    return found


def _choose(
    task: str, scores: Mapping[str, _Values], facts: TaskFacts, metric: str | None, filter_: str | None
) -> Chosen:
    through = filter_ if filter_ is not None and filter_ in scores else next(iter(scores), "none")
    there = scores.get(through, {})
    if metric is not None and metric in there and _inverts(task, metric, there, facts):
        raise ConfigError(
            f"task {task}: less of '{metric}' is better, and a gate reads the items' own metric the other way; choose "
            "another, and name this one in the policy's `margins` with `better: lower`"
        )
    points = [name for name in there if _from_0_to_1(there[name]) and not _inverts(task, name, there, facts)]
    units = [name for name in there if not _from_0_to_1(there[name])]
    if not points and not units:
        unread = "BLEU, chrF and TER are counted by sacrebleu, which the extra `engine` brings"
        listed = ", ".join(there) or f"none (was it run with --predict_only?; {unread})"
        raise ConfigError(f"task {task}: no metric carries a verdict; it has {listed}")
    picked = metric if metric is not None and metric in there else next(iter(points or units))
    others = [name if via == through else f"{name}/{via}" for via, names in scores.items() for name in names]
    others.remove(picked)
    score = picked if there[picked] else f"{picked}.0"
    return Chosen(picked, through, score, picked in units, tuple(others))


def _from_0_to_1(values: Sequence[float]) -> bool:
    return bool(values) and all(0 <= value <= 1 for value in values)


def _inverts(task: str, metric: str, there: _Values, facts: TaskFacts) -> bool:
    """Whether a gate without a rule would take a worse value for a better one."""
    lower = metric in _LOWER_IS_BETTER or (task, metric) in facts.lower_is_better
    return lower and _from_0_to_1(there[metric])
