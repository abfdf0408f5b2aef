"""What an import says at its end."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.recorded.load import Recorded
from evalsvc.store.recording import Stored
from evalsvc.store.records import NewSample


def render_recorded(found: Stored, recorded: Recorded) -> RenderableType:
    """What an import read, and where it is."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for column in ("arm", "samples", "errors", "right", "plan"):
        number = column in ("samples", "errors", "right")
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for arm in recorded.arms:
        values = [s.value for sample in arm.samples for s in sample.scores if (s.metric, s.filter) == _main(sample)]
        in_points = bool(values) and all(0 <= value <= 1 for value in values)
        right = f"{100 * sum(values) / len(values):.1f} %" if in_points else "-"
        mark = " (baseline)" if arm is recorded.arms[0] else ""
        errors = sum(sample.status == "error" for sample in arm.samples)
        plan = arm.plan or "not declared"
        cells = (f"{found.run_id}:{arm.name}{mark}", f"{len(arm.samples):,}", f"{errors:,}", right, plan)
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    lines = [f"run {found.run_id}" if found.new else f"run {found.run_id} holds this already: nothing was stored"]
    if found.again_id is not None:
        lines.append(f"run {found.again_id}: its A/A")
    lines += recorded.notes
    if recorded.arms[0].proof_status is None:
        lines.append("no plan is declared: nobody can say which formats differ, nor whether the answers met them")
    lines.append("recorded arms have no proof: a policy accepts them with `proof: declared`")
    others = [
        f"evalsvc compare {found.run_id}:{recorded.arms[0].name} {found.run_id}:{a.name}" for a in recorded.arms[1:]
    ]
    return Group(table, *(Text(one_line(line)) for line in (*lines, *others[:1])))


def _main(sample: NewSample) -> tuple[str, str]:
    return sample.metric, sample.filter
