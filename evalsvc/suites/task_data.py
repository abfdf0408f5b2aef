"""Local files in place of the hub's for tasks that lm-eval knows by name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError
from evalsvc.suites.task_yaml import absolute_files

READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class LocalData:
    """Files by task and split.

    Attributes:
        files: As the suite names them.
        base_dir: Folder that relative paths start from.
    """

    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    base_dir: Path = Path()

    def config(self, task: str, cache_dir: str) -> dict[str, Any]:
        """What the task's configuration says of its data instead.

        Raises:
            ConfigError: A file is missing, broken, or of a kind that nothing reads.
        """
        where = f"data_files of {task!r}"
        named = dict(self.files[task])
        kinds = {READERS.get(Path(file).suffix) for file in named.values()}
        if len(kinds) != 1 or None in kinds:
            raise ConfigError(f"{where}: its files have to be all of one kind: {', '.join(READERS)}")
        kwargs = {"data_files": absolute_files(named, self.base_dir, where)}
        return {
            "dataset_path": kinds.pop(),
            "dataset_name": None,
            "dataset_kwargs": kwargs | {"cache_dir": cache_dir, "keep_in_memory": True},
        }

    def refuse_unread(self, tasks: Iterable[str]) -> None:
        """Raises ConfigError for files of a task that the suite does not have."""
        stray = sorted(set(self.files) - set(tasks))
        if stray:
            raise ConfigError(f"data_files names {stray[0]!r}, which is no task of the suite")


@contextmanager
def replaced_data(manager: Any, data: LocalData, cache_dir: str) -> Iterator[None]:
    """Lets lm-eval's index say for a while that tasks have local data; all as it was afterwards."""
    from lm_eval.tasks._index import Entry
    from lm_eval.tasks._yaml_loader import load_yaml

    index = manager.task_index
    before = {task: index[task] for task in data.files if task in index and index[task].yaml_path is not None}
    try:
        for task, entry in before.items():
            config = load_yaml(entry.yaml_path, resolve_func=True)
            if "class" in config:
                raise ConfigError(f"data_files of {task!r}: a task written in Python reads its own data")
            index[task] = Entry(task, entry.kind, None, config | data.config(task, cache_dir), entry.tags)
        yield
    finally:
        index.update(before)
