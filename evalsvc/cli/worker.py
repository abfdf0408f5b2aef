"""`evalsvc worker`: executes what is queued."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, DEFAULT_JOBS, Db, Jobs


def worker(
    jobs: Jobs = DEFAULT_JOBS,
    once: Annotated[bool, typer.Option("--once", help="Take one execution at most, then leave.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Leave once nothing is left to take.")] = False,
    finish: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="What a run under way still gets after SIGTERM.")
    ] = 0,
    lease: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Silence after which others take an execution over."),
    ] = 60,
    poll: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Time between looks.")] = 5,
    db: Db = DEFAULT_DB,
) -> None:
    """Execute what schedulers queued, one run at a time.

    Each in a process of its own, until SIGTERM or Ctrl-C. A run under way then gets --finish seconds; what is not done
    by then is returned, and whoever takes it goes on with it. Start as many workers as runs are to be side by side.

    \b
    Example:
      evalsvc worker --jobs jobs.yaml --drain
    """
    from pathlib import Path

    from evalsvc.cli.scheduling import Watched, make_worker, nothing_left, open_queue, say_idle, work
    from evalsvc.jobs.waiting import waiter

    watched = Watched(Path(jobs))
    with open_queue(db) as store, waiter() as waiting:
        one = make_worker(store, watched, db, lease_s=lease, finish_s=finish)
        left = nothing_left(store, watched, one)
        done = (lambda: True) if once else left if drain else (lambda: False)
        poll_s = min(poll, lease / 4)
        work(store, watched, one, waiting, done=done, poll_s=poll_s, most=1 if once else None)
        if not one.taken and not waiting.asked:
            say_idle(store, watched.jobs, "nothing is queued that could be taken")
