"""Logits of replayed decode steps against eager ones: the same engine, the same requests, full buckets and others.

Each replay is held against its forward launched on the same buffers, to the bit: a graph launches the same kernels with
the same shapes. And each step against an eager one of as many rows as there are requests, where torch's bf16 products
may sum in another order than those of a bucket's rows. So each of the 2 L sums of L layers into the residual stream, of
bf16, may be rounded to another neighbour, 2^-8 of its size away; independent errors grow with the root of their number,
6 standard deviations bound the largest of a million logits, and a logit is rounded to bf16 itself:

    |replayed - eager| <= 2^-8 (6 sqrt(2 L) std of the logits + max |logit|)

A page, a slot or a position that is not the request's changes logits by about their spread, 10 times that and more.
"""

from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch import Tensor

from evalsvc.engine import engine as engine_module
from evalsvc.engine.engine import Engine
from evalsvc.engine.graphs import Forward, Inputs, Outputs, Replay, capture_cuda

from .common import Row
from .gpu_clock import Bench
from .gpu_engine import engine, forget, prefilled
from .random_model import LLAMA_8B, TINY

LAYERS = 4
PLANS = ("w=bf16,kv=bf16", "w=int4,kv=fp8")
LENGTHS = (17, 31, 15, 300, 16, 511, 512, 513, 33, 700, 5, 1, 90, 1100, 600, 48)  # of one page, of many, at their ends
COUNTS = (1, 2, 3, 4, 5, 8, 12, 16)


class Beside:
    """Captures, and launches each forward that is replayed once more on the same buffers.

    Attributes:
        largest: Largest difference of logits since it was set to 0; NaN where one of them is no number.
    """

    def __init__(self, bench: Bench):
        self.bench, self.largest = bench, 0.0

    def capture(self, forward: Forward, buffers: Inputs, memory: object = None) -> Replay:
        """As `capture_cuda`; in a dry run what stands for a graph is the forward itself."""
        made = _again(forward, buffers) if self.bench.dry else capture_cuda(forward, buffers, memory)

        def run() -> None:
            made.run()
            self.largest = max(self.largest, difference(made.result.logits, forward(buffers).logits))

        return made._replace(run=run)


def _again(forward: Forward, buffers: Inputs) -> Replay:
    result: Outputs = forward(buffers)

    def run() -> None:
        new = forward(buffers)
        result.logits.copy_(new.logits)
        if result.found is not None and new.found is not None:
            result.found.copy_(new.found)

    return Replay(run, result)


def difference(some: Tensor, others: Tensor) -> float:
    """Largest difference; infinite where one of them is no number."""
    largest = (some - others).abs().max().item()
    return largest if largest == largest else torch.inf


def allowed(logits: Tensor, layers: int) -> float:
    """The bound above."""
    return 2**-8 * (6 * (2 * layers) ** 0.5 * logits.std().item() + logits.abs().max().item())


def replays(bench: Bench) -> Iterator[Row]:
    """Every count of requests under two plans, at a model of the 8B's layers."""
    lengths, counts = ((3, 17, 5), (1, 2, 3)) if bench.dry else (LENGTHS, COUNTS)
    config = TINY if bench.dry else LLAMA_8B | {"num_hidden_layers": LAYERS}
    for plan in PLANS:
        beside = Beside(bench)
        with patch.object(engine_module, "capture_for", lambda device, word, held=beside: held.capture):
            served = engine(bench, plan, len(lengths), config=config, tokens=sum(lengths) + 64 * len(lengths))
            stage = served.arm().decode
        yield from compare(bench, plan, served, beside, lengths, counts)
        if stage.work.replays != len(counts):
            raise SystemExit(f"{plan}: {stage.work.replays} replays in {len(counts)} steps; {stage.eager_because}")
        forget(bench, served)


def compare(
    bench: Bench, plan: str, served: Engine, beside: Beside, lengths: tuple[int, ...], counts: tuple[int, ...]
) -> Iterator[Row]:
    """Steps of the first so many of some requests, replayed and eager in turn, each of the same tokens."""
    numbers = torch.Generator().manual_seed(7)
    vocabulary = served.checkpoint.config["vocab_size"]
    prompts = [torch.randint(1, vocabulary, (length,), generator=numbers).tolist() for length in lengths]
    sequences, stage = [prefilled(served, prompt) for prompt in prompts], served.arm().decode
    layers, steps = served.checkpoint.config["num_hidden_layers"], stage.steps
    for count in counts:
        some, tokens = sequences[:count], torch.randint(1, vocabulary, (count,), generator=numbers).tolist()
        beside.largest = 0.0
        replayed = stage.step(some, tokens)
        for sequence in some:
            stage.pool.truncate(sequence, sequence.length - 1)
        stage.steps = None
        eager = stage.step(some, tokens)
        stage.steps = steps
        what = f"{plan}, {count} requests"
        yield bench.row(f"{what}: replayed and launched again", beside.largest, "apart", 0, most=True)
        bound = allowed(eager, layers)
        note = f"largest logit {eager.abs().max():.3g}"
        yield bench.row(
            f"{what}: replayed and eager", difference(replayed, eager), "apart", bound, most=True, note=note
        )
