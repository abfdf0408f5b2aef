"""The public Berkeley Function Calling Leaderboard (BFCL v4, single turn) as cases of ours.

Its answers list the values allowed of each argument, an empty text among them where it may be left out. Texts are
compared as its checker does: without case, white space and the characters `,./-_*^`. Numbers of parameters that it
calls float may be whole; integers may not be fractions. Answers that a case's own schema refuses stay right, and the
case says so as its `faults`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evalsvc.complaints import first_mistake
from evalsvc.errors import ConfigError
from evalsvc.filekinds import PUBLIC_SET, first_object, refuse_another
from evalsvc.suites.prompts import read_line
from evalsvc.suites.toolcall.cases import ToolCase
from evalsvc.suites.toolcall.matchers import plain
from evalsvc.suites.toolcall.validate import unfit
from evalsvc.yamlfile import text_of

IGNORED = ",./-_*^"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
ANSWERS = "possible_answer"


def import_bfcl(path: Path) -> list[dict[str, Any]]:
    """Cases of a file `BFCL_v4_NAME.json`, or of all in a folder; answers lie in the folder `possible_answer` beside.

    Raises:
        ConfigError: Naming file and line: nothing there, not BFCL, no answer for a case.
    """
    files = sorted(path.glob("BFCL_v*.json")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path}: holds no file of BFCL; they are called BFCL_v4_CATEGORY.json")
    return [case for file in files for case in _cases(file)]


def _cases(file: Path) -> Iterator[dict[str, Any]]:
    refuse_another(file, first_object(text_of(file)), PUBLIC_SET)
    beside = file.parent / ANSWERS / file.name
    answers = {row.get("id"): (where, row) for where, row in _rows(beside)} if beside.is_file() else None
    family = file.stem.partition("_v")[2].partition("_")[2] or file.stem
    if answers is None and "irrelevance" not in family:
        raise ConfigError(f"{file}: its answers are missing; BFCL has them in {beside}")
    for where, row in _rows(file):
        if answers is not None and row.get("id") not in answers:
            raise ConfigError(f"{where}: no answer for {row.get('id')!r} in {beside}")
        wanted = None if answers is None else answers[row["id"]][1].get("ground_truth")
        try:
            case = _case(family, row, wanted)
            faults = list(unfit(ToolCase.model_validate(case)))
            yield case | ({"faults": faults} if faults else {})
        except ValidationError as error:
            raise ConfigError(f"{where}: makes no case: {first_mistake(error, ToolCase)}") from error
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(f"{where}: not a single-turn BFCL case ({type(error).__name__}: {error})") from error


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text_of(file).split("\n"), 1):
        if not line.strip():
            continue
        row = read_line(line, f"{file}:{number}")
        if not isinstance(row, dict):
            raise ConfigError(f"{file}:{number}: not a JSON object")
        yield f"{file}:{number}", row


def _case(family: str, row: Mapping[str, Any], answers: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    if len(row["question"]) != 1:
        raise ValueError(f"{len(row['question'])} turns")
    tools = [_tool(function) for function in row["function"]]
    parameters = {function["name"]: function["parameters"]["properties"] for function in row["function"]}
    calls = [
        {
            "name": name,
            "arguments": {
                key: _argument(allowed, parameters.get(name, {}).get(key, {})) for key, allowed in said.items()
            },
        }
        for answer in answers or ()
        for name, said in answer.items()
    ]
    return {
        "id": row["id"],
        "family": family,
        "messages": row["question"][0],
        "tools": tools,
        "expect": {"calls": calls} if calls else {"no_call": True},
    }


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "parameters": to_schema(function["parameters"]),
    }


def to_schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of a parameter as BFCL describes one: `dict`, `float` and `tuple` are types there."""
    made = {key: value for key, value in parameter.items() if key != "optional"}
    kind = TYPES.get(parameter.get("type", ""), parameter.get("type"))
    made.pop("type", None)
    if kind is not None:
        made = {"type": kind, **made}
    if isinstance(made.get("properties"), Mapping):
        made["properties"] = {key: to_schema(value) for key, value in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), Mapping):
            made[key] = to_schema(made[key])
    return made


def _argument(allowed: Sequence[Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The matcher of an argument. An empty text says that it may be left out."""
    values = [value for value in allowed if value != ""]
    optional = {"optional": True} if len(values) < len(allowed) else {}
    return (_matcher(values, parameter) if values else {"exact": ""}) | optional


def _matcher(values: Sequence[Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    kind = parameter.get("type")
    if all(isinstance(value, str) for value in values):
        texts = {plain(value, IGNORED): value for value in reversed(values)}
        if "" in texts:  # a text of nothing but ignored characters
            return {"one_of": list(dict.fromkeys(values))}
        return {"same_text": list(texts.values())[::-1], "ignore": IGNORED}
    if len(values) > 1:
        return {"any_of": [_matcher([value], parameter) for value in values]}
    value = values[0]
    if isinstance(value, dict):
        inner = parameter.get("properties", {})
        return {"object": {key: _argument(_listed(said), inner.get(key, {})) for key, said in value.items()}}
    if isinstance(value, list):
        return {"items": [_matcher([entry], parameter.get("items") or {}) for entry in value]}
    if kind in ("float", "number") and isinstance(value, int | float) and not isinstance(value, bool):
        return {"number": value}
    whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return {"exact": int(value) if whole else value}


def _listed(said: Any) -> Sequence[Any]:
    return said if isinstance(said, list) else [said]
