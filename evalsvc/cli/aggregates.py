"""What lm-eval would report of a run's lm-eval suites: by task and group, from the stored scores."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.questions import Question
from evalsvc.store import queries
from evalsvc.store.scores import item_scores
from evalsvc.store.session import Store
from evalsvc.suites.base import Score

Aggregates = dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]


def lm_eval_aggregates(asked: Iterable[Question], store: Store, run_id: int) -> Aggregates:
    """By suite, arm, scoring stage (empty for generations) and task or group the values of `METRIC,FILTER`.

    Of an item's repeats the first counts, as in lm-eval. Items without a score are left out.
    """
    suites: dict[str, Any] = {question.suite.name: question.suite for question in asked}
    found: Aggregates = {}
    for name, suite in suites.items():
        if not hasattr(suite, "aggregate"):
            continue
        for arm in queries.arms(store, run_id):
            for through, items in item_scores(store, arm.id, name, suite.scoring_version).items():
                scores = {
                    item: [Score(metric=metric, filter=filter_, value=value) for metric, filter_, value in values]
                    for item, values in items.items()
                }
                found.setdefault(name, {}).setdefault(arm.name, {})[through] = suite.aggregate(scores)
    return found


def group_lines(aggregates: Aggregates, groups: Iterable[str]) -> Text:
    """One line for each metric of a group: its value in every arm, in the metric's own units."""
    wanted = set(groups)
    lines: dict[str, list[str]] = {}
    for suite, arms in aggregates.items():
        for arm, throughs in arms.items():
            for through, names in throughs.items():
                for name in wanted & names.keys():
                    for metric, value in names[name].items():
                        stage = f" through {through}" if len(throughs) > 1 else ""
                        lines.setdefault(f"{suite}: {name} {metric}{stage}", []).append(f"{arm} {value:.4f}")
    return Text("\n".join(one_line(f"{what}: {', '.join(values)}") for what, values in sorted(lines.items())), "dim")


def groups_of(asked: Iterable[Question]) -> set[str]:
    """Names of all groups of lm-eval suites."""
    suites: dict[str, Any] = {question.suite.name: question.suite for question in asked}
    return {group for suite in suites.values() for group in getattr(suite, "groups", ())}
