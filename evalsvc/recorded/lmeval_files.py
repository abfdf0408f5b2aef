"""Which files of an lm-eval results folder count, and what its results file says of the tasks."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?)\.jsonl")


@dataclass(frozen=True, kw_only=True)
class SamplesFile:
    """One task's samples; `task` and `date` are empty where the file's name does not tell them."""

    path: Path
    task: str
    date: str

    @classmethod
    def of(cls, path: Path) -> "SamplesFile":
        """Reads the name that lm-eval gave."""
        found = _SAMPLES.fullmatch(path.name)
        if found:
            return cls(path=path, task=found["task"], date=found["date"])
        task = path.stem.removeprefix("samples_") if path.name.startswith("samples_") else ""
        return cls(path=path, task=task, date="")


@dataclass(frozen=True)
class TaskFacts:
    """What results files say, empty where there is none.

    Attributes:
        groups: Task or group to the group above it.
        families: Task to the `family` in its metadata.
        clusters: Task to the `prefix` in its metadata: the few-shot prefix that all its items share.
        lower_is_better: (task, metric) of metrics whose low values are good.
        versions: Task to its versions in the files read.
    """

    groups: dict[str, str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    lower_is_better: set[tuple[str, str]] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)

    def suite(self, task: str) -> str:
        """The outermost group of a task, or the task itself."""
        seen = {task}
        while task in self.groups and self.groups[task] not in seen:
            task = self.groups[task]
            seen.add(task)
        return task


def find_samples(paths: Iterable[Path], unnamed: str) -> tuple[list[SamplesFile], list[str]]:
    """The samples files of one arm: files as named, and of each folder the newest of each task.

    Args:
        paths: Files and folders.
        unnamed: The task of a file whose name tells none; arms whose files have names of their own share it.

    Returns:
        The files by task, and a sentence for every folder in which older files were left out.

    Raises:
        ConfigError: A folder without samples or with those of several models, or one task in two files.
    """
    found: list[SamplesFile] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            newest, note = _newest(path)
            found += newest
            notes += note
        else:
            found.append(SamplesFile.of(path))
    found = [file if file.task else replace(file, task=unnamed) for file in found]
    by_task: dict[str, SamplesFile] = {}
    for file in found:
        earlier = by_task.setdefault(file.task, file)
        if earlier is not file:
            raise ConfigError(
                f"task {file.task} stands in {earlier.path} and {file.path}; give one, or name them samples_TASK.jsonl"
            )
    return sorted(found, key=lambda file: file.task), notes


def _newest(folder: Path) -> tuple[list[SamplesFile], list[str]]:
    files = [SamplesFile.of(path) for path in sorted(folder.rglob("samples_*.jsonl"))]
    if not files:
        raise ConfigError(f"{folder}: holds no samples_*.jsonl; run lm_eval with --log_samples, or name a file")
    models = sorted({file.path.parent for file in files})
    if len(models) > 1:
        shown = ", ".join(str(model) for model in models[:4])
        raise ConfigError(f"{folder}: holds samples in {len(models)} folders ({shown}); name the one of this arm")
    by_task: dict[str, list[SamplesFile]] = defaultdict(list)
    for file in files:
        by_task[file.task].append(file)
    newest = [max(same, key=lambda file: file.date) for same in by_task.values()]
    older = len(files) - len(newest)
    several = [file for file in newest if len(by_task[file.task]) > 1]
    left = f"{older} older file{'s' * (older > 1)} left out; read {', '.join(file.path.name for file in several)}"
    return newest, [f"{folder}: {left}"] if older else []


def read_facts(files: Sequence[SamplesFile]) -> TaskFacts:
    """What the results files beside these samples say; a task's own run counts (the same date).

    Raises:
        ConfigError: A results file cannot be read.
    """
    facts = TaskFacts()
    for path in sorted({file.path.with_name(f"results_{file.date}.json") for file in files if file.date}):
        if path.is_file():
            _add(facts, _document(path))
    return facts


def _document(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path}: is no JSON; was it written to its end? Without it, give the samples files"
        ) from None
    return found if isinstance(found, dict) else {}


def _add(facts: TaskFacts, document: Mapping[str, Any]) -> None:
    for group, members in _dict(document, "group_subtasks").items():
        facts.groups.update({str(member): group for member in members if member != group})
    for task, better in _dict(document, "higher_is_better").items():
        values = better if isinstance(better, dict) else {}
        facts.lower_is_better.update((task, metric) for metric, high in values.items() if high is False)
    for task, version in _dict(document, "versions").items():
        facts.versions[task] = str(version)
    for task, config in _dict(document, "configs").items():
        metadata = _dict(config, "metadata") if isinstance(config, dict) else {}
        for key, kept in (("family", facts.families), ("prefix", facts.clusters)):
            if metadata.get(key):
                kept[task] = str(metadata[key])


def _dict(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
