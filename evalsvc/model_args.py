"""lm-eval's `--model_args`, when a value of them holds commas and `=`.

lm-eval splits the text at every comma, which tears a plan apart. Here a value goes on until the name of the next
option; the whole is handed on as one JSON object, which lm-eval takes as it is.
"""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from evalsvc.errors import ConfigError

FREE = ("plan",)  # values in which `, name=` is not an option's


def split_options(text: str, options: Sequence[str]) -> dict[str, Any]:
    """Options from `name=value,name=value`.

    Numbers, `true`, `false` and `none` are read as such; quotes around a value are taken off.

    Args:
        text: As written after `--model_args`.
        options: The names there are.

    Raises:
        ConfigError: Text before the first option, an option named twice, or one that does not exist.
    """
    text = text.strip()
    marks = list(re.finditer(rf"(?:^|,)\s*({'|'.join(options)})\s*=", text))
    if text and (not marks or marks[0].start() > 0):
        check_name(text.partition("=")[0].strip(), options)
    found: dict[str, Any] = {}
    for mark, end in zip(marks, [*(after.start() for after in marks[1:]), len(text)], strict=False):
        name, value = mark[1], text[mark.end() : end].strip().rstrip(",")
        foreign = None if name in FREE else re.search(r",\s*([A-Za-z_]+)\s*=", value)
        if foreign:
            check_name(foreign[1], options)
        if name in found:
            raise ConfigError(f"--model_args names {name} twice")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def check_name(name: str, options: Sequence[str]) -> None:
    """Refuses an option that does not exist.

    Raises:
        ConfigError: With the option that may have been meant.
    """
    if name in options:
        return
    near = get_close_matches(name, options, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(options)}"
    if name in ("w", "kv"):
        hint = "in a configuration file write model_args as a mapping, so that the plan stays whole"
    raise ConfigError(f"--model_args: no option {name!r}; {hint}")


def prepared(argv: Sequence[str], model: str, options: Sequence[str]) -> list[str]:
    """Command-line arguments as lm-eval has to see them when the model is ours.

    Where no device is named lm-eval would say `cuda:0`, so `auto` is named (a configuration file, too, may name one:
    then it is left alone).

    Args:
        argv: Without the program's name.
        model: Our model's name; arguments for another one are left as they are.
        options: Names of our model's options.
    """
    found, waiting = list[str](), list(argv)
    if _flag(argv, "--model", "-M") != model:
        return waiting
    while waiting:
        head = waiting.pop(0)
        flag, equals, value = head.partition("=")
        if flag not in ("--model_args", "-a"):
            found.append(head)
            continue
        values = [value] if equals else []
        while not equals and waiting and not waiting[0].startswith("-"):
            values.append(waiting.pop(0))
        found += [flag, *(values if values and values[0].lstrip().startswith("{") else [_json(values, options)])]
    if not any(_flag(argv, name) for name in ("--device", "--config", "-C")):
        found += ["--device", "auto"]
    return found


def _json(values: Sequence[str], options: Sequence[str]) -> str:
    found: dict[str, Any] = {}
    for value in values:
        found |= split_options(value, options)
    return json.dumps(found)


def _flag(argv: Sequence[str], *names: str) -> str | None:
    for here, after in zip(argv, [*argv[1:], None], strict=True):
        flag, equals, value = here.partition("=")
        if flag in names:
            return value if equals else after
    return None
