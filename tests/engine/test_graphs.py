"""Decode graphs by their rules: shapes, rows that are nobody's, addresses, invalidation. On a GPU, a real capture."""

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from evalsvc.engine.graphs import (
    DecodeGraphs,
    Inputs,
    Nobody,
    Outputs,
    Replay,
    capture_cuda,
    capture_for,
    empty_inputs,
    fill,
)
from evalsvc.errors import ConfigError, EngineError

PAGE, SLOTS, WIDTH = 16, 160, 8
NOBODY = Nobody(page=9, slot=9 * PAGE, tag=77)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


class Toy:
    """A forward over pages: writes a token's vector, and sums those of its request's page slots up to its length."""

    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(0)
        self.pool = torch.zeros(SLOTS, WIDTH, device=DEVICE)
        self.weights = torch.randn(32, WIDTH, generator=numbers).to(DEVICE)

    def watched(self) -> list[Tensor]:
        return [self.pool, self.weights]

    def forward(self, step: Inputs) -> Outputs:
        self.pool.index_copy_(0, step.slots, self.weights[step.token_ids] + step.positions[:, None])
        at = torch.arange(step.pages.shape[1] * PAGE, device=DEVICE)
        slots = step.pages.long().clamp(min=0)[:, at // PAGE] * PAGE + at % PAGE
        seen = (at < step.lengths[:, None])[..., None]
        return Outputs((self.pool[slots] * seen).sum(1) @ self.weights.T, None, Counter(), {})


def recorded(forward, buffers, memory) -> Replay:
    """In place of a capture: launches the forward again on the very tensors that it was given, into one result."""
    if GPU:
        return capture_cuda(forward, buffers, memory)
    result = forward(buffers)
    return Replay(lambda: result.logits.copy_(forward(buffers).logits), result, memory or object())


def graphs(toy: Toy, most_rows: int = 6, columns: int = 4) -> DecodeGraphs:
    return DecodeGraphs(toy.forward, toy.watched, NOBODY, most_rows, columns, DEVICE, recorded)


def step(pages: list[list[int]], lengths: list[int], tokens: list[int]) -> Inputs:
    columns = max(map(len, pages))
    made = empty_inputs(len(pages), columns, DEVICE)
    for i, (row, length, token) in enumerate(zip(pages, lengths, tokens, strict=True)):
        made.pages[i] = torch.tensor([*row, *[-1] * (columns - len(row))])
        made.lengths[i], made.token_ids[i], made.positions[i] = length, token, length - 1
        made.slots[i] = row[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE
    return made


STEPS = [
    step([[0]], [1], [3]),
    step([[0], [1, 2]], [2, 17], [4, 5]),
    step([[0], [1, 2], [3]], [3, 18, 1], [6, 7, 8]),
    step([[1, 2], [3]], [19, 2], [9, 10]),
    step([[3]], [3], [11]),
]


def test_replays_give_what_the_eager_forward_gives_step_by_step():
    eager, replayed = Toy(), Toy()
    runner = graphs(replayed)
    for one in STEPS:
        assert torch.allclose(runner.run(one).logits, eager.forward(one).logits, rtol=1e-5, atol=1e-5)
    others = torch.arange(SLOTS) // PAGE != NOBODY.page  # rows that are nobody's write their page alone
    assert torch.equal(replayed.pool.cpu()[others], eager.pool.cpu()[others])


def test_a_bucket_is_captured_once_and_serves_every_number_of_requests_up_to_its_rows():
    runner = graphs(Toy(), most_rows=6)
    assert runner.buckets == (2, 4, 6)
    assert [runner.bucket(rows) for rows in range(1, 8)] == [2, 2, 4, 4, 6, 6, None]
    for one in (*STEPS, *STEPS):
        runner.run(one)
    assert (runner.captures, runner.replays) == (2, 10)
    assert runner.captured == [(2, 4), (4, 4)]


def test_buffers_stay_where_they_are_and_buckets_share_them():
    toy, seen = Toy(), []

    def noted(forward, buffers, memory):
        seen.append([getattr(buffers, name).data_ptr() for name in buffers.__dataclass_fields__])
        return recorded(forward, buffers, memory)

    runner = DecodeGraphs(toy.forward, toy.watched, NOBODY, 6, 4, DEVICE, noted)
    for one in STEPS:
        runner.run(one)
    assert len(seen) == 2 and seen[0] == seen[1]


def test_rows_behind_a_steps_own_are_nobodys():
    buffers = empty_inputs(4, 3, DEVICE)
    fill(buffers, step([[5, 6, 7]] * 4, [40] * 4, [1] * 4), NOBODY)
    fill(buffers, step([[0], [1, 2]], [2, 17], [4, 5]), NOBODY)
    assert buffers.pages.tolist() == [[0, -1, -1], [1, 2, -1], [9, -1, -1], [9, -1, -1]]
    assert buffers.lengths.tolist() == [2, 17, 1, 1] and buffers.slots.tolist()[2:] == [144, 144]
    assert buffers.expected.tolist()[2:] == [[77, 0, 0], [77, 0, 0]]
    assert buffers.token_ids.tolist() == [4, 5, 0, 0] and buffers.positions.tolist() == [1, 16, 0, 0]


def test_a_pool_of_another_size_drops_what_was_captured():
    toy = Toy()
    runner = graphs(toy)
    runner.run(STEPS[0])
    before = toy.pool
    toy.pool = torch.zeros(2 * SLOTS, WIDTH, device=DEVICE)
    wanted = Toy()
    assert torch.allclose(runner.run(STEPS[0]).logits, wanted.forward(STEPS[0]).logits, rtol=1e-5, atol=1e-5)
    assert runner.captures == 2 and before.data_ptr() != toy.pool.data_ptr()
    runner.run(STEPS[0])
    assert runner.captures == 2


def test_a_result_outlives_the_next_step():
    runner = graphs(Toy())
    first = runner.run(STEPS[0]).logits
    held = first.clone()
    runner.run(step([[4]], [1], [20]))
    assert torch.equal(first, held)


def test_more_requests_than_the_largest_bucket_are_computed_eagerly_and_longer_ones_refused():
    toy = Toy()
    runner = graphs(toy, most_rows=2)
    assert torch.equal(runner.run(STEPS[2]).logits, Toy().forward(STEPS[2]).logits)
    assert runner.replays == 0
    with pytest.raises(EngineError, match="1 requests of 5 pages; its graph has 2 of 4"):
        runner.run(step([[0, 1, 2, 3, 4]], [70], [1]))


def test_longer_page_tables_take_wider_buckets_and_give_the_same():
    runner = graphs(Toy(), columns=100)
    assert runner.widths == (32, 64, 100)
    wide = step([[0, *range(1, 9), *[0] * 24]], [3], [4])
    assert torch.allclose(runner.run(wide).logits, runner.run(step([[0]], [3], [4])).logits, rtol=1e-5, atol=1e-5)
    assert runner.captured == [(2, 32), (2, 64)]
    assert [graphs(Toy(), columns=n).widths for n in (1, 32, 33)] == [(1,), (32,), (32, 33)]


def test_captures_share_the_memory_of_those_that_are_held_and_of_no_others():
    """torch refuses to capture into what belonged to graphs that are all gone; another stage's would be overwritten."""
    toy, given = Toy(), []

    def noted(forward, buffers, memory):
        made = recorded(forward, buffers, memory)
        given.append((memory, made.memory))
        return made

    runner, beside = (DecodeGraphs(toy.forward, toy.watched, NOBODY, 6, 4, DEVICE, noted) for _ in range(2))
    for one in STEPS:
        runner.run(one)
    runner.drop()
    runner.run(STEPS[0])
    beside.run(STEPS[0])
    (nothing, first), (shared, second), (after, third), (other, fourth) = given
    assert nothing is after is other is None and shared == first == second
    assert len({first, third, fourth}) == 3


@pytest.mark.skipif(GPU, reason="stands for GPUs that are not here")
def test_a_capture_runs_on_a_stream_of_its_own_gpu(monkeypatch):
    """torch's own stream for captures is of the GPU that captured first, whatever GPU captures now."""
    now, seen = {"gpu": 0, "stream": "default"}, []

    @contextmanager
    def stream(entered):
        before, now["stream"] = now["stream"], entered
        yield
        now["stream"] = before

    def forward(buffers):
        seen.append(now["stream"].gpu)
        return Outputs(torch.zeros(1), None, Counter(), {})

    for name, fake in {
        "current_device": lambda: now["gpu"],
        "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
        "Stream": lambda gpu=0: SimpleNamespace(gpu=gpu, wait_stream=lambda other: None),
        "stream": stream,
        "CUDAGraph": lambda: SimpleNamespace(replay=None, pool=object),
        "graph": lambda graph, pool, stream, capture_error_mode: torch.cuda.stream(stream),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for gpu in (0, 1):
        now["gpu"] = gpu
        capture_cuda(forward, empty_inputs(2, 4, DEVICE))
    assert seen == [0, 0, 0, 1, 1, 1]


def test_steps_are_captured_on_a_gpu_alone_and_where_that_is_not_off():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    found = [capture_for(device, word) for device in (cpu, gpu) for word in ("auto", "off")]
    assert found == [None, None, capture_cuda, None]
    with pytest.raises(ConfigError, match="graphs is 'on'; it must be auto or off"):
        capture_for(gpu, "on")
