"""What is wrong with a file of tool-call cases, found without a model."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evalsvc.engine.requests import GenerateResult
from evalsvc.suites.base import Item
from evalsvc.suites.findings import Found
from evalsvc.suites.toolcall.arguments import misfits
from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect, ToolCase
from evalsvc.suites.toolcall.matchers import Matcher, example, matches, plain
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.parsers.base import compact
from evalsvc.suites.toolcall.suite import ToolCallSuite

QUESTION, WORDS = "What do you mean?", "None of these tools fits."


def validate(path: Path, form: str) -> Found:
    """Renders every prompt and scores the right answer, an empty one and a wrong one of every case.

    Args:
        path: A case file.
        form: How calls are written.

    Raises:
        ConfigError: The file cannot be read as cases.
    """
    suite = ToolCallSuite(path.stem, path, form=form)
    items = suite.items()
    found = Found(len(items))
    prompts: dict[str, list[str]] = defaultdict(list)
    for item in items:
        request = suite.next_request(item, ())
        prompts[compact([request.prompt, request.tools] if request else [])].append(item.id)
        right = gold(item.payload, item.filter)
        found.unproven += right is None
        found.add(item.id, list(_problems(suite, item, right)), item.payload.faults)
    for same in prompts.values():
        if len(same) > 1:
            found.problems.append(f"{same[0]}: asks the same as {', '.join(same[1:])}")
    return found


def gold(case: ToolCase, form: str) -> list[str] | None:
    """A right answer for each turn, in a format; None where a pattern stands for it."""
    try:
        return [_answer(expect, form) for expect in case.expectations]
    except LookupError:
        return None


def _answer(expect: Expect, form: str) -> str:
    if isinstance(expect.no_call, str):
        return expect.no_call
    if expect.no_call is not None:
        return WORDS
    if expect.ask_back is not None:
        return QUESTION if expect.ask_back is True else f"{expect.ask_back[0]}?"
    return FORMATS[form].write(
        [
            Call(call.name, {key: example(m) for key, m in call.arguments.items() if not m.optional})
            for call in expect.wanted
        ]
    )


def _problems(suite: ToolCallSuite, item: Item, right: Sequence[str] | None) -> Iterator[str]:
    case: ToolCase = item.payload
    if right is not None:
        score = suite.score(item, [_said(text) for text in right])[0]
        if score.value < 1:
            yield f"the right answer scores 0 ({score.error_class}): {right[-1]!r:.200}"
        yield from unfit(case)
    first = [_said(text) for text in (right or [""])[:-1]]
    wrong = f"{WORDS} {QUESTION}" if case.expectations[-1].wanted else _wrong_call(case, item.filter)
    for name, text in (("an empty", ""), ("a wrong", wrong)):
        if suite.score(item, [*first, _said(text)])[0].value > 0:
            yield f"{name} answer scores 1: {text!r:.200}"
    for expect in case.expectations:
        for call in expect.wanted:
            for key, matcher in call.arguments.items():
                yield from (f"{call.name}.{key}: {problem}" for problem in ambiguous(matcher))


def _wrong_call(case: ToolCase, form: str) -> str:
    return FORMATS[form].write([Call(case.tools[0].name, {"unasked": "for"})])


def unfit(case: ToolCase) -> Iterator[str]:
    """Right calls that the case's own schemas refuse."""
    for expect in case.expectations:
        for call in expect.wanted:
            arguments = {key: example(m) for key, m in call.arguments.items() if not m.optional}
            for problem in misfits(Call(call.name, arguments), case.schemas[call.name]):
                place = "/".join(map(str, problem.path)) or "they"
                yield f"{call.name}: the schema refuses the right arguments: {place}: {problem.message}"


def ambiguous(matcher: Matcher) -> list[str]:
    """What a person can hardly have meant by a matcher."""
    found = []
    if matcher.any and not matcher.optional:
        found.append("takes any value: nothing is checked")
    values = matcher.one_of or []
    if any(matches(value, Matcher.model_validate({"exact": other})) for value, other in _pairs(values)):
        found.append("`one_of` names a value twice")
    texts = matcher.same_text if isinstance(matcher.same_text, list) else [matcher.same_text or "x"]
    if any(not plain(text, matcher.ignore) for text in texts):
        found.append("`same_text` has no characters that count")
    elif len({plain(text, matcher.ignore) for text in texts}) < len(texts):
        found.append("`same_text` names a text twice")
    inner = [*(matcher.object or {}).values(), *(matcher.items or ()), *(matcher.any_of or ())]
    return found + [problem for one in inner for problem in ambiguous(one)]


def _pairs(values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return ((one, other) for place, one in enumerate(values) for other in values[:place])


def _said(text: str) -> GenerateResult:
    return GenerateResult(
        id="",
        text=text,
        token_ids=(),
        prompt_tokens=0,
        prompt_sha256="",
        finish_reason="stop",
        stage_tokens={},
    )
