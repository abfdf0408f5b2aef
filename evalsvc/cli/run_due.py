"""`evalsvc run-due`: a scheduler and a worker for whatever starts programs at times."""

import typer

from evalsvc.cli.common import DEFAULT_DB, DEFAULT_JOBS, Db, Jobs, Json


def run_due(jobs: Jobs = DEFAULT_JOBS, db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Queue and execute what is due, deliver notices, and leave.

    For cron, systemd timers and Kubernetes CronJobs: started every few minutes it is all that a schedule needs. Two at
    once share the work. Exits as `evalsvc gate` over all runs that ended here: the first of 2, 4, 1, 3, 0 that occurs.

    \b
    Example:
      evalsvc run-due --jobs jobs.yaml
    """
    from pathlib import Path

    from evalsvc.cli.common import print_json
    from evalsvc.cli.scheduling import Watched, make_worker, nothing_left, open_queue, say_idle, schedule, work
    from evalsvc.gate import combine_exit_codes
    from evalsvc.jobs.waiting import waiter
    from evalsvc.jobs.worker import LEASE_S

    watched = Watched(Path(jobs))
    with open_queue(db) as store, waiter() as waiting:
        found = schedule(store, watched.jobs)
        one = make_worker(store, watched, db, lease_s=LEASE_S, finish_s=0)
        work(store, watched, one, waiting, done=nothing_left(store, watched, one), poll_s=5)
        if not one.taken and not waiting.asked:
            why = "nothing is left for this worker" if any(job.queued for job in found) else "nothing is due"
            say_idle(store, watched.jobs, why)
    code = combine_exit_codes(one.codes) if one.codes else 128 + waiting.last if waiting.asked else 0
    if json:
        queued = [{"job": q.job, "planned_at": at.isoformat()} for q in found for at in q.queued]
        print_json({"schema": "evalsvc.run-due/1", "exit_code": code, "queued": queued, "exit_codes": one.codes})
    raise typer.Exit(code)
