"""Measuring plans of a tiny model: stored cell by cell, gone on with, and what does not fit is a result."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalsvc.engine.engine import Engine
from evalsvc.errors import ConfigError
from evalsvc.experiment import ArmConfig
from evalsvc.serving import measure
from evalsvc.serving.bench import Bench, run_bench
from evalsvc.serving.figures import cells, rooms
from evalsvc.serving.grid import MAXIMUM, Grid
from evalsvc.store.measurements import measurements
from evalsvc.store.session import open_store

PLANS = {"bf16": "w=bf16", "kv8": "kv=bf16 > kv=fp8"}


@pytest.fixture
def bench(tiny_model: Path):
    grid = Grid(prompt_tokens=(16, 40), concurrency=(1, 3, MAXIMUM), new_tokens=4, rounds=1, repeats=2, most=8)
    arms = {name: ArmConfig(plan=plan) for name, plan in PLANS.items()}
    return Bench(model=str(tiny_model), arms=arms, base_dir=Path(), grid=grid, kv_tokens=256, price_per_hour=2.0)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "runs.sqlite", create=True) as opened:
        yield opened


def run(bench, store):
    said = []
    return run_bench(bench, store, said.append), said


def test_every_cell_is_measured_and_formats_show_in_what_fits(bench, store):
    found, said = run(bench, store)
    got = {(c.arm, *c.cell): c for c in cells(found)}
    of_bf16 = [key[1:] for key in got if key[0] == "bf16"]
    assert of_bf16 == [(16, 1), (16, 3), (16, 4), (40, 1), (40, 3)], "memory for 3 requests of 3 pages each"
    assert ("kv8", 40, 5) in got and ("kv8", 16, 8) in got, "16 pages of fp8 with its scales in place of 9"
    for cell in got.values():
        assert cell.status == "measured" and cell.device.startswith("cpu")
        assert cell.requests == 2 * max(4, cell.concurrency)
        assert cell.times["ttft_s"][50].mean < cell.times["e2e_s"][50].mean
    rows = [m for m in found if m.kind == "serving"]
    assert all(m.figures["prompt_tokens"] == len(m.figures["ttft_s"]) * m.prompt_tokens for m in rows)
    assert all(len(m.figures["itl_s"]) == 3 * len(m.figures["ttft_s"]) for m in rows)
    assert said[:2] == ["bf16: repeat 1 of 2, 5 cells", "kv8: repeat 1 of 2, 6 cells"] and len(said) == 4


def test_bytes_are_those_of_the_proof(bench, store):
    found, _ = run(replace(bench, grid=replace(bench.grid, concurrency=(1,), prompt_tokens=(16,), repeats=1)), store)
    room = {m.arm: rooms(m) for m in found if m.kind == "capacity"}
    assert room["bf16"]["decode"].kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert room["kv8"]["prefill"].kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert room["kv8"]["decode"].kv_bytes_per_token == 2 * 2 * 2 * (32 + 4)
    assert room["bf16"]["decode"].weights_bytes == room["kv8"]["decode"].weights_bytes > 0


def test_the_same_again_measures_nothing(bench, store):
    first, _ = run(bench, store)
    again, said = run(bench, store)
    assert said == [] and [m.figures for m in again] == [m.figures for m in first]


def test_more_repeats_go_on_from_those_that_are_stored(bench, store):
    small = replace(bench, grid=replace(bench.grid, concurrency=(1,), prompt_tokens=(16,)))
    first, _ = run(small, store)
    more, said = run(replace(small, grid=replace(small.grid, repeats=3)), store)
    assert [m.repeat for m in more if m.kind == "serving"] == [0, 0, 1, 1, 2, 2], "in rounds"
    assert {str(m.figures) for m in first} <= {str(m.figures) for m in more} and len(said) == 2


def test_a_killed_measurement_keeps_what_was_finished(bench, store, monkeypatch):
    small = replace(bench, grid=replace(bench.grid, concurrency=(1, 3), prompt_tokens=(16,)))
    real, calls = measure.run_cell, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(measure, "run_cell", killed)
    with pytest.raises(KeyboardInterrupt):
        run(small, store)
    kept = [m for m in measurements(store) if m.kind == "serving"]
    assert len(kept) == 5
    found, _ = run(small, store)
    assert len(calls) == 6 + 3, "eight repeats, five of them stored"
    assert len([m for m in found if m.kind == "serving"]) == 8


def test_a_concurrency_that_does_not_fit_is_recorded_and_not_run(bench, store):
    wide = replace(bench, grid=replace(bench.grid, concurrency=(1, 5)))
    found, _ = run(wide, store)
    memory = found[0].settings["memory_bytes"]
    tight, _ = run(replace(wide, memory_bytes=memory - 2 * 16 * 512), store)
    refused = {(c.arm, *c.cell): c.message for c in cells(tight) if c.status == "no_room"}
    assert refused == {("bf16", 40, 5): "decode: 5 x 44 tokens do not fit, 4 do (208 tokens)"}


def test_a_memory_that_the_weights_exceed_is_a_result(bench, store):
    found, _ = run(replace(bench, memory_bytes=1000), store)
    got = cells(found)
    assert got and all(c.status == "no_room" and "exceed the memory" in (c.message or "") for c in got)


@pytest.mark.parametrize("error", [MemoryError("none"), RuntimeError("DefaultCPUAllocator: can't allocate memory: x")])
def test_memory_that_runs_out_is_a_result(bench, store, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(measure, "run_cell", full)
    found, _ = run(replace(bench, grid=replace(bench.grid, concurrency=(1,), prompt_tokens=(16,))), store)
    assert {c.status for c in cells(found)} == {"no_room"}
    assert all("memory ran out" in (c.message or "") for c in cells(found))


def test_another_error_is_no_result(bench, store, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(measure, "run_cell", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        run(bench, store)


def test_a_prompt_longer_than_the_model_is_a_failed_cell(bench, store):
    found, _ = run(replace(bench, grid=replace(bench.grid, prompt_tokens=(300,), concurrency=(1,), repeats=1)), store)
    assert {(c.status, "exceed the 256 served" in (c.message or "")) for c in cells(found)} == {("failed", True)}


def test_one_arm_twice_is_refused(bench, store):
    arms = {"one": ArmConfig(plan="w=bf16"), "two": ArmConfig(plan="kv=bf16")}
    with pytest.raises(ConfigError, match="one and two are the same"):
        run(replace(bench, arms=arms), store)


def test_no_prompt_is_found_in_a_cache(bench):
    """A page that an earlier repeat, cell or warm-up computed would take work away from the one that is timed."""
    engine = Engine.load(bench.model, plan="w=bf16", kv_tokens=512)
    for cell in ((40, 1), (40, 3)):
        for repeat in range(2):
            measure.warm_up(engine, "default", bench.grid, cell, repeat)
            assert measure.run_cell(engine, "default", bench.grid, cell, repeat).status == "measured"
    found = engine.proof()["prefix_cache"]
    assert found["hit_tokens"] == 0 and found["missed_tokens"] == 39 * (2 * (1 + 4) + 2 * (2 + 4))
