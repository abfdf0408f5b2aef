"""Delivers what the outbox holds: at least once, with the notice's id for whoever hears it twice."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from evalsvc.errors import EvalsvcError
from evalsvc.jobs.channels import DeliveryError, send
from evalsvc.jobs.outcome import backoff_s
from evalsvc.jobs.secrets import redactor, without_secrets
from evalsvc.jobs.spec import Command, JobsFile
from evalsvc.store import outbox
from evalsvc.store.outbox import Delivery
from evalsvc.store.session import Store

HOLD_S = 300.0  # longer than all tries of one delivery together
FIRST_BACKOFF_S = 60.0
GIVE_UP_AFTER = timedelta(days=3)

Send = Callable[..., None]


def deliver_one(
    store: Store,
    jobs: JobsFile,
    clock: Callable[[], datetime],
    env: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
    *,
    sending: Send = send,
    pauses_s: float = 1.0,
) -> bool:
    """Tries the oldest delivery that is due; whether there was one. A failed one is noted and tried again later.

    Args:
        store: The database.
        jobs: Where the channels are.
        clock: Gives the time.
        env: Where secrets are; commands get it without them.
        say: Told of failures.
        sending: Sends a notice through a channel.
        pauses_s: Seconds before the second try at once, doubled before the third.
    """
    delivery = outbox.claim(store, clock(), HOLD_S)
    if delivery is None:
        return False
    problem = _try(jobs, delivery, clock, env, sending, pauses_s)
    now = clock()
    if problem is None:
        outbox.delivered(store, delivery, now)
        return True
    problem = redactor(jobs, env)(problem)
    later = now + timedelta(seconds=backoff_s(FIRST_BACKOFF_S, delivery.tries - 1))
    again = None if later - delivery.told_at > GIVE_UP_AFTER else later
    outbox.not_delivered(store, delivery, problem, again)
    say(f"channel {delivery.channel}: {delivery.payload['event']} of {delivery.job} not delivered: {problem}")
    return True


def _try(
    jobs: JobsFile,
    delivery: Delivery,
    clock: Callable[[], datetime],
    env: Mapping[str, str],
    sending: Send,
    pauses_s: float,
) -> str | None:
    """Why it failed; None where it arrived."""
    channel = jobs.channels.get(delivery.channel)
    if channel is None:
        return "the jobs file has no such channel any more"
    known = without_secrets(jobs, env) if isinstance(channel, Command) else env
    trying = Retrying(
        stop=stop_after_attempt(3),
        wait=wait_exponential(multiplier=pauses_s),
        retry=retry_if_exception(_soon),
        reraise=True,
    )
    try:
        trying(sending, channel, delivery.payload, clock(), known)
    except EvalsvcError as error:
        return str(error)
    return None


def _soon(error: Any) -> bool:
    return isinstance(error, DeliveryError) and error.soon
