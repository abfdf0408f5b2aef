"""The public IFEval set as format cases: each prompt a user's message, each instruction a constraint.

They are scored as IFEval's own checkers score them.

Where ours departs from them:
- keywords are words, not patterns; IFEval's keyword checks look within words (`match: substring`), so do the imported;
- sentences and words in capitals are counted by rules of our own (`counting`), not by a tokenizer that is downloaded;
- a letter that is none (`#`, `!`) is counted as it is; IFEval's checker draws a random letter in its place;
- languages are detected with a fixed seed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evalsvc.complaints import first_mistake
from evalsvc.errors import ConfigError
from evalsvc.filekinds import PUBLIC_SET, first_object, refuse_another
from evalsvc.suites.formats.case import FormatCase
from evalsvc.suites.formats.validate import clashes
from evalsvc.suites.prompts import read_line
from evalsvc.yamlfile import text_of

MAX_TOKENS = 1280  # what lm-eval's task gives an answer
Arguments = Mapping[str, Any]
Made = dict[str, Any]
YES_NO_MAYBE = ["My answer is yes.", "My answer is no.", "My answer is maybe."]


@dataclass
class Imported:
    """What an import made.

    Attributes:
        cases: The cases, as a case file has them.
        left_out: Key of a prompt that cannot be mapped, and why.
        notes: Key of a prompt whose text and constraint name different numbers, and which; the constraint is kept.
    """

    cases: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def _bounds(relation: Any, count: Any) -> Made:
    if type(count) is not int:
        raise ValueError(f"{count!r} is not a number")
    if relation == "at least":
        return {"min": count}
    if relation == "less than" and count > 0:
        return {"max": count - 1}
    raise ValueError(f"the relation {relation!r} to {count} is not known")


def _counted(kind: str, count: str, relation: str) -> Callable[[Arguments], Made]:
    return lambda given: {"kind": kind, **_bounds(given[relation], given[count])}


def _at_least(kind: str, count: str) -> Callable[[Arguments], Made]:
    return lambda given: {"kind": kind, "min": given[count]}


def _exactly(kind: str, count: str, **more: Any) -> Callable[[Arguments], Made]:
    return lambda given: {"kind": kind, "min": given[count], "max": given[count], **more}


def _fixed(**made: Any) -> Callable[[Arguments], Made]:
    return lambda given: made


MAPPED: dict[str, Callable[[Arguments], Made]] = {
    "keywords:existence": lambda g: {"kind": "include", "words": g["keywords"], "match": "substring"},
    "keywords:forbidden_words": lambda g: {"kind": "exclude", "words": g["forbidden_words"]},
    "keywords:frequency": lambda g: {
        "kind": "frequency",
        "word": g["keyword"].strip(),
        "match": "substring",
        **_bounds(g["relation"], g["frequency"]),
    },
    "keywords:letter_frequency": lambda g: {
        "kind": "letter",
        "letter": g["letter"],
        **_bounds(g["let_relation"], g["let_frequency"]),
    },
    "language:response_language": lambda g: {"kind": "language", "language": g["language"]},
    "length_constraints:number_words": _counted("words", "num_words", "relation"),
    "length_constraints:number_sentences": _counted("sentences", "num_sentences", "relation"),
    "length_constraints:number_paragraphs": _exactly("paragraphs", "num_paragraphs", divider="***"),
    "length_constraints:nth_paragraph_first_word": lambda g: {
        "kind": "paragraph_start",
        "paragraph": g["nth_paragraph"],
        "of": g["num_paragraphs"],
        "word": g["first_word"],
    },
    "detectable_content:number_placeholders": _at_least("placeholders", "num_placeholders"),
    "detectable_content:postscript": lambda g: {"kind": "postscript", "marker": g["postscript_marker"]},
    "detectable_format:number_bullet_lists": _exactly("bullets", "num_bullets"),
    "detectable_format:constrained_response": _fixed(kind="choice", options=YES_NO_MAYBE, within=True),
    "detectable_format:number_highlighted_sections": _at_least("highlights", "num_highlights"),
    "detectable_format:multiple_sections": lambda g: {
        "kind": "sections",
        "word": g["section_spliter"].strip(),
        "min": g["num_sections"],
    },
    "detectable_format:json_format": _fixed(kind="json", around="fence", loose_reader=True),
    "detectable_format:title": _fixed(kind="title"),
    "combination:two_responses": _fixed(kind="two_responses"),
    "combination:repeat_prompt": lambda g: {"kind": "repeats", "text": g["prompt_to_repeat"]},
    "startend:end_checker": lambda g: {"kind": "ends_with", "text": g["end_phrase"], "any_case": True},
    "startend:quotation": _fixed(kind="quoted"),
    "change_case:capital_word_frequency": _counted("capital_words", "capital_frequency", "capital_relation"),
    "change_case:english_capital": _fixed(kind="casing", case="upper", language="en"),
    "change_case:english_lowercase": _fixed(kind="casing", case="lower", language="en"),
    "punctuation:no_comma": _fixed(kind="no_commas"),
}


def constraint_of(instruction: str, given: Arguments) -> Made:
    """The constraint of one instruction.

    Raises:
        ValueError: An instruction or an argument that is not known, in a sentence.
    """
    if instruction not in MAPPED:
        raise ValueError(f"the instruction {instruction} is not known")
    try:
        return MAPPED[instruction]({name: value for name, value in given.items() if value is not None})
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{instruction}: wrong or missing argument {error}") from error


def import_ifeval(path: Path) -> Imported:
    """Reads IFEval's `input_data.jsonl`.

    Raises:
        ConfigError: It cannot be read as such a file; names the line.
    """
    text, made = text_of(path), Imported()
    refuse_another(path, first_object(text), PUBLIC_SET)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            _add(made, *_row(line, f"{path}:{number}"))
    if not made.cases and not made.left_out:
        raise ConfigError(f"{path}: holds no prompts")
    return made


def _row(line: str, where: str) -> tuple[str, str, list[str], list[Arguments]]:
    row = read_line(line, where)
    try:
        key, prompt, names, given = str(row["key"]), row["prompt"], row["instruction_id_list"], row["kwargs"]
    except (KeyError, TypeError) as error:
        keys = "key, prompt, instruction_id_list, kwargs"
        raise ConfigError(f"{where}: not a prompt of IFEval: a JSON object with the keys {keys}") from error
    lists = isinstance(names, list) and isinstance(given, list) and len(names) == len(given)
    if not lists or not isinstance(prompt, str) or not all(isinstance(entry, dict) for entry in given):
        raise ConfigError(f"{where}: instruction_id_list and kwargs are two lists of one length")
    return key, prompt, list(map(str, names)), given


def _add(made: Imported, key: str, prompt: str, names: Sequence[str], given: Sequence[Arguments]) -> None:
    try:
        constraints = [constraint_of(name, arguments) for name, arguments in zip(names, given, strict=True)]
        messages = [{"role": "user", "content": prompt}]
        case = {"id": f"ifeval-{key}", "family": "ifeval", "messages": messages, "max_tokens": MAX_TOKENS}
        case |= {"constraints": constraints}
        faults = list(clashes(FormatCase.model_validate(case)))
    except ValidationError as error:
        made.left_out[key] = first_mistake(error, FormatCase)
    except ValueError as error:
        made.left_out[key] = str(error)
    else:
        made.cases.append(case | ({"faults": faults} if faults else {}))
        unsaid = [_unsaid(prompt, constraint) for constraint in constraints]
        if any(unsaid):
            made.notes[key] = "; ".join(note for note in unsaid if note)


def _unsaid(prompt: str, constraint: Made) -> str | None:
    """A note where the prompt names numbers of words or sentences, and none is the constraint's."""
    kind = constraint["kind"]
    asked = int(constraint.get("min", constraint.get("max", 0)))
    said = {int(n.replace(",", "")) for n in re.findall(rf"(\d[\d,]*)\+?[ -]+{kind.rstrip('s')}", prompt.lower())}
    if kind not in ("words", "sentences") or not said or {asked - 1, asked, asked + 1} & said:
        return None
    numbers = ", ".join(map(str, sorted(said)))
    return (
        f"the prompt says {numbers} {kind}, the constraint {'at least' if 'min' in constraint else 'at most'} {asked}"
    )
