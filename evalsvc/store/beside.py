"""What is read of an arm beside right and wrong: log-likelihoods of choices, seconds of work, measurements."""

import json

from sqlalchemy import select

from evalsvc.store.measurements import measurements
from evalsvc.store.records import ArmRecord, Beside, Choices
from evalsvc.store.schema import ItemRow, Sample
from evalsvc.store.session import Store


def read_beside(store: Store, arm: ArmRecord) -> Beside:
    """What is read of an arm beside right and wrong."""
    return Beside(
        choices=read_choices(store, arm),
        seconds=seconds_of_work(store, arm),
        serving=measurements(store, [arm.fingerprint]),
    )


def seconds_of_work(store: Store, arm: ArmRecord) -> list[float]:
    """Prefill and decode of each scored sample that was timed; waiting in a queue is left out."""
    with store.session() as session:
        query = select(Sample.timings).where(Sample.arm_id == arm.id, Sample.status == "scored")
        timed = [
            [timings[name] for name in ("prefill_s", "decode_s") if name in timings]
            for (timings,) in session.execute(query)
        ]
    return [sum(parts) for parts in timed if parts]


def read_choices(store: Store, arm: ArmRecord) -> dict[int, Choices]:
    """By sample the log-likelihoods of its choices, of those whose right choice is known and that have two or more."""
    query = (
        select(Sample.id, Sample.answer)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .where(Sample.arm_id == arm.id, Sample.status == "scored", ItemRow.scored_by == "loglikelihood")
    )
    with store.session() as session:
        return {row.id: found for row in session.execute(query) if (found := _choices(row.answer)) is not None}


def _choices(answer: str) -> Choices | None:
    try:
        said = json.loads(answer)
        logprobs, gold = tuple(map(float, said["logprobs"])), said["gold"]
    except (ValueError, KeyError, TypeError):
        return None
    return Choices(logprobs, gold) if type(gold) is int and 0 <= gold < len(logprobs) >= 2 else None
