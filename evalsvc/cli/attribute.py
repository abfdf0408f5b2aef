"""`evalsvc attribute`: which factor did it."""

from typing import Annotated, Any

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def attribute(
    experiment: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT", help="Its name (of its runs the latest finished one), or a run's number."),
    ],
    alpha: Annotated[
        float,
        typer.Option(min=0.0001, max=0.4, metavar="SHARE", help="Error rate of intervals and tests, as a proportion."),
    ] = 0.05,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show the drop that each changed factor causes.

    And what two cause together. What the arms cannot separate is said to be unknown, with the arm that would tell. A
    look: exits 0, 2 for mistakes, 4 without arms to compare or items to count.

    \b
    Example:
      evalsvc attribute first
    """
    from evalsvc.attributing import attribute_run, run_of
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        run_id = run_of(store, experiment)
        effects, left_out = attribute_run(store, run_id, alpha=alpha)
    if json:
        documents = [_document(effect) for effect in effects]
        print_json({"schema": "evalsvc.attribution/1", "run": run_id, "effects": documents, "left_out": left_out})
        return
    console = stdout_console()
    known = [effect for effect in effects if effect.drop is not None]
    if known:
        console.print(_table(known, alpha))
    for line in _unknown(effects):
        console.print(line)
    for line in left_out:
        console.print(f"left out: {line}")
    console.print("drop in points, positive is worse; p two-sided, after Holm over the effects that are known")


def _document(effect: Any) -> dict[str, Any]:
    return {
        "changes": [list(change) for change in effect.changes],
        "contexts": [sorted(list(change) for change in context) for context in effect.contexts],
        "averaged_over_all_contexts": effect.averaged,
        "n": effect.n,
        **{f"{name}_points": _points(getattr(effect, name)) for name in ("drop", "lower", "upper")},
        "p": effect.p,
        "p_adjusted": effect.p_adjusted,
        "unknown": effect.unknown or None,
    }


def _unknown(effects: Any) -> list[str]:
    from evalsvc.cli.common import one_line

    blank = [effect for effect in effects if effect.drop is None]
    lines = [
        one_line(f"unknown: {factor}={fmt} ({effect.unknown})")
        for effect in blank
        if len(effect.changes) == 1
        for factor, fmt in effect.changes
    ]
    pairs = sum(len(effect.changes) == 2 for effect in blank)
    if pairs:
        lines.append(
            f"unknown: {pairs} interaction{'s' * (pairs > 1)} of two changes (--json names the arms that lack)"
        )
    return lines


def _points(value: float | None) -> float | None:
    from math import isfinite

    return None if value is None or not isfinite(value) else 100 * value


def _table(effects: Any, alpha: float) -> Any:
    from rich import box
    from rich.table import Table

    from evalsvc.cli.common import one_line
    from evalsvc.row import format_p, format_points

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("change", overflow="fold")
    for name in ("drop", f"{100 * (1 - alpha):g} %", "p", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holds", overflow="fold")
    for effect in effects:
        name = " with ".join(one_line(f"{factor}={fmt}") for factor, fmt in effect.changes)
        bounds = [_points(effect.lower), _points(effect.upper)]
        low, high = ("?" if bound is None else format_points(bound / 100) for bound in bounds)
        where = "on average over the other changes" if effect.averaged and len(effect.contexts) > 1 else ""
        if not effect.averaged:
            shown = [
                " and ".join(f"{f}={x}" for f, x in sorted(context)) or "the baseline" for context in effect.contexts
            ]
            where = one_line(f"on top of {', or '.join(shown)} only")
        values = (format_points(effect.drop), f"[{low}, {high}]", format_p(effect.p_adjusted), f"{effect.n:,}")
        table.add_row(name, *values, where)
    return table
