"""lm-eval's documents of all arms as samples: one suite a task or group, the same metric through the same filter."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsvc.questions import hash_of
from evalsvc.recorded.declared import LOGLIKELIHOOD, coverage
from evalsvc.recorded.lmeval_answers import answer_text, chance_of, oddities, targets_are_indices, tie_among
from evalsvc.recorded.lmeval_choice import Chosen, choose_all
from evalsvc.recorded.lmeval_files import TaskFacts, find_samples, read_facts
from evalsvc.recorded.lmeval_rows import Document, read_documents, score_name
from evalsvc.store.records import NewSample, NewScore
from evalsvc.suites.likelihoods import all_zero
from evalsvc.suites.task_scores import left_of


@dataclass(frozen=True)
class ArmFiles:
    """What one arm's paths hold."""

    documents: dict[str, list[Document]]  # by task
    facts: TaskFacts
    notes: list[str]


@dataclass(frozen=True)
class Naming:
    """How the samples of a task are named.

    Attributes:
        golds: Whether the task's targets are indices of the right choices.
    """

    suite: str
    family: str
    cluster: str
    scoring_version: str
    golds: bool


def read_files(paths: Sequence[Path], unnamed: str) -> ArmFiles:
    """Reads one arm's samples files and the results files beside them; `unnamed` as in `find_samples`.

    Raises:
        ConfigError: As `find_samples` and `read_documents`.
    """
    files, notes = find_samples(paths, unnamed)
    return ArmFiles({file.task: read_documents(file) for file in files}, read_facts(files), notes)


def read_arms(
    paths: Mapping[str, Sequence[Path]], metric: str | None, filter_: str | None, unnamed: str = "task"
) -> tuple[dict[str, list[NewSample]], list[str]]:
    """Samples of each arm, and what a person must know of how they were read.

    Args:
        paths: By arm, the baseline first; samples files, or folders of them.
        metric: As `choose_all`.
        filter_: As `choose_all`.
        unnamed: The task of files whose names tell none.

    Raises:
        ConfigError: Files that cannot be used, or a task without a metric that can carry a verdict.
    """
    arms = {arm: read_files(mine, unnamed) for arm, mine in paths.items()}
    facts = _together([files.facts for files in arms.values()])
    tasks: dict[str, list[Document]] = {}
    for files in arms.values():
        for task, documents in files.documents.items():
            tasks.setdefault(task, []).extend(documents)
    golds = {task: targets_are_indices(documents) for task, documents in tasks.items()}
    chosen = choose_all(tasks, facts, metric, filter_)
    notes = [note for files in arms.values() for note in files.notes]
    notes += [choice.sentence(task) for task, choice in chosen.items()]
    samples: dict[str, list[NewSample]] = {}
    for arm, files in arms.items():
        samples[arm] = []
        for task, documents in files.documents.items():
            name = _naming(task, facts, [other.facts for other in arms.values()], files.facts, golds[task])
            samples[arm] += [_sample(document, chosen[task], name) for document in documents]
            notes += [f"{arm or '--again'}: {note}" for note in oddities(task, documents)]
    return samples, notes


def _naming(task: str, facts: TaskFacts, all_facts: Sequence[TaskFacts], mine: TaskFacts, golds: bool) -> Naming:
    version = mine.versions.get(task)
    known = version is not None and all(task in other.versions for other in all_facts)
    return Naming(
        suite=facts.suite(task),
        family=facts.families.get(task, task),
        cluster=facts.clusters.get(task, ""),
        scoring_version=f"lm-eval task {version}" if known else "lm-eval",
        golds=golds,
    )


def _together(found: Sequence[TaskFacts]) -> TaskFacts:
    """One naming for all arms; the first that names a task counts."""
    facts = TaskFacts()
    for other in reversed(found):
        facts.groups.update(other.groups)
        facts.families.update(other.families)
        facts.clusters.update(other.clusters)
        facts.lower_is_better.update(other.lower_is_better)
    return facts


def _sample(document: Document, chosen: Chosen, name: Naming) -> NewSample:
    value = document.values.get((chosen.score, chosen.filter))
    problem = "" if value is not None else f"lm-eval wrote no number for {chosen.metric} through {chosen.filter}"
    logprobs = document.logprobs if document.scored_by == LOGLIKELIHOOD else []
    if not all(map(math.isfinite, logprobs)):
        problem = "a log-probability is missing or not finite"
    elif document.scored_by == LOGLIKELIHOOD and not problem:
        problem = all_zero(logprobs) or ""
    scored_by_choice = document.scored_by == LOGLIKELIHOOD
    item = {
        "suite": name.suite,
        "item_id": f"{document.task}:{document.doc_id}",
        "family": name.family,
        "cluster": name.cluster,
        "metric": chosen.metric,
        "filter": chosen.filter,
        "chance": chance_of(document),
        "scored_by": document.scored_by,
    }
    settings = {"through": "prefill"} if scored_by_choice else document.settings
    prompt = document.prompt if document.requests else ""
    answer = "" if problem and scored_by_choice else answer_text(document, golds=name.golds)
    return NewSample(
        **item,
        item_hash=hash_of(["lm-eval", item, document.doc_hash, document.target]),
        request_hash=hash_of([document.scored_by, document.prompt_hash, prompt, [*map(_asked, document.requests)]]),
        settings_hash=hash_of(settings),
        rendered_hash=None,
        right_answer=None if scored_by_choice else document.target,
        through="prefill" if scored_by_choice else "",
        status="error" if problem else "scored",
        error_class="recorded" if problem else None,
        error_message=problem or None,
        prompt=prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False),
        answer=answer,
        **coverage(document.scored_by, document.texts if not scored_by_choice else None, document.settings),
        scoring_version=name.scoring_version,
        scores=() if problem else tuple(_scores(document, logprobs, answer)),
    )


def _scores(document: Document, logprobs: Sequence[float], answer: str) -> Iterator[NewScore]:
    tie = tie_among(logprobs)
    wrong = "wrong_choice" if document.scored_by == LOGLIKELIHOOD else "wrong_answer"
    left = {name: left_of(found, answer) for name, found in document.filtered.items()}
    for (metric, name), value in document.values.items():
        if value is not None:
            counts = score_name(metric) == metric
            error = tie or (wrong if counts and 0 <= value < 1 else None)
            yield NewScore(metric=metric, filter=name, value=value, error_class=error, filtered=left.get(name))


def _asked(request: tuple[Any, ...]) -> list[Any]:
    """A request without its prompt and without its settings, which have a hash of their own."""
    return [part for i, part in enumerate(request[1:]) if i or not isinstance(part, dict)]
