"""`evalsvc audit`: a published pair of scores, without its items."""

from typing import Annotated

import typer

from evalsvc.cli.common import Json


def audit(
    items: Annotated[int, typer.Option(min=1, metavar="N", help="Items of the benchmark, the same for both scores.")],
    baseline: Annotated[float, typer.Option(metavar="POINTS", help="Published accuracy of the baseline, in points.")],
    candidate: Annotated[float, typer.Option(metavar="POINTS", help="Published accuracy of the candidate, in points.")],
    margin: Annotated[float, typer.Option(metavar="POINTS", help="Accepted drop, in points.")] = 1.0,
    alpha: Annotated[
        float, typer.Option(metavar="SHARE", help="Error rate of each direction, as a proportion.")
    ] = 0.05,
    json: Json = False,
) -> None:
    """Say what two published scores prove, without their items.

    At each share of items that may have flipped: nobody publishes how many items flipped both ways, and the verdict
    hangs on it. A look: exits 0, 2 for mistakes.

    \b
    Example:
      evalsvc audit --items 12032 --baseline 80.29 --candidate 79.29
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.errors import ConfigError
    from evalsvc.policy import typed_policy
    from evalsvc.row import format_p
    from evalsvc.verdict.audit import audit_published

    rules = typed_policy(name="audit", margin_points=margin, alpha=alpha)
    typed = {"--baseline": baseline, "--candidate": candidate}
    for option, score in typed.items():
        if not 0 <= score <= 100:
            raise ConfigError(f"{option} {score:g}: scores are in percent, from 0 to 100")
    if 0 < max(typed.values()) <= 1:
        option, score = max(typed.items(), key=lambda pair: pair[1])
        raise ConfigError(f"{option} {score:g}: scores are in percent; did you mean {100 * score:g}?")
    found = audit_published(items, baseline / 100, candidate / 100, rules.margin, alpha=alpha)
    at = [{"discordance_points": 100 * share, "verdict": word, "p": p} for share, word, p in found.at]
    below = None if found.significant_below is None else 100 * found.significant_below
    if json:
        print_json(
            {
                "schema": "evalsvc.audit/1",
                "items": found.n,
                "baseline_right": found.baseline_right,
                "candidate_right": found.candidate_right,
                "drop_points": 100 * found.drop,
                "margin_points": margin,
                "alpha": alpha,
                "unpaired_two_sided_p": found.unpaired_p,
                "significant_two_sided_below_points": below,
                "at": at,
            }
        )
        return
    from rich import box
    from rich.table import Table

    console = stdout_console()
    console.print(
        f"{found.baseline_right:,} and {found.candidate_right:,} right of {found.n:,}: "
        f"drop {100 * found.drop:.2f} points, margin {margin:g}"
    )
    console.print(
        f"unpaired two-sided z test, which forgets that the items are the same: p {format_p(found.unpaired_p)}"
    )
    if below is None:
        console.print("paired: significant two-sided at no discordance")
    else:
        console.print(f"paired: significant two-sided while at most {below:.1f} % of the items flipped")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("items that flipped", justify="right")
    table.add_column("verdict")
    table.add_column("one-sided p", justify="right")
    for row in at:
        table.add_row(f"{row['discordance_points']:.1f} %", row["verdict"], format_p(row["p"]))
    console.print(table)
