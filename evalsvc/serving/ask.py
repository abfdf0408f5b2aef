"""What a person typed, as what is measured."""

import re
from collections.abc import Sequence
from pathlib import Path

from evalsvc.engine.precision import parse_plan
from evalsvc.errors import ConfigError
from evalsvc.experiment import ArmConfig, load_experiment
from evalsvc.serving.bench import Bench
from evalsvc.serving.grid import Grid

GIB = 2**30
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]*)=(?=(?:w|kv)=)(.*)", re.DOTALL)


def ask(
    file: str | None,
    model: str | None,
    plans: Sequence[str],
    arms: Sequence[str],
    grid: Grid,
    *,
    memory_gib: float | None = None,
    price: float | None = None,
    threads: int | None = None,
    integrity: str | None = None,
) -> Bench:
    """An experiment's arms, or a model under plans.

    Arms with planted faults are left out unless they are named.

    Raises:
        ConfigError: Neither or both, an unknown arm, or an amount that is not above 0.
    """
    for option, amount in (("--memory", memory_gib), ("--price-per-hour", price)):
        if amount is not None and not 0 < amount < float("inf"):
            raise ConfigError(f"{option} {amount:g}: must be a number above 0")
    if (file is None) == (model is None):
        raise ConfigError("give either an experiment FILE, or --model with a --plan or more")
    memory = None if memory_gib is None else int(memory_gib * GIB)
    if model is not None:
        if arms or not plans:
            raise ConfigError("--model needs a --plan or more; --arm belongs to an experiment FILE")
        named = dict(_named(text) for text in plans)
        return Bench(
            model=model,
            arms=named,
            base_dir=Path(),
            grid=grid,
            memory_bytes=memory,
            price_per_hour=price,
            threads=threads or 1,
            integrity=integrity or "tags",
        )
    if plans or threads is not None or integrity is not None:
        raise ConfigError("--plan, --threads and --integrity belong to --model; an experiment FILE has its own")
    path = Path(str(file))
    experiment = load_experiment(path)
    for name in arms:
        if name not in experiment.arms:
            raise ConfigError(f"{path}: there is no arm {name!r}; it has {', '.join(experiment.arms)}")
    wanted = [n for n in experiment.arms_in_order if (n in arms if arms else not experiment.arms[n].inject)]
    return Bench(
        model=experiment.model,
        arms={name: experiment.arms[name] for name in wanted},
        base_dir=path.parent,
        grid=grid,
        memory_bytes=memory,
        price_per_hour=price,
        threads=experiment.threads,
        kv_tokens=experiment.kv_tokens,
        integrity=experiment.integrity,
    )


def _named(text: str) -> tuple[str, ArmConfig]:
    """`NAME=PLAN`, or a plan that is its own name."""
    match = _NAMED.fullmatch(text)
    plan = match[2] if match else text
    canonical = str(parse_plan(plan))
    return match[1] if match else canonical, ArmConfig(plan=plan)
