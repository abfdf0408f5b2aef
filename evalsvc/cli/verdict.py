"""`evalsvc verdict`: the rule on bare counts."""

from typing import Annotated

import typer

from evalsvc.cli.common import Json


def verdict(
    lost: Annotated[int, typer.Option(min=0, metavar="N", help="Items right in the baseline, wrong in the candidate.")],
    gained: Annotated[
        int, typer.Option(min=0, metavar="N", help="Items wrong in the baseline, right in the candidate.")
    ],
    items: Annotated[int, typer.Option(min=0, metavar="N", help="Items that both answered.")],
    margin: Annotated[float, typer.Option(metavar="POINTS", help="Accepted drop, in points.")],
    alpha: Annotated[
        float, typer.Option(metavar="SHARE", help="Error rate of each direction, as a proportion.")
    ] = 0.05,
    json: Json = False,
) -> None:
    """Decide from counts alone.

    For items that flip independently of each other.

    Exits 0 PASS, 1 REGRESSED, 3 INCONCLUSIVE, 4 for no items, 2 for counts or margins that cannot be.

    \b
    Example:
      evalsvc verdict --lost 41 --gained 17 --items 1319 --margin 1
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.decision import EXIT_CODES
    from evalsvc.gate import judge_counts
    from evalsvc.policy import typed_policy

    rules = typed_policy(name="verdict", margin_points=margin, alpha=alpha)
    row = judge_counts(lost, gained, items, rules)
    code = EXIT_CODES[row.verdict or "INVALID"]
    if json:
        print_json({"schema": "evalsvc.verdict/1", "exit_code": code, "alpha": alpha, **row.to_json()})
    else:
        from evalsvc.cli.tables import render_row_sentence

        stdout_console().print(render_row_sentence(row, alpha))
    raise typer.Exit(code)
