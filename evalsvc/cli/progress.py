"""Progress of a run on stderr."""

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evalsvc.cli.common import one_line


class _Stderr(Console):
    """A console whose reader may leave; the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class TerminalReporter:
    """A bar for each arm where stderr is a terminal, a line for each arm everywhere."""

    def __init__(self) -> None:
        self._console = _Stderr(stderr=True, markup=False, emoji=False, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
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

    def progress(self, label: str) -> Callable[[int, int], None]:
        """A bar that goes away when its arm is done."""
        task = self._bars.add_task(one_line(label), total=None)

        def update(done: int, total: int) -> None:
            self._bars.update(task, completed=done, total=total, visible=done < total)

        return update
