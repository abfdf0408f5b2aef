"""What `evalsvc rescore` prints."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.rescoring import SuiteReport

_SHOWN = 5  # items of one kind that are named; --json names all


def render_rescored(run_id: int, reports: Sequence[SuiteReport]) -> RenderableType:
    """One line an arm and suite, then what was left and why."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for column in ("arm", "suite", "scoring version", "scored", "changed", "errors"):
        numeric = column in ("scored", "changed", "errors")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for r in reports:
        counts = (f"{r.added:,}", f"{r.changed:,}", f"{r.errors:,}")
        versions = " > ".join([", ".join(sorted(r.before))] * bool(r.before - {r.version}) + [r.version or "none"])
        table.add_row(*(Text(one_line(cell)) for cell in (r.arm, r.suite, versions, *counts)))
    nothing = not any(report.added or report.switches for report in reports)
    said = f"run {run_id}: nothing to do, every score is of its suite's scoring version" if nothing else ""
    left = [Text(one_line(line)) for report in reports for line in _left(report)]
    return Group(*([Text(said)] if nothing and not left else []), table, *left)


def _left(report: SuiteReport) -> Iterator[str]:
    for why, count in Counter(report.left.values()).items():
        names = [name for name, other in report.left.items() if other == why][:_SHOWN]
        more = f" and {count - len(names)} more" if count > len(names) else ""
        yield f"{report.arm} {report.suite}: not scored again: {', '.join(names)}{more} ({why})"
