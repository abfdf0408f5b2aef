"""`evalsvc jobs`: what is planned, what ran, and what was told of it."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, DEFAULT_JOBS, Db, Jobs, Json

app = typer.Typer(no_args_is_help=True, help="Scheduled jobs: list, show, cancel, retry.")
Number = Annotated[int, typer.Argument(metavar="EXECUTION", help="Its number in `evalsvc jobs ls`.")]


@app.command()
def ls(
    jobs: Jobs = DEFAULT_JOBS,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Executions to list, the latest.")] = 20,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """List jobs, next planned times and the latest executions.

    \b
    Example:
      evalsvc jobs ls --jobs jobs.yaml
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from evalsvc.cli.common import note, print_json, stdout_console
    from evalsvc.cli.jobs_report import executions_document, jobs_document, render_executions, render_jobs
    from evalsvc.cli.scheduling import held_queue
    from evalsvc.jobs.spec import absent_files, load_jobs
    from evalsvc.store.executions import executions

    known = load_jobs(Path(jobs))
    with held_queue(db) as store:
        found = [] if store is None else executions(store, most=limit)
    now, absent = datetime.now(UTC), absent_files(known, Path(jobs).absolute().parent)
    if json:
        document = {"jobs": jobs_document(known, now), "absent": absent, "executions": executions_document(found)}
        print_json({"schema": "evalsvc.jobs/1", **document})
        return
    console = stdout_console()
    console.print(render_jobs(known, now))
    if found:
        console.print(render_executions(found))
    for sentence in absent:
        note(f"{jobs}: {sentence}")


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name in the jobs file, or an execution's number.")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Executions and notices to show.")] = 20,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show a job's executions and notices.

    Executions with exit codes and messages, notices with what became of each.

    \b
    Example:
      evalsvc jobs show nightly
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.cli.jobs_report import (
        deliveries_document,
        executions_document,
        render_deliveries,
        render_executions,
    )
    from evalsvc.errors import ConfigError
    from evalsvc.store.executions import executions, get
    from evalsvc.store.outbox import deliveries
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        found = [get(store, int(job))] if job.isdecimal() else executions(store, job, most=limit)
        if not found:
            raise ConfigError(f"{store.name}: job '{job}' has no executions; `evalsvc jobs ls` lists what there is")
        told = deliveries(store, found[0].job, most=limit)
    if json:
        document = {"executions": executions_document(found), "deliveries": deliveries_document(told)}
        print_json({"schema": "evalsvc.jobs-show/1", "job": found[0].job, **document})
        return
    console = stdout_console()
    console.print(render_executions(found, messages=True))
    if told:
        console.print(render_deliveries(told))


@app.command()
def cancel(execution: Number, db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Cancel an execution that waits, or stop one that runs.

    \b
    Example:
      evalsvc jobs cancel 12
    """
    from evalsvc.store import executions

    _change(executions.cancel, execution, db, json)


@app.command()
def retry(execution: Number, db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Queue an execution again that failed or was left out.

    One that failed, was cancelled or missed; a run that it began is gone on with.

    \b
    Example:
      evalsvc jobs retry 12
    """
    from evalsvc.store import executions

    _change(executions.retry, execution, db, json)


def _change(change, execution: int, db: str, json: bool) -> None:
    from datetime import UTC, datetime

    from evalsvc.cli.common import print_json
    from evalsvc.cli.jobs_report import executions_document
    from evalsvc.store.session import open_store

    with open_store(db) as store:
        changed = change(store, execution, datetime.now(UTC))
    if json:
        print_json({"schema": "evalsvc.jobs-change/1", "executions": executions_document([changed])})
    else:
        asked = " (its worker is asked to stop)" if changed.cancel and changed.status == "running" else ""
        typer.echo(f"execution {changed.id} of {changed.job}: {changed.status}{asked}")
