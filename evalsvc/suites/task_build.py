"""From task files and names of tasks, groups and tags to lm-eval's own Task and Group objects.

Everything heavy (lm_eval, datasets) is imported inside the functions.
"""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError, EvalsvcError
from evalsvc.suites.task_check import check_served
from evalsvc.suites.task_data import LocalData, replaced_data
from evalsvc.suites.task_yaml import TaskFile, find_task_files, local_data, names_beside, read_task_file

FEWSHOT_SEED = 1234  # what lm-eval's own evaluator sets


@dataclass
class Built:
    """What the names of a suite stand for.

    Attributes:
        tasks: lm-eval's Task objects by name, in the order named.
        groups: lm-eval's Group objects by name.
        data: Local files of lm-eval's own tasks.
    """

    tasks: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    data: LocalData = field(default_factory=LocalData)

    def add(self, task: Any, where: str) -> None:
        """Takes a task. Raises ConfigError for one that is there already."""
        if task.task_name in self.tasks:
            raise ConfigError(f"{where}: the task {task.task_name!r} is named twice")
        self.tasks[task.task_name] = task

    def widest_group(self, task: str) -> int:
        """Tasks of the largest group that a task belongs to; 0 where it belongs to none."""
        sizes = [[t.task_name for t in group.get_all_tasks()] for group in self.groups.values()]
        return max((len(names) for names in sizes if task in names), default=0)


def build_tasks(
    specs: Sequence[str | Path],
    base_dir: Path,
    *,
    num_fewshot: int | None = None,
    allow_code: bool = False,
    data_files: Mapping[str, Any] | None = None,
) -> Built:
    """The tasks in the order named, and the groups that they came in.

    Args:
        specs: Task or group files, folders of them, or names that lm-eval knows (tasks, groups, tags).
        base_dir: Folder that relative paths start from.
        num_fewshot: In place of what the tasks say, but for those that say 0.
        allow_code: Whether Python that task files name may run. lm-eval's own tasks are lm-eval's own code.
        data_files: For lm-eval's own tasks: local files in place of the hub's, by task and split.

    Raises:
        ConfigError: Something named is missing or wrong.
        CapabilityError: A task needs what this version does not serve.
    """
    built = Built(data=LocalData(data_files or {}, base_dir))
    for spec in specs:
        path = base_dir / spec
        before = set(built.tasks)
        if path.exists():
            _Folder(path, built, allow_code).build()
        elif path.suffix in (".yaml", ".yml") or "/" in str(spec):
            raise ConfigError(f"{path}: no such task file or folder")
        else:
            _by_name(str(spec), built)
        for name in built.tasks.keys() - before:
            check_served(built.tasks[name], f"{spec}: task {name!r}")
    built.data.refuse_unread(built.tasks)
    for task in built.tasks.values():
        if task.config.num_fewshot != 0:
            task.config.num_fewshot = num_fewshot if num_fewshot is not None else task.config.num_fewshot or 0
        task.set_fewshot_seed(FEWSHOT_SEED)
    return built


class _Folder:
    """One file, or all files of a folder; a group finds its tasks beside it, else among lm-eval's own."""

    def __init__(self, path: Path, built: Built, allow_code: bool) -> None:
        from lm_eval.config.task import TaskConfig

        self._path, self._built, self._code = path, built, allow_code
        self._keys = [f.name for f in fields(TaskConfig)]
        self._mine: set[str] = set()

    def build(self) -> None:
        """Adds everything to what is built."""
        paths = find_task_files(self._path) if self._path.is_dir() else [self._path]
        files = [self._read(path) for path in paths]
        for file in files:
            if not file.is_group:
                self._task(file)
        beside = {_name(file): file.path for file in files}
        if not self._path.is_dir() and files[0].is_group:
            beside = names_beside(files[0].path) | beside
        for file in files:
            if file.is_group:
                self._group(file, beside, ())

    def _read(self, path: Path) -> TaskFile:
        return read_task_file(path, self._keys, allow_code=self._code)

    def _task(self, file: TaskFile) -> Any:
        task = _from_file(file)
        self._built.add(task, str(file.path))
        self._mine.add(task.task_name)
        return task

    def _group(self, file: TaskFile, beside: dict[str, Path], above: tuple[str, ...]) -> Any:
        from lm_eval.api.group import Group

        name = file.config["group"]
        if name in above:
            raise ConfigError(f"{file.at('task')}: the group {name!r} contains itself")
        if name in self._built.groups:
            return self._built.groups[name]
        try:
            group = Group.from_config({key: value for key, value in file.config.items() if key != "tag"})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{file.at('aggregate_metric_list')}: {error}") from error
        for member in file.config["task"]:
            if member in self._mine:
                group.add(self._built.tasks[member])
            elif member not in beside:
                for child in _by_name(member, self._built):
                    group.add(child)
            elif (inner := self._read(beside[member])).is_group:
                group.add(self._group(inner, beside, (*above, name)))
            else:
                group.add(self._task(inner))
        self._built.groups[name] = group
        return group


def _name(file: TaskFile) -> str:
    return file.config["group" if file.is_group else "task"]


def _from_file(file: TaskFile) -> Any:
    """Data in local files are read into memory through a cache that is thrown away: an edited file is always seen, and
    nothing is left beside it."""
    config = {key: value for key, value in file.config.items() if key != "tag"}
    local = local_data(file)
    where = file.at("dataset_kwargs") if local else str(file.path)
    with tempfile.TemporaryDirectory(prefix="evalsvc-datasets-") as cache_dir, _quiet(offline=local is not None):
        if local is not None:
            config["dataset_kwargs"] = local | {"cache_dir": cache_dir, "keep_in_memory": True}
        loaded = _load(config, f"{where}: lm-eval cannot load the task", _manager(include_defaults=False))
    (task,) = loaded["tasks"].values()
    return task


def _by_name(name: str, built: Built) -> list[Any]:
    """Adds what lm-eval knows by this name; returns the task, the group, or the tasks of the tag."""
    with tempfile.TemporaryDirectory(prefix="evalsvc-datasets-") as cache_dir, _quiet(offline=False):
        manager = _manager(include_defaults=True)
        if name not in manager.all_tasks:
            near = get_close_matches(name, manager.all_tasks, n=3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise ConfigError(f"no task file and no lm-eval task is called {name!r}{hint}")
        with replaced_data(manager, built.data, cache_dir):
            loaded = _load(name, f"task {name!r}: lm-eval cannot load it", manager)
    for task in loaded["tasks"].values():
        built.add(task, f"task {name!r}")
    built.groups.update(loaded.get("groups") or {})
    return [built.groups[name]] if name in built.groups else list(loaded["tasks"].values())


@cache
def _manager(include_defaults: bool) -> Any:
    """lm-eval's index; that of all its tasks takes some ten seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=include_defaults)


def _load(spec: Any, complaint: str, manager: Any) -> Any:
    try:
        return manager.load([spec])
    except EvalsvcError:
        raise
    except (Exception, SystemExit) as error:  # lm-eval, datasets and a user's functions raise whatever they met
        raise ConfigError(f"{complaint}: {_sentence(error)}") from error


def _sentence(error: BaseException) -> str:
    chain = list(_chain(error))
    if any(isinstance(e, ConnectionError) or "Offline" in type(e).__name__ for e in chain):
        return (
            "its data are not on this machine and cannot be reached over the network; give local files, in a task file "
            "(`dataset_path: json`, `dataset_kwargs: {data_files: ...}`) or as the suite's `data_files`"
        )
    if any(type(e).__name__ == "DatasetNotFoundError" for e in chain):
        first = str(error).strip().split("\n")[0]
        return f"neither the hub nor this machine has its data ({first})"
    if type(error).__name__ == "DatasetGenerationError" and error.__cause__ is not None:
        error = error.__cause__  # it says itself only that an error occurred
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _quiet(offline: bool) -> Iterator[None]:
    """Without progress bars, talk of retries and of defaults and, for local data, without a look at the network; all
    as it was afterwards."""
    import datasets
    from datasets import config as settings

    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "lm_eval")]
    levels = [logger.level for logger in loggers]
    bars, was = datasets.are_progress_bars_disabled(), settings.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    settings.HF_HUB_OFFLINE = was or offline
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = was
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
