"""`evalsvc db`: the database itself."""

from typing import Annotated

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


@app.command()
def check(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Look for damage; exit 2 where there is any.

    Pages and indexes, references, counts that samples contradict.

    \b
    Example:
      evalsvc db check --db results/evalsvc.sqlite
    """
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.errors import EXIT_ERROR
    from evalsvc.store.care import problems
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        found = problems(store)
    if json:
        print_json({"schema": "evalsvc.db-check/1", "database": store.name, "problems": found})
    else:
        stdout_console().print("\n".join(map(one_line, found)) or f"{store.name} is whole", soft_wrap=True)
    if found:
        raise typer.Exit(EXIT_ERROR)


@app.command()
def stats(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Say how many rows each table has, and how large the database is.

    \b
    Example:
      evalsvc db stats --db results/evalsvc.sqlite
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store.care import stats as stats_of
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        found = stats_of(store)
    if json:
        print_json({"schema": "evalsvc.db-stats/1", "database": store.name, "bytes": found.size, "rows": found.rows})
        return
    lines = [f"{name:16}{count:>12,}" for name, count in found.rows.items()]
    stdout_console().print("\n".join([*lines, f"{'MiB':16}{found.size / 2**20:>12,.1f}"]))


@app.command()
def vacuum(db: Db = DEFAULT_DB) -> None:
    """Give the space of deleted rows back to the disk.

    It takes as much free space as the database has.

    \b
    Example:
      evalsvc db vacuum --db results/evalsvc.sqlite
    """
    from evalsvc.cli.common import stdout_console
    from evalsvc.store.care import stats as stats_of
    from evalsvc.store.care import vacuum as vacuum_store
    from evalsvc.store.lock import locked_store

    with locked_store(db) as store:
        before = stats_of(store).size
        vacuum_store(store)
        after = stats_of(store).size
    stdout_console().print(f"{store.name}: {before / 2**20:,.1f} MiB became {after / 2**20:,.1f}", soft_wrap=True)


@app.command()
def prune(
    keep: Annotated[int, typer.Option(metavar="N", min=1, help="Newest runs of each experiment that stay.")],
    yes: Annotated[bool, typer.Option("--yes", help="Drop them; without it nothing is changed.")] = False,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Drop old runs with all that is theirs.

    Without --yes it says what would go and what stays. The newest N of each experiment stay, whatever was ever
    promoted, what a decision joins to another run, and an unfinished run of a job. The file keeps its size until
    `evalsvc db vacuum`.

    \b
    Example:
      evalsvc db prune --keep 90 --db results/evalsvc.sqlite
    """
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.store.lock import locked_store
    from evalsvc.store.prune import plan_pruning
    from evalsvc.store.prune import prune as prune_store
    from evalsvc.store.session import open_store

    if yes:
        with locked_store(db) as store:
            found = prune_store(store, keep)
    else:
        with open_store(db, read_only=True) as store:
            found = plan_pruning(store, keep)
    if json:
        runs = [{"run": run.id, "experiment": run.experiment, "samples": run.samples} for run in found.dropped]
        kept = {str(run_id): why for run_id, why in found.kept.items()}
        document = {"done": yes, "runs": runs, "rows": found.rows, "kept": kept}
        print_json({"schema": "evalsvc.db-prune/1", "database": store.name, **document})
        return
    lines = [f"run {run_id} stays: {why}" for run_id, why in found.kept.items()]
    what = "is dropped" if yes else "would go"
    lines += [f"run {run.id} {what}: {run.experiment}, {run.samples:,} samples" for run in found.dropped]
    rows = ", ".join(f"{count:,} {name}" for name, count in found.rows.items()) or "nothing"
    lines.append(f"{'dropped' if yes else 'would drop'}: {rows}" + ("" if yes or not found.rows else "; --yes does it"))
    stdout_console().print("\n".join(map(one_line, lines)), soft_wrap=True)
