"""`evalsvc power`: what so many items can show, before anything runs."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def power(
    items: Annotated[int, typer.Option(min=1, metavar="N", help="Items that both arms answer.")],
    discordance: Annotated[
        float | None, typer.Option(metavar="POINTS", help="Share of items that flip either way, in points.")
    ] = None,
    arm: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Take discordance and seconds an item from this arm's run.")
    ] = None,
    margin: Annotated[float, typer.Option(metavar="POINTS", help="Accepted drop, in points.")] = 1.0,
    alpha: Annotated[
        float, typer.Option(metavar="SHARE", help="Error rate of each direction, as a proportion.")
    ] = 0.05,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Say which drop and which margin so many items can show.

    And how many items the margin needs. For items that flip independently of each other; 80 % power. A look: exits 0, 2
    for mistakes.

    \b
    Example:
      evalsvc power --items 1319 --discordance 5
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.errors import ConfigError
    from evalsvc.planning import Pilot, pilot_of, plan_items
    from evalsvc.policy import typed_policy

    rules = typed_policy(name="power", margin_points=margin, alpha=alpha)
    if (discordance is None) == (arm is None):
        raise ConfigError("give either --discordance, or --arm to take it from a stored comparison")
    if discordance is not None and not 0 < discordance <= 100:
        raise ConfigError(f"--discordance {discordance}: must be above 0 and at most 100 points")
    pilot = Pilot(discordance / 100) if discordance is not None else pilot_of(db, str(arm))
    plan = plan_items(items, pilot, rules)
    if json:
        print_json({"schema": "evalsvc.power/1", **plan.to_json()})
    else:
        console = stdout_console()
        for line in plan.lines():
            console.print(line)
