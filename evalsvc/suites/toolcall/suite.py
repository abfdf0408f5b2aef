"""Tool-call cases of one file as a suite."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsvc.engine.requests import Answer, GenerateRequest
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Item, Score
from evalsvc.suites.cases import CaseSuite
from evalsvc.suites.prompts import answer_text, request_for
from evalsvc.suites.toolcall.calls import Parsed
from evalsvc.suites.toolcall.cases import ToolCase
from evalsvc.suites.toolcall.conversation import following, opening
from evalsvc.suites.toolcall.parsers import FORMATS, NAMES, NATIVE, detect
from evalsvc.suites.toolcall.parsers import native as own_list
from evalsvc.suites.toolcall.scoring import Judged, judge


class ToolCallSuite(CaseSuite[ToolCase]):
    """Cases of one file. The verdict reads `correct`; the filter of every score is the format that was read.

    Metrics: `correct` (read strictly), `correct_lenient`, `triggered`, `trigger_right`, and where they apply
    `schema_valid` (a call was begun), `function_right` and `arguments_right` (calls are right). Over several turns a
    conversation goes on while its answers are right, and all of them have to be.

    Args:
        name: The suite's name.
        path: The case file.
        limit: Most items of each family.
        levels: Levels of the cases to take; None for all.
        form: How calls are written; `auto` takes what the chat template teaches, and plain JSON for text prompts.
        template: The model's chat template, where it is known.

    Raises:
        ConfigError: The file is wrong, or the format is not known.
    """

    scoring_version = "toolcall-3"

    def __init__(
        self,
        name: str,
        path: Path,
        limit: int | None = None,
        levels: Sequence[str] | None = None,
        *,
        form: str = "auto",
        template: str | None = None,
    ) -> None:
        if form not in ("auto", *NAMES):
            raise ConfigError(f"suite {name}: no format {form!r}; known: auto, {', '.join(NAMES)}")
        self._form, self._template = form, template
        super().__init__(name, path, ToolCase, limit, levels)

    def check(self, case: ToolCase, where: str) -> None:
        """Refuses a conversation whose format nobody says."""
        if self._form == "auto" and case.messages is not None and self._template is None:
            raise ConfigError(
                f"{where}: the chat template that says how calls are written is not at hand; "
                f"give the suite `format:` (one of {', '.join(NAMES)})"
            )

    def form_of(self, case: ToolCase) -> str:
        """How a case's calls are written."""
        if self._form != "auto":
            return self._form
        return "json" if case.messages is None else detect(self._template or "") or "json"

    def _item(self, case: ToolCase) -> Item:
        return replace(super()._item(case), filter=self.form_of(case))

    def next_request(self, item: Item, answers: Sequence[Answer]) -> GenerateRequest | None:
        """The request of the next turn; None once an answer is wrong or no turn is left."""
        case: ToolCase = item.payload
        if case.messages is None:
            return None if answers else request_for(item, case, self._prefixes)
        if len(answers) > len(case.turns):
            return None
        messages = opening(case, item.filter)
        for answer, turn, expect in zip(answers, case.turns, case.expectations, strict=False):
            parsed, judged = self._read(case, item.filter, answer, expect)
            if judged.error is not None:
                return None
            messages += following(answer_text([answer]), parsed, judged.order or (), turn, item.filter)
        tools = () if item.filter == "json" else tuple(tool.wrapped for tool in case.tools)
        request = request_for(item, case, self._prefixes)
        return replace(request, prompt=messages, tools=tools, keep_special=item.filter not in ("json", NATIVE))

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """All metrics, `correct` first. Any text has scores, however hostile."""
        case: ToolCase = item.payload
        expectations = case.expectations
        turns = [
            self._read(case, item.filter, answer, expect)[1]
            for answer, expect in zip(answers, expectations, strict=False)
        ]
        whole = len(turns) == len(expectations)
        error = next((turn.error for turn in turns if turn.error is not None), None)
        values = {
            "correct_lenient": whole and all(turn.correct_lenient for turn in turns),
            "triggered": any(turn.triggered for turn in turns),
            "trigger_right": all(turn.trigger_right for turn in turns),
            "schema_valid": _all([turn.schema_valid for turn in turns]),
            "function_right": _all([turn.function_right for turn in turns]),
            "arguments_right": _all([turn.arguments_right for turn in turns]),
        }
        first = Score(metric="correct", value=float(whole and error is None), filter=item.filter, error_class=error)
        return [
            first,
            *(Score(metric=m, value=float(v), filter=item.filter) for m, v in values.items() if v is not None),
        ]

    def _read(self, case: ToolCase, form: str, answer: Answer, expect: Any) -> tuple[Parsed, Judged]:
        text, schemas = answer_text([answer]), case.schemas
        if form == NATIVE:
            listed = getattr(answer, "tool_calls", None)
            strict, lenient = (own_list.read(listed, text, lenient=loose) for loose in (False, True))
        else:
            strict, lenient = (FORMATS[form].parse(text, schemas, lenient=loose) for loose in (False, True))
        finish = str(getattr(answer, "finish_reason", "stop"))
        return strict, judge(strict, lenient, expect, schemas, finish, native=form == NATIVE)


def _all(values: Sequence[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return all(known) if known else None
