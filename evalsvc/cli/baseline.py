"""`evalsvc baseline`: names for arms, given by hand."""

from typing import Annotated

import typer

from evalsvc.cli.common import ADDRESS_HELP, DEFAULT_DB, Db, Json

app = typer.Typer(no_args_is_help=True, help="Give an arm a name to compare with, or list those names.")


@app.command()
def promote(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help=ADDRESS_HELP)],
    name: Annotated[str, typer.Option(metavar="NAME", help="The name, without @; from now on @NAME is this arm.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, kept with the promotion.")],
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Let @NAME mean an arm from now on.

    A name that is taken moves to the new arm; what it meant before stays listed. An arm with planted faults, an
    unfinished one and an A/A are refused.

    \b
    Example:
      evalsvc baseline promote bf16 --name prod --why "release 4.2"
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store import queries
    from evalsvc.store.baselines import promote as promote_arm
    from evalsvc.store.session import open_store

    with open_store(db) as store:
        before = {record.name: record.address for record in queries.baselines(store) if record.current}.get(name)
        arm = queries.resolve_arm(store, address)
        promote_arm(store, arm, name, why)
    if json:
        print_json({"schema": "evalsvc.baseline/1", "name": name, "address": arm.address, "before": before})
    else:
        was = f" (it was {before})" if before and before != arm.address else ""
        stdout_console().print(f"@{name} is {arm.address}{was}")


@app.command()
def ls(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """List every promotion, newest first; the newest of a name counts.

    \b
    Examples:
      evalsvc baseline ls
      evalsvc gate --policy policy.yaml --baseline @prod --candidate kv-fp8
    """
    from dataclasses import asdict

    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store import queries
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        found = queries.baselines(store)[::-1]
    if json:
        print_json({"schema": "evalsvc.baselines/1", "baselines": [asdict(record) for record in found]})
    else:
        from evalsvc.cli.listing import render_baselines

        stdout_console().print(render_baselines(found))
