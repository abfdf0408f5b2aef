"""Decode steps as CUDA graphs: captured once for each bucket of requests, replayed from buffers that never move.

A graph replays launches with the addresses that they had. So a step's inputs are copied into buffers made once; fewer
requests than a bucket has rows are filled up with rows that read and write a page which belongs to nobody; and when a
tensor that the forward reads lies elsewhere than it did (pools of another size, weights of another set), all graphs are
dropped and captured again. The eager forward is the reference: a bucket's graph computes what it computes on the same
buffers, and a step of more requests than the largest bucket takes it.

A bucket is so many rows and so many columns of page tables: kernels that split keys run as many programs as columns ask
for, and a graph that served the longest sequence alone would launch those of it for the shortest one. No bucket has one
row: torch sums a product of one row in another order (`batch.never_one_row`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evalsvc.errors import ConfigError, EngineError

MODES = ("auto", "off")
BUCKETS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NARROWEST = 32  # pages of the narrowest bucket: what one program of decode attention reads
_WARM_UPS = 2  # kernels are compiled, and libraries make what they keep, before a capture


class Outputs(NamedTuple):
    """What a forward leaves.

    Attributes:
        logits: Shape: (rows, vocabulary).
        found: As `kv.guard.Findings.found`; None where nothing is compared. Shape: (layers, 2, rows), int32.
        ran: Kernels that were launched.
        windows: By layer whose attention ran, the keys that a query reads; None: all.
    """

    logits: Tensor
    found: Tensor | None
    ran: Counter[str]
    windows: Mapping[int, int | None]

    def rows(self, count: int) -> "Outputs":
        """A copy of what the first rows have, which later steps leave alone."""
        found = None if self.found is None else self.found[..., :count].clone()
        return self._replace(logits=self.logits[:count].clone(), found=found)


class Replay(NamedTuple):
    """A captured forward: what runs it again, where its result lies, and the memory that it works in."""

    run: Callable[[], object]
    result: Outputs
    memory: object = None


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


Forward = Callable[[Inputs], Outputs]
"""Buffers of a bucket -> what its rows give, by launches alone: it neither waits for the device nor asks it a thing."""
Capture = Callable[[Forward, Inputs, object], Replay]
"""Forward, buffers, and the memory of a capture that is held, to be shared; None where none is."""


@cache
def _side(device: int) -> Any:
    """The stream of a GPU's warm-ups and captures.

    One for all: memory that is free on one stream serves no other. torch's own for captures is the process's, of the
    GPU that captured first.
    """
    return torch.cuda.Stream(device)


def capture_cuda(forward: Forward, buffers: Inputs, memory: Any = None) -> Replay:
    """Captures a forward on the current GPU. What other threads do there meanwhile is no part of it, and no error."""
    side = _side(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            forward(buffers)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=side, capture_error_mode="thread_local"):
        result = forward(buffers)
    return Replay(graph.replay, result, graph.pool())


def capture_for(device: torch.device, graphs: str) -> Capture | None:
    """How decode steps are captured; None: they are eager.

    Args:
        device: Where they run.
        graphs: `auto`: captured on a GPU; or `off`.

    Raises:
        ConfigError: Another word.
    """
    if graphs not in MODES:
        raise ConfigError(f"graphs is {graphs!r}; it must be {' or '.join(MODES)}")
    return capture_cuda if graphs == "auto" and device.type == "cuda" else None


class DecodeGraphs:
    """The graphs of one decode stage.

    Attributes:
        buckets: Rows of graphs.
        widths: Columns of graphs.
        captures: How often a graph was captured.
        replays: How often one ran.
    """

    def __init__(
        self,
        forward: Forward,
        watched: Callable[[], Iterable[Tensor]],
        nobody: Nobody,
        most_rows: int,
        columns: int,
        device: torch.device,
        capture: Capture = capture_cuda,
    ):
        """Captures nothing yet.

        Args:
            forward: See `Forward`.
            watched: Every tensor that it reads and writes beside them, in one order.
            nobody: What fills rows up.
            most_rows: Most requests of a step.
            columns: Most pages of a request.
            device: Where buffers are.
            capture: How a forward is captured.
        """
        self._forward, self._watched, self._nobody, self._capture = forward, watched, nobody, capture
        self.buckets = tuple(b for b in BUCKETS if b < most_rows) + ((most_rows,) if most_rows <= BUCKETS[-1] else ())
        narrow = [NARROWEST << i for i in range(columns.bit_length()) if NARROWEST << i < columns]
        self.widths = (*narrow, columns)
        self._device = device
        self._buffers: dict[int, Inputs] = {}
        self._graphs: dict[tuple[int, int], Replay] = {}
        self._addresses: tuple[int, ...] = ()
        self.captures = self.replays = 0

    def bucket(self, rows: int) -> int | None:
        """Rows of the graph that serves so many requests; None where only the eager forward does."""
        return next((bucket for bucket in self.buckets if bucket >= rows), None)

    @property
    def captured(self) -> list[tuple[int, int]]:
        """Rows and columns of the graphs that are held."""
        return sorted(self._graphs)

    def run(self, step: Inputs) -> Outputs:
        """What a step gives; a copy, which later steps leave alone.

        Raises:
            EngineError: As `fill`.
        """
        rows = len(step.token_ids)
        bucket = self.bucket(rows)
        if bucket is None:
            return self._forward(step)
        if self._graphs and self._where() != self._addresses:
            self.drop()
        width = next((width for width in self.widths if width >= step.pages.shape[1]), self.widths[-1])
        buffers = self._buffers_of(width).rows(bucket)
        fill(buffers, step, self._nobody)
        if (bucket, width) not in self._graphs:
            self._graphs[bucket, width] = self._capture(self._forward, buffers, self._memory())
            self._addresses = self._where()  # behind the first forward, which may lay weights out for its kernels
            self.captures += 1
        graph = self._graphs[bucket, width]
        graph.run()
        self.replays += 1
        return graph.result.rows(rows)

    def _memory(self) -> object:
        """What the graphs that are held share: they run one at a time, and hold results until these are copied.

        No other stage's: another thread may replay it before a result is copied. Nor that of graphs that are gone:
        torch refuses it.
        """
        return next((graph.memory for graph in self._graphs.values()), None)

    def _where(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self._watched())

    def _buffers_of(self, width: int) -> Inputs:
        if width not in self._buffers:
            self._buffers[width] = empty_inputs(self.buckets[-1], width, self._device)
        return self._buffers[width]

    def drop(self) -> None:
        """Forgets all graphs: the next steps capture them again."""
        self._graphs.clear()
