"""What every measurement needs: settings, a clock, facts of the machine, and rows of the printed table."""

import gc
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.table import Table

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What the command line asked.

    Attributes:
        model: Directory of the model.
        data: Folder of the public data sets.
        work: Folder that is thrown away afterwards.
        threads: torch's threads, for both sides.
        device: Where the engine is asked to run.
        quick: Fewer items: a trial, whose ratios are not the ones to quote.
        full: lm-eval's hf on every item, too.
    """

    model: Path
    data: Path
    work: Path
    threads: int
    device: str
    quick: bool
    full: bool

    def count(self, usual: int, quick: int, full: int) -> int:
        """How many items lm-eval's hf is asked."""
        return full if self.full else quick if self.quick else usual


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What is compared.
        value: Measured.
        target: What was asked, or empty.
        reached: None where there is no target.
        note: On what, and anything to know.
    """

    what: str
    value: str
    target: str = ""
    reached: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Spent:
    """Seconds of wall clock, and of processor time over all threads (less moved by other load on the machine)."""

    wall: float
    cpu: float

    def __truediv__(self, count: float) -> "Spent":
        return Spent(self.wall / count, self.cpu / count)

    def over(self, other: "Spent") -> str:
        """This much more than another, by both clocks."""
        return f"{self.wall / other.wall:.1f}x (CPU time {self.cpu / other.cpu:.1f}x)"

    def __str__(self) -> str:
        return f"{self.wall:.3g} s (CPU {self.cpu:.3g} s)"


def clocked(work: Callable[[], T]) -> tuple[Spent, T]:
    """What some work took, and its result. Garbage of earlier work is collected before."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu), result


def at_least(what: str, ratio: Spent, base: Spent, target: float, note: str) -> Row:
    """A row whose ratio has to reach a target."""
    reached = ratio.wall / base.wall >= target
    return Row(what, ratio.over(base), f">= {target:g}x", reached, note)


def at_most(what: str, ratio: Spent, base: Spent, target: float, note: str) -> Row:
    """A row whose ratio has to stay under a target."""
    reached = ratio.wall / base.wall <= target
    return Row(what, ratio.over(base), f"<= {target:g}x", reached, note)


def spread(count: int, total: int) -> list[int]:
    """`count` indices spread evenly over `total`."""
    count = min(count, total)
    return [i * total // count for i in range(count)]


def machine(threads: int) -> dict[str, str]:
    """Facts without which a figure says nothing."""
    from importlib.metadata import version

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "processor": f"{name or platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{threads} of torch, both sides",
        "load": f"{load} before the run",
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lm-eval")),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none but the processor",
    }


def table(title: str, rows: list[Row]) -> Table:
    """Rows as rich prints them."""
    made = Table(title=title, title_justify="left", show_lines=True)
    for column in ("what", "measured", "target", "on"):
        made.add_column(column, overflow="fold")
    for row in rows:
        colour = {None: "", True: "[green]", False: "[red]"}[row.reached]
        word = {None: "", True: "reached", False: "missed"}[row.reached]
        target = f"{row.target}\n{colour}{word}" if row.target else ""
        made.add_row(row.what, f"{colour}{row.value}", target, row.note)
    return made


def forget(engine: Any) -> None:
    """Empties the engine's prefix caches, so that a run begins cold."""
    for name in engine.specs:
        arm = engine.arm(name)
        for stage in (arm.prefill, arm.decode):
            stage.cache.drop_all()
