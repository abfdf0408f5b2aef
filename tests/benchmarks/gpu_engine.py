"""An 8B-shaped model of random numbers through the engine."""

import gc
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.handoff import handoff
from evalsvc.engine.kv.pages import Sequence as KVSequence
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest, GenerateResult

from .common import Row
from .gpu_clock import Bench
from .random_model import LLAMA_8B, TINY, RandomCheckpoint

PLANS = ("w=bf16,kv=bf16", "w=fp8,kv=fp8", "w=int4,kv=fp8", "w=bf16,kv=bf16 > w=int4,kv=fp8")
PAGES_BYTES = 4 * 2**30  # of the decode stage's pages, where plans run at as many requests as these hold
PROMPT, NEW = 512, 48
BYTES = {"bf16": 2, "fp8": 1}
TOGETHER = 16


def engine(
    bench: Bench,
    plan: str,
    requests: int,
    integrity: str = "tags",
    graphs: str = "auto",
    config: dict[str, Any] | None = None,
    tokens: int = 0,
) -> Engine:
    """An engine with room for so many requests; `config` and `tokens` of its pools where others are asked."""
    tokens = tokens or requests * (sum(_lengths(bench)) + 16)
    checkpoint = RandomCheckpoint(config or (TINY if bench.dry else LLAMA_8B))
    options = {"kv_tokens": tokens, "max_batch": requests, "chunk": 2048, "integrity": integrity, "graphs": graphs}
    return Engine(checkpoint, {"default": ArmSpec(parse_plan(plan))}, device=bench.device, **options)


def ask(bench: Bench, count: int, salt: int = 0) -> Iterator[GenerateRequest]:
    """Prompts that share nothing."""
    prompt, new = _lengths(bench)
    vocabulary = (TINY if bench.dry else LLAMA_8B)["vocab_size"]
    numbers = torch.Generator().manual_seed(salt)
    for i in range(count):
        ids = torch.randint(1, vocabulary, (prompt,), generator=numbers).tolist()
        yield GenerateRequest(prompt=ids, max_tokens=new, id=f"{salt}:{i}")


def _lengths(bench: Bench) -> tuple[int, int]:
    return (6, 2) if bench.dry else (PROMPT, NEW)


def steps(bench: Bench) -> Iterator[Row]:
    """What a decode step takes, and how much of it the device computes: eager, and replayed as a graph."""
    for count, graphs in product((1,) if bench.dry else (1, TOGETHER), ("off", "auto")):
        served = engine(bench, PLANS[0], count, graphs=graphs)
        stage = served.arm().decode
        prompts = [request.prompt for request in ask(bench, count)]
        sequences = [prefilled(served, prompt) for prompt in prompts]
        once = partial(stage.step, sequences, [1] * count)
        once()
        walls = [bench.wall(once) for _ in range(1 if bench.dry else 9)]
        wall, busy = statistics.median(walls), bench.device_seconds(once)
        what = f"bf16, {count} requests, {'replayed' if graphs == 'auto' else 'eager'}"
        if not bench.dry and (stage.work.replays > 0) != (graphs == "auto"):
            said = f"graphs={graphs}: {stage.work.replays} replays; {stage.eager_because}"
            yield Row(what, "not what was asked", "replayed or not", False, said)
        yield bench.row(f"{what}: a step", 1000 * wall, "ms")
        yield bench.row(f"{what}: the device computes", 1000 * busy, "ms")
        yield bench.row(f"{what}: host alone", 1000 * max(wall - busy, 0), "ms")
        del stage, once
        forget(bench, served)


def prefilled(served: Engine, prompt: Any) -> KVSequence:
    """A prompt of token ids, in the decode stage's pages."""
    arm = served.arm()
    (sequence,), _ = arm.prefill.prefill([prompt], logits=False)
    with torch.device(served.device):
        return handoff(arm.prefill.pool, sequence, arm.decode.pool)


def _serve(bench: Bench, served: Engine, requests: int, salt: int) -> tuple[float, float]:
    """Tokens a second, and the 95th percentile of the time between two tokens of an answer, in ms."""
    found: list[GenerateResult] = []

    def work() -> None:
        for result in served.closed_loop(ask(bench, requests, salt), concurrency=requests):
            if not isinstance(result, GenerateResult):
                raise SystemExit(f"a request failed: {result}")
            found.append(result)

    seconds = bench.wall(work)
    gaps = [b - a for r in found for a, b in zip(r.token_times_s, r.token_times_s[1:], strict=False)]
    tokens = sum(len(result.token_ids) for result in found)
    return tokens / seconds, 1000 * (statistics.quantiles(gaps, n=20)[-1] if len(gaps) > 1 else float("nan"))


def integrity(bench: Bench) -> Iterator[Row]:
    """Throughput and p95 with page tags compared, against not; in turn, three times."""
    count = 2 if bench.dry else TOGETHER
    held = {mode: engine(bench, PLANS[0], count, mode) for mode in ("off", "tags")}
    figures = {mode: [] for mode in held}
    for turn in range(1 if bench.dry else 4):
        for mode, served in held.items():
            figures[mode].append(_serve(bench, served, count, turn))
    medians = {}
    for mode, all_turns in figures.items():
        warm = all_turns[1:] or all_turns
        medians[mode] = [statistics.median(turn[part] for turn in warm) for part in (0, 1)]
    forget(bench, *held.values())
    slower = 100 * (1 - medians["tags"][0] / medians["off"][0])
    later = 100 * (medians["tags"][1] / medians["off"][1] - 1)
    yield bench.row("tags: throughput given up", slower, "%", 0.4, most=True, note=f"{count} requests")
    yield bench.row("tags: p95 of the time between tokens", later, "% more")


def plans(bench: Bench) -> Iterator[Row]:
    """Four plans at the same number of requests, and at as many as the same bytes of pages hold."""
    for plan in PLANS[:1] + PLANS[2:3] if bench.dry else PLANS:
        kind = parse_plan(plan).decode.kv.kind
        per_token = 2 * 32 * 8 * (128 * BYTES[kind] + (4 if kind == "fp8" else 0))
        most = PAGES_BYTES // (per_token * (PROMPT + NEW + 16))
        counts = {2: "as many"} if bench.dry else {TOGETHER: "as many", most: "most"}
        served = engine(bench, plan, max(counts))
        for count, word in counts.items():
            yield _plan(bench, served, plan, count, word)
        forget(bench, served)


def _plan(bench: Bench, served: Engine, plan: str, count: int, word: str) -> Row:
    """Throughput at so many requests, once kernels are compiled and steps captured."""
    try:
        _serve(bench, served, count, 2 * count)  # prompts of its own, or some would be found in the cache
        rate, p95 = _serve(bench, served, count, 2 * count + 1)
    except torch.OutOfMemoryError as error:
        return Row(plan, "out of memory", note=f"{word}: {count} requests; {str(error).split('. ')[0]}")
    proof = served.proof()
    if proof["mismatches"]:
        raise SystemExit(f"{plan}: {proof['mismatches']}")
    memory = proof["decode"]["weights"]["resident_bytes"] / 2**30
    note = f"{word}: {count} requests of {PROMPT} + {NEW}; weights {memory:.1f} GiB; p95 {p95:.3g} ms a token"
    return bench.row(plan, rate, "tokens/s", note=note)


def forget(bench: Bench, *engines: Engine) -> None:
    """Gives the memory of engines back."""
    for served in engines:
        for name in list(served.specs):
            served.release(name)
        served._arms._shared.clear()
    gc.collect()
    if not bench.dry:
        torch.cuda.empty_cache()
