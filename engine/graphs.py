"""Decode steps as CUDA graphs: captured once for each bucket of requests, replayed from buffers that never move.

A graph replays launches with the addresses that they had. So a step's inputs are copied into buffers made once; fewer
requests than a bucket has rows are filled up with rows that read and write a page which belongs to nobody; and when a
tensor that the forward reads lies elsewhere than it did (pools of another size, weights of another set), all graphs are
dropped and captured again. The eager forward is the reference: a bucket's graph computes what it computes on the same
buffers, and a step of more requests than the largest bucket takes it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evalsvc.errors import EngineError

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_WARM_UPS = 2  # kernels are compiled, and libraries make what they keep, before a capture


class Replay(NamedTuple):
    """A captured forward: what runs it again, and where its result lies."""

    run: Callable[[], object]
    result: Tensor


@dataclass(frozen=True)
class Inputs:
    """One decode step: a token of each request. Shapes are (requests,) unless said.

    Attributes:
        token_ids: int64.
        positions: int64.
        slots: Where keys and values of the new tokens go, int64.
        lengths: Keys that each request reads, int32.
        pages: Their pages, -1 behind the last. Shape: (requests, columns), int32.
        expected: Tag of each of these pages; 0 where nothing compares them. Shape as `pages`.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    pages: Tensor
    expected: Tensor

    def rows(self, count: int) -> "Inputs":
        """The first rows of each, at the same addresses."""
        return Inputs(*(getattr(self, name)[:count] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Nobody:
    """The row that fills a bucket up: the first slot of a page that no request holds."""

    page: int
    slot: int
    tag: int


def empty_inputs(rows: int, columns: int, device: torch.device) -> Inputs:
    """Buffers for so many requests of so many pages."""
    long = {"dtype": torch.int64, "device": device}
    short = {"dtype": torch.int32, "device": device}
    wide = (rows, columns)
    return Inputs(
        torch.zeros(rows, **long),
        torch.zeros(rows, **long),
        torch.zeros(rows, **long),
        torch.zeros(rows, **short),
        torch.zeros(wide, **short),
        torch.zeros(wide, **short),
    )


def fill(buffers: Inputs, step: Inputs, nobody: Nobody) -> None:
    """Copies a step's rows to the buffers, and makes all rows behind them nobody's.

    Raises:
        EngineError: A request has more pages than the buffers have columns, or there are more requests than rows.
    """
    rows, columns = step.pages.shape
    room, most = buffers.pages.shape
    if rows > room or columns > most:
        raise EngineError(f"a decode step of {rows} requests of {columns} pages; its graph has {room} of {most}")
    for name in ("token_ids", "positions", "slots", "lengths"):
        getattr(buffers, name)[:rows].copy_(getattr(step, name))
    for name, rest in (("pages", -1), ("expected", 0)):
        buffer: Tensor = getattr(buffers, name)
        buffer[:rows, :columns].copy_(getattr(step, name))
        buffer[:rows, columns:].fill_(rest)
        buffer[rows:].fill_(rest)
    buffers.token_ids[rows:].zero_()
    buffers.positions[rows:].zero_()
    buffers.slots[rows:].fill_(nobody.slot)
    buffers.lengths[rows:].fill_(1)
    buffers.pages[rows:, 0].fill_(nobody.page)
    buffers.expected[rows:, 0].fill_(nobody.tag)


def capture_cuda(forward: Callable[[Inputs], Tensor], buffers: Inputs) -> Replay:
    """Captures a forward on the current GPU."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            forward(buffers)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward(buffers)
    return Replay(graph.replay, result)


class DecodeGraphs:
    """The graphs of one decode stage.

    Attributes:
        captures: How often a graph was captured.
        replays: How often one ran.
    """

    def __init__(
        self,
        forward: Callable[[Inputs], Tensor],
        watched: Callable[[], Iterable[Tensor]],
        nobody: Nobody,
        most_rows: int,
        columns: int,
        device: torch.device,
        capture: Callable[[Callable[[Inputs], Tensor], Inputs], Replay] = capture_cuda,
    ):
        """Captures nothing yet.

        Args:
            forward: Buffers of a bucket -> logits of its rows, by launches alone: it neither waits for the device nor
                asks it anything. Shape: (rows, vocabulary).
            watched: Every tensor that it reads and writes beside them, in one order.
            nobody: What fills rows up.
            most_rows: Most requests of a step.
            columns: Most pages of a request.
            device: Where buffers are.
            capture: How a forward is captured.
        """
        self._forward, self._watched, self._nobody, self._capture = forward, watched, nobody, capture
        self.buckets = tuple(b for b in BUCKETS if b < most_rows) + ((most_rows,) if most_rows <= BUCKETS[-1] else ())
        self._buffers = empty_inputs(self.buckets[-1], columns, device)
        self._graphs: dict[int, Replay] = {}
        self._addresses: tuple[int, ...] = ()
        self.captures = self.replays = 0

    def bucket(self, rows: int) -> int | None:
        """Rows of the graph that serves so many requests; None where only the eager forward does."""
        return next((bucket for bucket in self.buckets if bucket >= rows), None)

    def run(self, step: Inputs) -> Tensor:
        """Logits of a step. Shape: (requests, vocabulary); a copy, which later steps leave alone.

        Raises:
            EngineError: As `fill`.
        """
        rows = len(step.token_ids)
        bucket = self.bucket(rows)
        if bucket is None:
            return self._forward(step)
        addresses = tuple(tensor.data_ptr() for tensor in self._watched())
        if addresses != self._addresses:
            self.drop()
            self._addresses = addresses
        buffers = self._buffers.rows(bucket)
        fill(buffers, step, self._nobody)
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(self._forward, buffers)
            self.captures += 1
        graph = self._graphs[bucket]
        graph.run()
        self.replays += 1
        return graph.result[:rows].clone()

    def drop(self) -> None:
        """Forgets all graphs: the next steps capture them again."""
        self._graphs.clear()
