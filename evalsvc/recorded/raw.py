"""Raw answers of others, an endpoint's own lists of calls among them, scored by the cases that they answer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from evalsvc.engine.requests import GenerateRequest, GenerateResult
from evalsvc.errors import ConfigError
from evalsvc.listed import stored_text
from evalsvc.questions import Question, hash_of, item_fields, request_hash
from evalsvc.recorded.declared import GENERATION, coverage
from evalsvc.recorded.outcomes import Line, checked, once, repeat_of, text_of
from evalsvc.recorded.rows import read_rows
from evalsvc.runner import new_scores
from evalsvc.store.records import NewSample, Turn
from evalsvc.suites.base import Item, Suite
from evalsvc.suites.degenerate import prompt_text

COLUMNS = ("item", "answer", "tool_calls", "finish_reason", "repeat", "error")
FINISHED = ("stop", "length", "tool_calls")  # any other end is no answer
_SETTINGS = hash_of(["recorded"])
_ONE_ANSWER = "its conversation goes on after this answer, and only single answers are read"


def lists_calls(paths: Sequence[Path]) -> bool:
    """Whether a file's first row has an endpoint's own list of calls, or a place for one."""
    return any("tool_calls" in row for path in paths for _, row in [next(read_rows(path), (0, {}))])


def read_answers(paths: Sequence[Path], suite: Suite) -> list[NewSample]:
    """The samples of one arm: a row an answer, and an error for each case that no row answers.

    Args:
        paths: Tables with the columns `item` and `finish_reason`, `answer` or `tool_calls`, and what `COLUMNS` names.
        suite: Whose cases they answer.

    Raises:
        ConfigError: A column, a cell or a file that cannot be used, a case that does not exist, or one answered twice;
            names file and line.
    """
    questions = {item.id: _question(suite, item) for item in suite.items()}
    rows = ((line, row) for path in paths for line, row in checked(path, _check_columns, _absent))
    found = once((line, _sample(line, row, questions)) for line, row in rows)
    missing = questions.keys() - {sample.item_id for sample in found}
    return found + [_unanswered(question, "no row answers it") for id_, question in questions.items() if id_ in missing]


def _question(suite: Suite, item: Item) -> Question:
    request = suite.next_request(item, ())
    if not isinstance(request, GenerateRequest):
        raise ConfigError(f"suite {suite.name}: item {item.id} is not answered by text")
    return Question(suite, item, request, "")


def _check_columns(line: Line, columns: Sequence[str], absent: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in COLUMNS]
    for name in ("item", "finish_reason"):
        if name not in (*columns, *absent):
            near = get_close_matches(name, unknown, n=1)
            ends = f"; it says how an answer ended: {', '.join(FINISHED)}" if name == "finish_reason" else ""
            hint = f"; is it '{near[0]}'?" if near else ends
            there = ", ".join(columns)
            raise ConfigError(f"{line.path}: raw answers need a column '{name}'; the file has {there}{hint}")
    if unknown:
        hint = "; with --cases the cases say what is right" if unknown[0] == "correct" else ""
        raise ConfigError(f"{line.path}: unknown column '{unknown[0]}'; known: {', '.join(COLUMNS)}{hint}")


def _absent(row: Mapping[str, Any]) -> Sequence[str]:
    """What a row of JSON may leave out."""
    return ("answer", "tool_calls", "error", *(["finish_reason"] if row.get("error") else []))


def _sample(line: Line, row: Mapping[str, Any], questions: Mapping[str, Question]) -> NewSample:
    name = text_of(line, row, "item")
    question = questions.get(name)
    if question is None:
        raise ConfigError(f"{line}: no case is called '{name[:80]}'; the cases name their answers by `id`")
    repeat, message, calls = repeat_of(line, row), text_of(line, row, "error"), _calls(line, row)
    if message:
        return _unanswered(question, message, repeat)
    finish = text_of(line, row, "finish_reason")
    if finish not in FINISHED:
        return _unanswered(question, f"the answer ended with finish reason {finish[:60]!r}", repeat)
    if row.get("answer") is None and calls is None:
        raise ConfigError(f"{line}: has neither `answer` nor `tool_calls`; where there is none, say why in `error`")
    answer = GenerateResult(
        id=name,
        text=text_of(line, row, "answer"),
        tool_calls=calls,
        token_ids=(),
        prompt_tokens=0,
        prompt_sha256="",
        finish_reason=finish,  # pyright: ignore[reportArgumentType]
        stage_tokens={},
    )
    goes_on = question.suite.next_request(question.item, [answer]) is not None
    scores, problem = ((), _ONE_ANSWER) if goes_on else new_scores(question, [answer])
    stored = stored_text(answer)
    return NewSample(
        **_about(question, repeat),
        status="scored" if problem is None else "error",
        error_class=None if problem is None else "scoring",
        error_message=problem,
        answer=stored,
        finish_reason=finish,
        **coverage(GENERATION, [stored]),
        scores=scores,
        turns=(Turn(None, None, ()),),
    )


def _unanswered(question: Question, why: str, repeat: int = 0) -> NewSample:
    return NewSample(**_about(question, repeat), status="error", error_class="recorded", error_message=why)


def _about(question: Question, repeat: int) -> dict[str, Any]:
    request = question.request
    assert isinstance(request, GenerateRequest)
    return {
        **item_fields(question.suite.name, question.item),
        "scored_by": GENERATION,
        "request_hash": request_hash(request),
        "settings_hash": _SETTINGS,
        "rendered_hash": None,
        "repeat": repeat,
        "prompt": prompt_text(request.prompt),
        "scoring_version": question.suite.scoring_version,
    }


def _calls(line: Line, row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """The list of calls; None where there is none, and for an empty cell."""
    said = row.get("tool_calls")
    if isinstance(said, str):
        try:
            said = json.loads(said) if said.strip() else None
        except (ValueError, RecursionError):
            raise ConfigError(f"{line}: tool_calls is no JSON: {said[:60]!r}") from None
    if said is None:
        return None
    if not isinstance(said, list) or not all(isinstance(call, dict) for call in said):
        raise ConfigError(
            f"{line}: tool_calls is no list of objects, as the OpenAI interface has it: {str(said)[:60]!r}"
        )
    return tuple(said)


def unanswered(samples: Mapping[str, Sequence[NewSample]]) -> Iterator[str]:
    """A sentence for each arm that leaves cases without an answer, or with one that cannot be scored."""
    for arm, found in samples.items():
        bad = [sample for sample in found if sample.status == "error"]
        if bad:
            first = f"{bad[0].item_id}: {bad[0].error_message}"
            yield f"{arm or '--again'}: {len(bad):,} of {len(found):,} cases have no score, first {first}"
