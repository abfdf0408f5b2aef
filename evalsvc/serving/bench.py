"""From plans to stored figures of serving: each repeat of each cell is stored when it is finished.

All plans get the same memory for each stage, as if each stage had a device of its own. Without one given it is what the
first plan takes for the largest equal concurrency of the longest prompt, so that a plan's own maximum shows what its
formats free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError
from evalsvc.execution import arm_specs
from evalsvc.experiment import ArmConfig, find_model
from evalsvc.paths import cache_dir
from evalsvc.serving.figures import StageRoom, rooms
from evalsvc.serving.grid import Grid, settings_hash
from evalsvc.store.measurements import measurements, save
from evalsvc.store.records import Measurement
from evalsvc.store.session import Store

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured.

    Attributes:
        model: Directory, `.gguf` file, hub id, or the small model's name.
        arms: By name; the first is the one that the others are put beside.
        base_dir: Where relative paths begin.
        grid: Cells and what they do.
        memory_bytes: Of each stage's device; None as in the module.
        price_per_hour: None: no cost.
        threads: Torch threads.
        kv_tokens: As the experiment's; part of what an arm is. `integrity` alike.
    """

    model: str
    arms: Mapping[str, ArmConfig]
    base_dir: Path
    grid: Grid
    memory_bytes: int | None = None
    price_per_hour: float | None = None
    threads: int = 1
    kv_tokens: int = 16384
    integrity: str = "tags"


def run_bench(bench: Bench, store: Store, note: Note) -> list[Measurement]:
    """Measures what is missing and returns all figures of these arms, cells and settings, repeat by repeat.

    Every arm is measured once before any is measured again, so that what else the machine does falls on all of them.

    Args:
        bench: What to measure.
        store: Open for writing, and locked by the caller.
        note: Told of progress.

    Raises:
        EvalsvcError: A model or plan that cannot be served; what was measured is stored.
    """
    target = _target(bench)
    facts = {name: target.facts(name) for name in bench.arms}
    _refuse_twins({name: fact.fingerprint for name, fact in facts.items()})
    memory = bench.memory_bytes or _default_memory(target, next(iter(facts)), bench.grid)
    settings = bench.grid.settings(memory)
    found: list[Measurement] = []
    for repeat in range(bench.grid.repeats):
        for name, fact in facts.items():
            base = Measurement(
                fingerprint=fact.fingerprint,
                arm=name,
                plan=fact.plan,
                device=str(fact.details["device"]),
                settings_hash=settings_hash(settings),
                settings=settings,
                kind="capacity",
                repeat=repeat,
            )
            if bench.price_per_hour is not None and repeat == 0:
                price = {"per_hour": bench.price_per_hour}
                save(store, replace(base, kind="price", settings_hash="", settings={}, figures=price))
            found += _measure_arm(target.engine, bench.grid, base, store, note)
            target.engine.release(name)
    return found


def _target(bench: Bench) -> Any:
    try:
        from evalsvc.targets.embedded import EmbeddedTarget
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; measuring needs `pip install 'evalsvc[engine]'`"
        raise CapabilityError(message) from error
    cache = cache_dir()
    return EmbeddedTarget(
        find_model(bench.model, bench.base_dir, cache),
        arm_specs(bench.arms, bench.base_dir),
        threads=bench.threads,
        batch=max(bench.grid.most, *bench.grid.equal, 1),
        kv_tokens=bench.kv_tokens,
        integrity=bench.integrity,
        cache=cache / "scales",
    )


def _refuse_twins(fingerprints: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, fingerprint in fingerprints.items():
        same = first.setdefault(fingerprint, name)
        if same != name:
            raise ConfigError(f"arms {same} and {name} are the same; remove or change one")


def _default_memory(target: Any, name: str, grid: Grid) -> int:
    from evalsvc.serving.measure import measured_rooms

    found = measured_rooms(target.engine, name, 0).values()
    pages = max(grid.equal, default=1) * -(-grid.longest // 16)
    return int(max(r.weights_bytes + r.other_bytes + r.kv_bytes_per_token * 16 * pages for r in found))


def _measure_arm(engine: Any, grid: Grid, base: Measurement, store: Store, note: Note) -> list[Measurement]:
    """One repeat of an arm: what is stored of it, and what was missing."""
    from evalsvc.serving import measure

    name, repeat = base.arm, base.repeat
    mine = [m for m in measurements(store, [base.fingerprint]) if m.settings_hash == base.settings_hash]
    known = next((m for m in mine if m.kind == "capacity" and m.status == "measured"), None)
    if known is None:
        known = _kept(store, _capacity(engine, name, grid, replace(base, repeat=0)))
    found = [known] if repeat == 0 else []
    if known.status == "no_room":
        return found
    room, loaded, measured = rooms(known), False, 0
    done = {(m.cell, m.repeat): m for m in mine if m.kind == "serving" and m.status != "failed"}
    full = {cell: m for (cell, _), m in done.items() if m.status == "no_room"}
    for cell in grid.cells(measure.fits(room, grid)):
        row = replace(base, kind="serving", prompt_tokens=cell[0], concurrency=cell[1])
        reason = measure.no_room(room, grid, *cell)
        if cell in full or reason is not None:
            refused = full.get(cell) or _kept(store, replace(row, status="no_room", message=reason))
            found += [refused] if refused.repeat == repeat else []
        elif (cell, repeat) in done:
            found.append(done[cell, repeat])
        else:
            if not loaded:
                engine.arm(name)
                engine.resize(_pool_tokens(room, grid))
                loaded = True
            found.append(_kept(store, _measure_cell(engine, grid, row)))
            measured += 1
    if measured:
        note(f"{name}: repeat {repeat + 1} of {grid.repeats}, {measured} cells")
    return found


def _measure_cell(engine: Any, grid: Grid, row: Measurement) -> Measurement:
    from evalsvc.serving import measure

    try:
        measure.warm_up(engine, row.arm, grid, row.cell, row.repeat)
        result = measure.run_cell(engine, row.arm, grid, row.cell, row.repeat)
    except Exception as error:
        if not measure.out_of_memory(error):
            raise
        result = measure.CellResult("no_room", f"memory ran out: {error}", {})
    return replace(row, status=result.status, message=result.message, figures=result.figures)


def _kept(store: Store, measurement: Measurement) -> Measurement:
    save(store, measurement)
    return measurement


def _capacity(engine: Any, name: str, grid: Grid, base: Measurement) -> Measurement:
    from evalsvc.serving import measure

    try:
        found = measure.measured_rooms(engine, name, base.settings["memory_bytes"])
    except EvalsvcError:
        raise
    except Exception as error:
        if not measure.out_of_memory(error):
            raise
        return replace(base, status="no_room", message=f"memory ran out while loading: {error}")
    held = _pool_tokens(found, grid)
    figures = {
        stage: {
            "weights_bytes": room.weights_bytes,
            "other_bytes": room.other_bytes,
            "kv_bytes_per_token": room.kv_bytes_per_token,
            "pool_tokens": held,
        }
        for stage, room in found.items()
    }
    return replace(base, figures=figures)


def _pool_tokens(room: Mapping[str, StageRoom], grid: Grid) -> int:
    """Tokens of this process's pools: what fits, and no more than the largest cell needs."""
    most = max(grid.most, *grid.equal, 1) * -(-grid.longest // 16) * 16
    return max(16, min(room["decode"].tokens, most))
