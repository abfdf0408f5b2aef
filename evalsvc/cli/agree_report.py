"""What `evalsvc agree` prints."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.agreement import Agreement, Compared, Share
from evalsvc.cli.common import one_line

_BEFORE, _AFTER = 30, 120  # characters of an answer that are shown about where it parts
_COLUMNS = ("suite / family", "same", "%", "95 %", "A/A %", "JSON", "calls", "end", "words", "length")
_LEGEND = (
    "same: answers that are the baseline's character for character, with their share and its 95 % interval; A/A %: "
    "the baseline's own share when it runs again. JSON: JSON answers of the same value. calls: answers that "
    "call tools, with the same calls. end: same finish reason. "
    "words: median of words in common before answers part. length: tokens over the baseline's."
)


def render_agreement(
    baseline: str,
    candidate: str,
    rows: Sequence[Agreement],
    beside: Mapping[tuple[str, str | None], Agreement],
    kl: Mapping[str, Mapping[str, Any]],
    examples: Sequence[Compared],
) -> RenderableType:
    """A line a suite and family, what the columns mean, and examples. Stored text is never markup."""
    if not rows:
        return Text(f"neither {one_line(baseline)} nor {one_line(candidate)} holds a generated answer")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in _COLUMNS:
        first = column == _COLUMNS[0]
        table.add_column(column, justify="left" if first else "right", overflow="fold", no_wrap=not first)
    for row in rows:
        other = beside.get((row.suite, row.family))
        table.add_row(*(Text(cell) for cell in _cells(row, other)))
    notes = [Text(one_line(note)) for row in rows for note in _notes(row)]
    notes += [Text(one_line(_kl_line(stage, found))) for stage, found in kl.items()]
    shown = [Text(line) for one in examples for line in _lines(one)]
    head = Text(f"{one_line(candidate)} against {one_line(baseline)}")
    return Group(head, table, Text(_LEGEND), *notes, *shown)


def _cells(row: Agreement, other: Agreement | None) -> Iterator[str]:
    text = row.same_text
    yield one_line(row.suite) if row.family is None else f"  {one_line(row.family)}"
    yield f"{text.count:,}/{text.n:,}"
    yield _percent(text.share)
    yield "-" if text.low is None or text.high is None else f"{100 * text.low:.0f}-{100 * text.high:.0f}"
    yield "-" if other is None else _percent(other.same_text.share)
    yield _counts(row.same_json)
    yield _counts(row.same_calls)
    yield _counts(row.same_finish)
    words = row.parting["words"]
    yield "-" if words is None else f"{words:g}"
    yield "-" if row.length_ratio is None else f"{row.length_ratio:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _counts(share: Share) -> str:
    return f"{share.count:,}/{share.n:,}" if share.n else "-"


def _kl_line(stage: str, found: Mapping[str, Any]) -> str:
    return (
        f"KL along the baseline's answers to own prompts, {stage.removeprefix('answers_')}: mean "
        f"{found['kl_mean']:.3g}, largest {found['kl_max']:.3g} nats over {found['tokens']:,} tokens; same likeliest "
        f"token at {_percent(found['same_top1'])} %"
    )


def _notes(row: Agreement) -> Iterator[str]:
    if row.family is None and row.unanswered:
        yield f"{row.suite}: {row.unanswered:,} prompts have no answer in one of the arms, and are left out"
    if row.family is None and row.unequal:
        yield f"{row.suite}: {row.unequal:,} prompts were not asked alike in the two arms, and are left out"


def _lines(one: Compared) -> Iterator[str]:
    ours, theirs, parting = one.baseline, one.candidate, one.parting
    assert parting is not None
    repeat = f" repeat {ours.repeat}" if ours.repeat else ""
    tokens = "" if parting.tokens is None else f", {parting.tokens:,} tokens"
    alike = f"{parting.characters:,} characters, {parting.words:,} words{tokens} alike"
    yield ""
    yield one_line(f"{ours.suite}/{ours.item_id}{repeat}: {alike}; ended {ours.finish_reason}, {theirs.finish_reason}")
    yield f"  baseline:  {_excerpt(ours.answer, parting.characters)}"
    yield f"  candidate: {_excerpt(theirs.answer, parting.characters)}"


def _excerpt(answer: str, at: int) -> str:
    """The answer about a place, as a JSON string: line ends and control characters are seen and not obeyed."""
    start, end = max(at - _BEFORE, 0), at + _AFTER
    cut = json.dumps(answer[start:end], ensure_ascii=False)
    return one_line(f"{'…' * (start > 0)}{cut}{'…' * (end < len(answer))}")
