"""Promoting an arm: a named act, so that a baseline never changes because a run happened to finish."""

import re

from evalsvc.errors import ConfigError
from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import BaselineRow
from evalsvc.store.session import Store
from evalsvc.store.texts import storable_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")


def promote(store: Store, arm: ArmRecord, name: str, why: str) -> None:
    """Lets `@name` mean an arm from now on; earlier promotions of the name stay on record.

    Raises:
        ConfigError: An arm that can be no baseline (planted faults, unfinished, an A/A, another proof than its plan), a
            name that no address can hold, or no reason.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: begin with a letter or digit, go on with these and . _ + - (at most 60)")
    if not why.strip():
        raise ConfigError("--why is empty; say in a sentence why this arm is the baseline now")
    reason = _why_not(arm)
    if reason:
        raise ConfigError(f"{arm.address} cannot be promoted: {reason}")
    with store.transaction() as session:
        session.add(BaselineRow(name=name, arm_id=arm.id, why=storable_text(why.strip())))


def _why_not(arm: ArmRecord) -> str:
    if arm.injected:
        faults = ", ".join(f"{name} {value}" for name, value in arm.injected.items())
        return f"it has planted faults ({faults})"
    if arm.run_kind == "aa":
        return f"it is an A/A, the second run of {arm.linked_run_id}:{arm.name}; promote that one"
    if arm.status != "finished" or arm.run_status != "finished":
        return "it is unfinished; run its experiment again to continue it"
    if arm.proof_status == "mismatched":
        return "what was measured of it does not match its plan"
    return ""
