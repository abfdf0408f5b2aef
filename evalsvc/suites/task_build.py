"""From task files and task names to lm-eval's own Task objects, and the refusal of what this version does not serve.

Everything heavy (lm_eval, datasets) is imported inside the functions.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError
from evalsvc.suites.task_yaml import TaskFile, find_task_files, local_data, read_task_file

FEWSHOT_SEED = 1234  # what lm-eval's own evaluator sets
GREEDY = {"do_sample": (False,), "temperature": (0, 0.0)}
ZERO_ONE = {
    "multiple_choice": ("acc", "acc_norm", "acc_bytes", "exact_match"),
    "generate_until": ("exact_match",),
}


def build_tasks(specs: Sequence[str | Path], base_dir: Path) -> list[Any]:
    """The tasks in the order named.

    Args:
        specs: Task files, folders of task files, or names that lm-eval knows.
        base_dir: Folder that relative paths start from.

    Raises:
        ConfigError: Something named is missing or wrong.
        CapabilityError: A task needs what this version does not serve.
    """
    from lm_eval.config.task import TaskConfig

    keys = [f.name for f in fields(TaskConfig)]
    tasks: dict[str, Any] = {}
    for spec in specs:
        for where, task in _named(spec, base_dir / spec, keys):
            if task.task_name in tasks:
                raise ConfigError(f"{where}: the task {task.task_name!r} is named twice")
            check_served(task, where)
            task.set_fewshot_seed(FEWSHOT_SEED)
            tasks[task.task_name] = task
    return list(tasks.values())


def _named(spec: str | Path, path: Path, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        for file in find_task_files(path):
            yield str(file), _from_file(read_task_file(file, keys))
    elif path.is_file():
        yield str(path), _from_file(read_task_file(path, keys))
    elif path.suffix in (".yaml", ".yml") or "/" in str(spec):
        raise ConfigError(f"{path}: no such task file or folder")
    else:
        yield from ((f"task {spec!r}", task) for task in _from_name(str(spec)))


def _from_file(file: TaskFile) -> Any:
    """Data in local files are read into memory through a cache that is thrown away: an edited file is always seen, and
    nothing is left beside it."""
    config = {key: value for key, value in file.config.items() if key != "tag"}
    local = local_data(file)
    where = file.at("dataset_kwargs") if local else str(file.path)
    with tempfile.TemporaryDirectory(prefix="evalsvc-datasets-") as cache, _quiet(offline=local is not None):
        if local is not None:
            config["dataset_kwargs"] = local | {"cache_dir": cache, "keep_in_memory": True}
        return _load(config, f"{where}: lm-eval cannot load the task", include_defaults=False)[0]


def _from_name(name: str) -> list[Any]:
    with _quiet(offline=False):
        return _load(name, f"task {name!r}: lm-eval cannot load it", include_defaults=True)


def _load(spec: Any, complaint: str, include_defaults: bool) -> list[Any]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=include_defaults)
    if isinstance(spec, str) and spec not in manager.all_tasks:
        near = get_close_matches(spec, manager.all_tasks, n=3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise ConfigError(f"no task file and no lm-eval task is called {spec!r}{hint}")
    try:
        return list(manager.load([spec])["tasks"].values())
    except EvalsvcError:
        raise
    except Exception as error:  # lm-eval and datasets raise whatever they met
        raise ConfigError(f"{complaint}: {_sentence(error)}") from error


def _sentence(error: BaseException) -> str:
    if any(isinstance(e, ConnectionError) or "Offline" in type(e).__name__ for e in _chain(error)):
        return "its data are not on this machine and cannot be reached over the network"
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _quiet(offline: bool) -> Iterator[None]:
    """Without progress bars and talk of retries and, for local data, without a look at the network; all as it was
    afterwards."""
    import datasets
    from datasets import config as settings

    hub = logging.getLogger("huggingface_hub")
    bars, was, level = datasets.are_progress_bars_disabled(), settings.HF_HUB_OFFLINE, hub.level
    datasets.disable_progress_bars()
    settings.HF_HUB_OFFLINE = was or offline
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = was
        hub.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def check_served(task: Any, where: str) -> None:
    """Refuses by name what would be answered or scored otherwise than lm-eval would.

    Raises:
        CapabilityError: Naming the key and its value.
    """
    from lm_eval.api.task import ConfigurableTask

    if not isinstance(task, ConfigurableTask):
        raise CapabilityError(f"{where}: a task written in Python ({type(task).__name__}) is not served")
    output = task.OUTPUT_TYPE
    if output not in ZERO_ONE:
        raise CapabilityError(f"{where}: output_type {output} is not served, only {' and '.join(ZERO_ONE)}")
    metrics = list(task._metric_fn_list)
    refusals = {
        "repeats": task.config.repeats != 1,
        "doc_to_image or doc_to_audio": getattr(task, "MULTIMODAL", False),
        "unsafe_code": task.config.unsafe_code,
        "several contexts for one document (doc_to_text is a choice's number)": task.multiple_input,
        "metric acc_mutual_info": "acc_mutual_info" in metrics,
    }
    for name, refused in refusals.items():
        if refused:
            raise CapabilityError(f"{where}: {name} is not served")
    if metrics[0] not in ZERO_ONE[output]:
        raise CapabilityError(
            f"{where}: the verdict reads the first metric of metric_list, which has to be right or wrong "
            f"({', '.join(ZERO_ONE[output])}), not {metrics[0]}"
        )
    if output == "generate_until":
        generation_limits(task, where)


def generation_limits(task: Any, where: str = "") -> tuple[tuple[str, ...], int]:
    """Stop strings and most new tokens of a generative task.

    Raises:
        ConfigError: A stop string or the limit cannot be used.
        CapabilityError: An argument asks for anything but greedy decoding.
    """
    from lm_eval.defaults import DEFAULT_MAX_GEN_TOKS

    given = dict(task.config.generation_kwargs or {})
    until = given.pop("until", None) or []
    limit = given.pop("max_gen_toks", DEFAULT_MAX_GEN_TOKS)
    for name, value in given.items():
        if value not in GREEDY.get(name, ()):
            raise CapabilityError(f"{where}: generation_kwargs {name}: {value!r} is not served, only greedy decoding")
    stop = [until] if isinstance(until, str) else until
    if not all(isinstance(text, str) and text for text in stop):
        raise ConfigError(f"{where}: generation_kwargs until: {until!r} is not a list of strings")
    if type(limit) is not int or limit < 1:
        raise ConfigError(f"{where}: generation_kwargs max_gen_toks: {limit!r} is not a number of tokens")
    return tuple(stop), limit
