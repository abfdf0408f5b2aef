"""`evalsvc history`: an arm over its runs."""

from typing import Annotated

import typer

from evalsvc.cli.common import ADDRESS_HELP, DEFAULT_DB, Db, Json


def history(
    arm: Annotated[str, typer.Argument(metavar="ARM", help="Its name in every run.")],
    baseline: Annotated[str, typer.Option(metavar="ADDRESS", help=ADDRESS_HELP + " The same for all runs.")],
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.4, help="Largest p of a change point.")] = 0.05,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show an arm's drop over its runs, each against one frozen baseline, and where its level changed.

    A change point is an alert and no verdict: its p says how often the same runs in random order split as well. A look:
    exits 0, 4 when no run has the arm, 2 for mistakes.

    \b
    Example:
      evalsvc history mixed --baseline @prod
    """
    from dataclasses import asdict

    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.history import history as points_of
    from evalsvc.store.queries import resolve_arm
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        base = resolve_arm(store, baseline)
        points = points_of(store, base, arm, alpha=alpha)
    if json:
        documents = [asdict(point) for point in points]
        for document in documents:
            drop, interval = document.pop("drop"), document.pop("interval")
            document["drop_points"] = None if drop is None else 100 * drop
            document["interval_points"] = None if interval is None else [100 * bound for bound in interval]
            if change := document["change"]:
                document["change"] = {
                    "before_points": 100 * change["before"],
                    "after_points": 100 * change["after"],
                    "p": change["p"],
                }
        print_json({"schema": "evalsvc.history/1", "arm": arm, "baseline": base.address, "points": documents})
        return
    from rich import box
    from rich.table import Table

    from evalsvc.cli.common import one_line
    from evalsvc.row import format_p, format_points

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("began", no_wrap=True)
    for name in ("b", "c", "n", "drop", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("since the run before", overflow="fold")
    for point in points:
        said = [one_line(text) for text in (point.fault, *point.changed) if text]
        if point.change is not None:
            levels = f"{format_points(point.change.before)} to {format_points(point.change.after)}"
            said.insert(0, f"LEVEL CHANGED from {levels} (p {format_p(point.change.p)})")
        began, address = point.created_at[:16].replace("T", " "), one_line(point.address)
        if point.drop is None or point.interval is None:
            table.add_row(address, began, "", "", "", "", "", "\n".join(said))
            continue
        low, high = (format_points(bound) for bound in point.interval)
        counts = (f"{point.lost:,}", f"{point.gained:,}", f"{point.n:,}")
        table.add_row(address, began, *counts, format_points(point.drop), f"[{low}, {high}]", "\n".join(said))
    console = stdout_console()
    console.print(table)
    console.print(f"drop from {one_line(base.address)} in points, positive is worse; an alert, no verdict")
