"""`evalsvc noise`: how much an arm differs from itself."""

from typing import Annotated

import typer

from evalsvc.cli.common import ADDRESS_HELP, DEFAULT_DB, Db, Json


def noise(
    arm: Annotated[str, typer.Argument(metavar="ARM", help=ADDRESS_HELP)],
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show an arm's A/A check: itself in another order and batches.

    Exits 0 when it is quiet, 4 when it drifts in one direction (p < .01) or none can be counted, 2 for mistakes.

    \b
    Example:
      evalsvc noise bf16
    """
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.cli.deciding import stored_aa
    from evalsvc.errors import EXIT_INVALID, EvidenceError
    from evalsvc.row import format_p, format_points
    from evalsvc.store.queries import resolve_arm
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        record = resolve_arm(store, arm)
        found = stored_aa(store, record.run_id)
    if found is not None and record.name != record.baseline:
        raise EvidenceError(f"{record.address}: no A/A of this arm; that of its run is {found.address}, of {found.of}")
    if found is None:
        raise EvidenceError(f"{record.address}: no finished A/A of this arm; `aa` in its experiment runs one")
    if found.discordance is None:
        raise EvidenceError(f"{record.address}: its A/A {found.address} {found.in_words}")
    if json:
        print_json({"schema": "evalsvc.noise/1", "arm": record.address, **found.to_json()})
    else:
        word = "drifts: the instrument cannot be trusted" if found.failed else "no drift"
        stdout_console().print(
            f"{record.address} against itself ({found.address}): lost {found.lost:,}, gained {found.gained:,} of "
            f"{found.n:,}; discordance {format_points(found.discordance)} points; one-sided p {format_p(found.p)} and "
            f"{format_p(found.p_gain)}: {word}"
        )
        for uncounted in found.left_out:
            stdout_console().print(f"not counted: {one_line(uncounted)}")
    if found.failed:
        raise typer.Exit(EXIT_INVALID)
