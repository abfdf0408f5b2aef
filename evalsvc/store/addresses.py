"""Which arms a person means who names several at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsvc.errors import ConfigError
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store


@dataclass(frozen=True)
class Named:
    """The arms of several addresses.

    Attributes:
        arms: In the order of the addresses.
        shared: How the run was chosen that arms' names alone are of; empty where there was nothing to choose.
    """

    arms: tuple[ArmRecord, ...]
    shared: str = ""


def resolve_arms(store: Store, addresses: Sequence[str]) -> Named:
    """The arms that a person means by several addresses.

    Two or more arms' names alone are those of the latest finished main run that has them all. Every other address, and
    a single name, is found as `queries.resolve_arm` does.

    Raises:
        ConfigError: As `queries.resolve_arm`, or no finished run has all the names.
    """
    bare = list(dict.fromkeys(address for address in addresses if _is_bare(address)))
    if len(bare) < 2:
        return Named(tuple(queries.resolve_arm(store, address) for address in addresses))
    runs: dict[int, dict[str, ArmRecord]] = {}
    for arm in queries.arms(store):
        if arm.run_kind == "main" and arm.run_status == "finished":
            runs.setdefault(arm.run_id, {})[arm.name] = arm
    having = [run_id for run_id, held in runs.items() if held.keys() >= set(bare)]
    if not having:
        alone = [queries.resolve_arm(store, name).address for name in bare]
        raise ConfigError(f"no finished run has {_all_of(bare)}; write RUN:ARM, such as {_all_of(alone)}")
    held = runs[max(having)]
    arms = tuple(
        held[name] if name in held and name in bare else queries.resolve_arm(store, name) for name in addresses
    )
    return Named(arms, _choice(runs, bare, max(having)))


def _choice(runs: dict[int, dict[str, ArmRecord]], bare: Sequence[str], chosen: int) -> str:
    """Which run was taken where others have some of the names, and which later one lacks some."""
    others = [run_id for run_id, held in runs.items() if run_id != chosen and not held.keys().isdisjoint(bare)]
    if not others:
        return ""
    experiment = next(iter(runs[chosen].values())).experiment
    text = f"{', '.join(bare)}: of run {chosen} ({experiment}), the latest finished one that has them all"
    if max(others) > chosen:
        latest = runs[max(others)]
        lacking = ", ".join(name for name in bare if name not in latest)
        text += f"; run {max(others)} ({next(iter(latest.values())).experiment}) is later and has no {lacking}"
    return text


def _all_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _is_bare(address: str) -> bool:
    head, colon, _ = address.partition(":")
    return not address.startswith("@") and not (colon and head.isdecimal())
