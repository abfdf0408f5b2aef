"""Decisions as tables for a terminal. Stored names are `Text`, never markup."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.decision import Decision, legend
from evalsvc.row import Row, format_p

STYLES = {"PASS": "bold green", "REGRESSED": "bold red", "INCONCLUSIVE": "bold yellow", "INVALID": "bold magenta"}
WIDE = 118  # columns from which remarks and factors fit beside the numbers


def render_decisions(decisions: Sequence[Decision], *, families: bool = False) -> RenderableType:
    """Arms by suites with b, c, n, drop, p, bound, margin, verdict and the differing factors that each row met.

    Args:
        decisions: One a candidate, in the order to show.
        families: Whether each suite is followed by its families, which are described without a verdict, and the
            sentence by signals that decide nothing.

    Returns:
        Fits 80 columns; from 118 columns on the factors stand in the same table, below that in one of their own.
    """
    return _Decisions(decisions, families)


class _Decisions:
    def __init__(self, decisions: Sequence[Decision], families: bool) -> None:
        self.decisions = decisions
        self.families = families

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        yield _numbers_table(self.decisions, self.families, wide=wide)
        if not wide:
            yield _factors_table(self.decisions)
        for decision in self.decisions:
            yield _because(decision)
            if self.families:
                yield from _beside(decision)
        for text in dict.fromkeys(line for decision in self.decisions for line in _instrument(decision)):
            yield Text(text)
        yield Text(legend(self.decisions), "dim")


def _numbers_table(decisions: Sequence[Decision], families: bool, *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("arm / suite", overflow="fold", min_width=12)
    table.add_column("verdict", no_wrap=True)
    for name in ("b", "c", "n", "drop", "p", "bound", "margin"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("factors met", overflow="fold")
    for decision in decisions:
        table.add_section()
        table.add_row(_arm_name(decision), _word(decision.verdict, decision.severity or "", wide))
        for row in decision.rows:
            if row.verdict is not None or families:
                table.add_row(*_cells(row, wide), *([Text(_short_factors(row))] if wide else []))
    return table


def _cells(row: Row, wide: bool) -> list[Text]:
    name = Text(_name(row), style="" if row.scope != "family" else "dim")
    remark = "blind" if row.blind else row.remark
    word = _word(row.verdict, remark, wide)
    if row.scope == "family" and row.verdict is None:
        word = Text("blind" if row.blind else row.remark if row.counted else "not counted", "dim")
    p = row.short_p
    values = [
        f"{row.lost:,}",
        f"{row.gained:,}",
        f"{row.n:,}",
        "+" * bool(row.drop and row.drop > 0) + row.amount(row.drop),
        "" if p is None else format_p(p).replace("< ", "<"),
        row.amount(row.upper),
        row.limit,
    ]
    return [name, word, *(Text(value, style="dim" if row.scope == "family" or row.blind else "") for value in values)]


def _name(row: Row) -> str:
    if row.scope == "pooled":
        return "  pooled"
    if row.scope == "suite":
        return f"  {one_line(row.suite)}"
    if row.scope == "metric":
        return f"  {one_line(row.label.removeprefix('suite '))}"
    return f"    {one_line(row.family)}" + (f" ({one_line(row.through)})" if row.through else "")


def _word(word: str | None, remark: str, one_row: bool = True) -> Text:
    text = Text(word or "", style=STYLES.get(word or "", ""))
    if remark:
        text.append(f"{' ' if one_row else chr(10)}{one_line(remark)}", style="not bold dim")
    return text


def _arm_name(decision: Decision) -> Text:
    text = Text(one_line(decision.candidate.name), style="bold")
    if decision.candidate.injected:
        text.append(" [injected]", style="bold magenta")
    return text


def _short_factors(row: Row) -> str:
    """`prefill w kv, decode kv`: the plan's own words."""
    parts = [factor.split(".") for factor in row.factors_met]
    grouped = groupby(parts, key=lambda part: part[0])
    return ", ".join(
        f"{stage} {' '.join('w' if p[1] == 'weights' else p[1] for p in group)}" for stage, group in grouped
    )


def _factors_table(decisions: Sequence[Decision]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("arm", overflow="fold")
    table.add_column("differs in", overflow="fold")
    table.add_column("met by", overflow="fold")
    for decision in decisions:
        suites = [row for row in decision.rows if row.scope in ("suite", "metric")]
        same = "nothing" if any(decision.candidate.stages.values()) else "not declared"
        factors = decision.differing_factors or (same,)
        for index, factor in enumerate(factors):
            met = ", ".join(dict.fromkeys(one_line(row.suite) for row in suites if factor in row.factors_met))
            known = met or ("" if factor == same else "no suite")
            table.add_row(_arm_name(decision) if index == 0 else Text(""), Text(factor), Text(known))
    return table


def _because(decision: Decision) -> Text:
    text = Text()
    text.append(one_line(decision.candidate.address), style="bold")
    text.append(" ")
    word, _, rest = decision.sentence.partition(":")
    text.append(one_line(word), style=STYLES.get(decision.verdict, ""))
    text.append(f":{one_line(rest) and ' ' + one_line(rest)}")
    further = decision.reasons[1:] if decision.verdict == "INVALID" else ()
    said = [line for line in decision.beside_the_sentence if line in further or line not in decision.reasons]
    for line in said:
        text.append(f"\n  · {one_line(line)}", style="dim")
    return text


def _beside(decision: Decision) -> Iterator[Text]:
    """Signals that decide nothing: of choices' log-likelihoods, and of next-token distributions."""
    for signal in decision.signals:
        yield Text(f"  signal, no verdict: {one_line(signal.in_words)}", style="dim")
    for stage, found in decision.probe.items():
        yield Text(
            f"  KL to the baseline's next-token distributions, {one_line(stage)}: mean {found['kl_mean']:.4f}, "
            f"largest {found['kl_max']:.4f} nats over {found['tokens']:,} tokens",
            style="dim",
        )


def _instrument(decision: Decision) -> list[str]:
    """What the numbers were measured with: how much the baseline can lose at all, and its own noise."""
    lines = []
    right = [
        f"{row.baseline_right:,} of {row.n:,} {'in all' if row.scope == 'pooled' else one_line(row.suite)}"
        for row in decision.rows
        if row.scope in ("pooled", "suite") and row.n and row.baseline_right is not None
    ]
    if right:
        lines.append(f"right in the baseline {one_line(decision.baseline.address)}: {', '.join(right)}")
    aa = decision.aa
    if aa is None:
        return [*lines, "A/A: none was run; the instrument's own noise is unknown"]
    of = "the baseline" if aa.of in ("", decision.baseline.address) else aa.of
    against = f"{of} against itself " if aa.n else ""
    return [*lines, one_line(f"A/A {aa.address}: {against}{aa.in_words}")]


def render_row_sentence(row: Row, alpha: float) -> RenderableType:
    """One row as its word and its numbers in a sentence."""
    text = _word(row.verdict, "")
    if row.remark:
        text.append(f" ({row.remark})")
    text.append(f": {row.numbers(alpha)}")
    if row.more_items:
        text.append(f"; about {row.more_items:,} more items would decide")
    return Group(text)
