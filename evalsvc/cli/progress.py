"""Progress of a run on stderr."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn

from evalsvc.cli.common import one_line
from evalsvc.parallel import Counter
from evalsvc.tally import Doing

_SUITE_WIDTH = 12


class _Stderr(Console):
    """A console whose reader may leave; the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class _Rate(TextColumn):
    """Tokens of prompts and answers a second, since the arm began here."""

    def __init__(self) -> None:
        super().__init__("", markup=False, justify="right")

    def render(self, task: Task):
        doing: Doing = task.fields["doing"]
        rate = f"{doing.tokens / task.elapsed:,.0f} tok/s" if doing.tokens and task.elapsed else ""
        self.text_format = rate.replace("{", "")
        return super().render(task)


class TerminalReporter:
    """A bar for each arm where stderr is a terminal, a line for each arm everywhere.

    A bar shows the arm, the suite of its last sample, samples, tokens a second, time left, and the items lost (b) and
    gained (c) against the baseline so far.
    """

    def __init__(self) -> None:
        self._console = _Stderr(stderr=True, markup=False, emoji=False, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[suite]}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[flips]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """One line."""
        self._bars.console.print(one_line(text))

    def progress(self, label: str) -> Counter:
        """A bar that goes away when its arm is done."""
        task = self._bars.add_task(one_line(label), total=None, suite="", flips="", doing=Doing())

        def update(done: int, total: int, doing: Doing = Doing()) -> None:
            suite = one_line(doing.suite)
            self._bars.update(
                task,
                completed=done,
                total=total,
                visible=done < total,
                suite=suite if len(suite) <= _SUITE_WIDTH else suite[: _SUITE_WIDTH - 1] + "…",
                flips="" if doing.lost is None else f"b {doing.lost:,} c {doing.gained:,}",
                doing=doing,
            )

        return update
