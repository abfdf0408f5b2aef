"""`evalsvc db`: the database itself."""

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json

app = typer.Typer(no_args_is_help=True, help="Look after the database.")


@app.callback()
def options() -> None:
    """Look after the database."""


@app.command()
def upgrade(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Bring a database of an earlier evalsvc to this one's schema.

    An SQLite file is copied first, to NAME.REVISION.backup beside it; opening one for writing does the same by itself.
    A server's database is only upgraded here: make a backup (pg_dump) before.

    \b
    Example:
      evalsvc db upgrade --db results/evalsvc.sqlite
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store.session import open_store, store_revision, upgrade_store

    backup = upgrade_store(db)
    with open_store(db, read_only=True) as store:
        name, revision = store.name, store_revision(store)
    if json:
        kept = None if backup is None else str(backup)
        print_json({"schema": "evalsvc.db-upgrade/1", "database": name, "revision": revision, "backup": kept})
    else:
        stdout_console().print(f"{name} has schema {revision}", soft_wrap=True)
