"""`evalsvc ls`: the runs of a database."""

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def ls(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """List runs and their arms.

    \b
    Example:
      evalsvc ls --json
    """
    from dataclasses import asdict

    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store import queries
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        runs = queries.runs(store)
    if json:
        print_json({"schema": "evalsvc.ls/1", "runs": [asdict(run) for run in runs]})
    else:
        from evalsvc.cli.listing import render_runs

        stdout_console().print(render_runs(runs))
