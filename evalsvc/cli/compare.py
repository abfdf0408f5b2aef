"""`evalsvc compare`: a look at two arms."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, TOGETHER_HELP, Db, Json


def compare(
    baseline: Annotated[str, typer.Argument(metavar="BASELINE", help=TOGETHER_HELP)],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="As the baseline.")],
    policy: Annotated[
        str | None, typer.Option(metavar="FILE", help="Policy file (YAML); without it 1 point pooled, 5 a suite.")
    ] = None,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show what a candidate lost and gained, by suite and family.

    A look, not a gate: exits 0 whatever the verdict, 4 when no item was answered by both, 2 for mistakes; stores
    nothing.

    \b
    Example:
      evalsvc compare bf16 kv-fp8
    """
    from evalsvc.cli.common import named_arms, print_json, stdout_console
    from evalsvc.cli.deciding import decide_stored
    from evalsvc.errors import EXIT_INVALID
    from evalsvc.policy import Policy, load_policy
    from evalsvc.store.session import open_store

    rules = load_policy(policy) if policy else Policy(name="default", proof="declared")
    with open_store(db, read_only=True) as store:
        base, cand = named_arms(store, baseline, candidate)
        decision = decide_stored(store, base, cand, rules)
    if json:
        print_json(decision.to_json())
    else:
        from evalsvc.cli.tables import render_decisions

        stdout_console().print(render_decisions([decision], families=True))
    if not any(row.n for row in decision.rows):
        raise typer.Exit(EXIT_INVALID)
