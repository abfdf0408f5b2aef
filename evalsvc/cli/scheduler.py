"""`evalsvc scheduler`: queues executions at their planned times."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, DEFAULT_JOBS, Db, Jobs


def scheduler(
    jobs: Jobs = DEFAULT_JOBS,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    poll: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Longest time between looks.")] = 30,
    db: Db = DEFAULT_DB,
) -> None:
    """Queue executions of jobs at their planned times.

    Until SIGTERM or Ctrl-C. Any number of schedulers may share a database: each planned time is queued once. Workers
    execute what is queued.

    \b
    Example:
      evalsvc scheduler --jobs jobs.yaml
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from evalsvc.cli.common import note
    from evalsvc.cli.scheduling import Watched, deliver, open_queue, say_idle, schedule
    from evalsvc.errors import StoreError
    from evalsvc.jobs.scheduler import next_planned
    from evalsvc.jobs.waiting import waiter

    watched = Watched(Path(jobs))
    with open_queue(db) as store, waiter() as waiting:
        while not waiting.asked:
            delivered, queued = False, False
            try:
                queued = any(one.queued for one in schedule(store, watched.again()))
                delivered = deliver(store, watched.jobs)
            except StoreError as error:
                if once:
                    raise
                note(f"{error}; trying again")
            if once and not delivered:
                if not queued:
                    say_idle(store, watched.jobs, "nothing became due")
                return
            if not delivered:
                now = datetime.now(UTC)
                waiting.wait(min(poll, (next_planned(watched.jobs, now)[0] - now).total_seconds()))
