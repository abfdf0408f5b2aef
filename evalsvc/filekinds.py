"""Which of the files that people write one is, so that the wrong one is called by its name."""

import json
from pathlib import Path

from evalsvc.errors import ConfigError

EXPERIMENT, POLICY, JOBS, CASES = "an experiment file", "a policy file", "a jobs file", "a case file"
PUBLIC_SET = "a file of a public set"
_TOLD_BY = {
    EXPERIMENT: {"arms", "suites"},
    JOBS: {"jobs", "channels"},
    POLICY: {"margin_points", "guard_points", "margins"},
}
_USE = {
    EXPERIMENT: "`evalsvc run` takes it",
    JOBS: "`--jobs` takes it",
    POLICY: "`--policy` and `run --gate` take it",
    CASES: "name it as `cases` of a suite in an experiment file, such as `evalsvc init` writes",
}


def kind_of(data: object) -> str | None:
    """What a file is, by its keys; None where they tell nothing."""
    if isinstance(data, list):
        return CASES if data and isinstance(data[0], dict) and "id" in data[0] else None
    if not isinstance(data, dict):
        return None
    if "id" in data and {"prompt", "input", "messages"} & data.keys():
        return CASES
    return next((kind for kind, keys in _TOLD_BY.items() if keys & data.keys()), None)


def refuse_another(path: str | Path, data: object, wanted: str) -> None:
    """Refuses a file of another kind than is wanted, where its keys tell of which it is.

    Raises:
        ConfigError: Names both kinds and what takes the file.
    """
    found = kind_of(data)
    if wanted and found is not None and found != wanted:
        raise ConfigError(f"{path}: is {found}, and {wanted} is wanted here; {_USE[found]}")


def first_object(text: str) -> object:
    """The JSON object on the first line that is not blank, as of a file of JSON lines; None where there is none."""
    first = next((line for line in text.split("\n", 100) if line.strip()), "")
    try:
        return json.loads(first) if first.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
