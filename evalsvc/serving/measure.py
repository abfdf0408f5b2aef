"""Runs the cells of a grid on the embedded engine. What does not fit is a result like any other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, GenerateResult
from evalsvc.serving.figures import StageRoom
from evalsvc.serving.grid import Grid, prompts

STAGES = ("prefill", "decode")
_WARM_UP_TOKENS = 2
_WARM_UP_REQUESTS = 2


@dataclass(frozen=True)
class CellResult:
    """One repeat of one cell; fields as in `Measurement`."""

    status: str
    message: str | None
    figures: dict[str, Any]


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the device or on the host."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    )


def measured_rooms(engine: Engine, arm: str, memory_bytes: int) -> dict[str, StageRoom]:
    """What each stage of a loaded arm takes, from its proof."""
    proof = engine.proof(arm)
    return {
        stage: StageRoom(
            weights_bytes=proof[stage]["weights"]["format_bytes"],
            other_bytes=proof[stage]["weights"]["other_bytes"],
            kv_bytes_per_token=proof[stage]["kv"]["bytes_per_token"],
            pool_tokens=proof[stage]["kv"]["pool_tokens"],
            memory_bytes=memory_bytes,
        )
        for stage in STAGES
    }


def fits(rooms: dict[str, StageRoom], grid: Grid) -> dict[int, int]:
    """By prompt tokens the requests that a plan holds: decode all of them, prefill one prompt at least."""
    return {
        p: rooms["decode"].requests(p + grid.new_tokens) if rooms["prefill"].requests(p) else 0
        for p in grid.prompt_tokens
    }


def no_room(rooms: dict[str, StageRoom], grid: Grid, prompt_tokens: int, concurrency: int) -> str | None:
    """Why a cell does not fit; None where it does."""
    whole = prompt_tokens + grid.new_tokens
    for stage, tokens, count in (("prefill", prompt_tokens, 1), ("decode", whole, concurrency)):
        room = rooms[stage]
        if room.requests(tokens) < count:
            taken = room.weights_bytes + room.other_bytes
            if taken > room.memory_bytes:
                return f"{stage}: weights of {taken:,} bytes exceed the memory of {room.memory_bytes:,}"
            return f"{stage}: {count} x {tokens} tokens do not fit, {room.requests(tokens)} do ({room.tokens:,} tokens)"
    return None


def run_cell(engine: Engine, arm: str, grid: Grid, cell: tuple[int, int], repeat: int) -> CellResult:
    """One repeat, timed; running out of memory or of pages is its result."""
    requests = list(_requests(engine, arm, grid, cell, repeat))
    started = perf_counter()
    answers = list(engine.closed_loop(requests, cell[1], arm))
    wall = perf_counter() - started
    failed = next((answer for answer in answers if not isinstance(answer, GenerateResult)), None)
    if failed is not None:
        return CellResult("no_room" if failed.error == "pool" else "failed", failed.message, {})
    done = [answer for answer in answers if isinstance(answer, GenerateResult)]
    times = [answer.token_times_s for answer in done]
    figures = {
        "ttft_s": [round(t[0], 6) for t in times],
        "itl_s": [round(b - a, 6) for t in times for a, b in pairwise(t)],
        "e2e_s": [round(t[-1], 6) for t in times],
        "prompt_tokens": sum(answer.prompt_tokens for answer in done),
        "generated_tokens": sum(len(answer.token_ids) for answer in done),
        "wall_s": wall,
    }
    return CellResult("measured", None, figures)


def warm_up(engine: Engine, arm: str, grid: Grid, cell: tuple[int, int], repeat: int) -> None:
    """What `WARM_UP` says."""
    count = min(cell[1], _WARM_UP_REQUESTS)
    tokens = min(grid.new_tokens, _WARM_UP_TOKENS)
    ids = prompts(cell[0], count, engine.arm(arm).vocabulary, (grid.seed, *cell, repeat, 1))
    asked = [GenerateRequest(prompt=one, max_tokens=tokens, ignore_eos=True) for one in ids]
    list(engine.closed_loop(asked, count, arm))


def _requests(engine: Engine, arm: str, grid: Grid, cell: tuple[int, int], repeat: int) -> Iterator[GenerateRequest]:
    count = grid.requests(cell[1])
    ids = prompts(cell[0], count, engine.arm(arm).vocabulary, (grid.seed, *cell, repeat))
    for one in ids:
        yield GenerateRequest(prompt=one, max_tokens=grid.new_tokens, ignore_eos=True)
