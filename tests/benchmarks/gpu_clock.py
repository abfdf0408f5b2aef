"""Clocks for a GPU, and rows of figures that a dry run leaves empty."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .common import Row


@dataclass(frozen=True)
class Bench:
    """Where and how.

    Attributes:
        device: `cuda`, or `cpu` in a dry run.
        dry: Each piece of work is done once and no figure is given.
        bandwidth: TB/s that a copy reaches.
    """

    device: str
    dry: bool
    bandwidth: float

    def median_ms(self, work: Callable[[], object], graph: bool = True) -> float:
        """Median of many runs with a cold second-level cache, in milliseconds of the device; NaN in a dry run.

        A graph of the work is what runs: a launch from Python takes longer than many a kernel, and would be measured.
        Without `graph` that is, too: for work that waits for the device, as twins in torch do.
        """
        if self.dry:
            work()
            return float("nan")
        import triton

        replay = self._captured(work) if graph else work
        found: Any = triton.testing.do_bench(replay, warmup=10, rep=40, return_mode="median")
        return float(found)

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # kernels are compiled before a capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def wall(self, work: Callable[[], object]) -> float:
        """Seconds until the device has finished some work; NaN in a dry run."""
        self.finish()
        start = time.perf_counter()
        work()
        self.finish()
        return float("nan") if self.dry else time.perf_counter() - start

    def finish(self) -> None:
        """Waits for the device."""
        if not self.dry:
            torch.cuda.synchronize()

    def device_seconds(self, work: Callable[[], object]) -> float:
        """Seconds in which the device computed during some work; NaN in a dry run, or if the profiler saw nothing."""
        if self.dry:
            work()
            return float("nan")
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as found:
            work()
            self.finish()
        seen = sum(event.self_device_time_total for event in found.key_averages()) / 1e6
        return seen or float("nan")

    def row(
        self, what: str, value: float, unit: str, aim: float | None = None, most: bool = False, note: str = ""
    ) -> Row:
        """A figure, and whether it reaches its aim: at least, or with `most` at most."""
        target = "" if aim is None else f"{'<=' if most else '>='} {aim:g} {unit}"
        if self.dry:
            return Row(what, "dry: not measured", target)
        if math.isnan(value):
            return Row(what, "not measured", target, None if aim is None else False, note)
        reached = None if aim is None else (value <= aim if most else value >= aim)
        return Row(what, f"{value:.4g} {unit}", target, reached, note)
