"""`evalsvc joint`: several candidates in all suites, one test."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, TOGETHER_HELP, Db, Json


def joint(
    baseline: Annotated[str, typer.Argument(metavar="BASELINE", help=TOGETHER_HELP)],
    candidates: Annotated[list[str], typer.Argument(metavar="CANDIDATE...", help="As the baseline; one or more.")],
    draws: Annotated[int, typer.Option(min=99, max=1_000_000, metavar="N", help="Random draws of signs.")] = 9_999,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Test the drops of several candidates in all suites at once.

    The max-drop permutation: under "no drop" the largest of all drops is as large as that of signs drawn at random, one
    sign for an item in every candidate, since they share its baseline. Sharper than Holm where candidates are many and
    alike. A look: exits 0, 4 without samples, 2 for mistakes.

    \b
    Example:
      evalsvc joint bf16 kv-fp8
    """
    from dataclasses import asdict

    from evalsvc.cli.common import named_arms, print_json, stdout_console
    from evalsvc.errors import ConfigError
    from evalsvc.joint import joint_drops
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        base, *named = named_arms(store, baseline, *candidates)
        arms = list({arm.id: arm for arm in named}.values())
        if base.id in {arm.id for arm in arms}:
            raise ConfigError(f"{base.address} is baseline and candidate; name other arms")
        rows = joint_drops(store, base, arms, draws=draws)
    if json:
        documents = [asdict(row) for row in rows]
        for document in documents:
            document["drop_points"] = 100 * document.pop("drop")
        print_json({"schema": "evalsvc.joint/1", "baseline": base.address, "draws": draws, "rows": documents})
        return
    from rich import box
    from rich.table import Table

    from evalsvc.cli.common import one_line
    from evalsvc.row import format_p, format_points

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name in ("candidate", "suite"):
        table.add_column(name, overflow="fold")
    for name in ("b", "c", "n", "drop", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        counts = (f"{row.lost:,}", f"{row.gained:,}", f"{row.n:,}")
        table.add_row(one_line(row.candidate), one_line(row.suite), *counts, format_points(row.drop), format_p(row.p))
    console = stdout_console()
    adjusted = f"all {len(rows)} rows" if len(rows) > 1 else "one row"
    console.print(table)
    console.print(f"drop in points, positive is worse; p one-sided, adjusted for {adjusted}")
