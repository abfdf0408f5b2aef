"""`evalsvc history`: an arm over its runs."""

from typing import Annotated

import typer

from evalsvc.cli.common import ADDRESS_HELP, DEFAULT_DB, Db, Json


def history(
    arm: Annotated[str, typer.Argument(metavar="ARM", help="Its name in every run.")],
    baseline: Annotated[str, typer.Option(metavar="ADDRESS", help=ADDRESS_HELP + " The same for all runs.")],
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Only this suite's series.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="A metric in place of the items' own.")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Less of that metric is better.")] = False,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.4, metavar="P", help="Largest p of a change point.")] = 0.05,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show an arm's drop over its runs, and where it changed.

    Each run against one frozen baseline: all suites pooled run by run, and of each suite its change points; --suite
    shows one run by run, --metric each. Runs that were asked nothing of what the baseline was are left out, and named.
    A change point is an alert and no verdict: its p says how often the same runs in random order split as well. A look:
    exits 0, 4 when no run can be compared, 2 for mistakes.

    \b
    Examples:
      evalsvc history kv-fp8 --baseline bf16
      evalsvc history kv-fp8 --baseline @prod --suite formats --metric valid
    """
    from contextlib import suppress

    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.cli.history_report import no_such_suite, render_histories, series_document
    from evalsvc.errors import ConfigError, StoreError
    from evalsvc.history import arms_of, histories
    from evalsvc.series import POOLED, Measure, keep_series
    from evalsvc.store import queries
    from evalsvc.store.session import open_store

    if lower and metric is None:
        raise ConfigError("--lower is about a --metric: of right answers more is always better")
    measure = Measure(metric or "", "lower" if lower else "higher")
    with open_store(db, read_only=True) as store:
        base = queries.resolve_arm(store, baseline)
        found = histories(store, base, arm, alpha=alpha, measure=measure)
        arms = arms_of(store, base, arm)
    by_suite = found.by_suite
    if suite is not None and suite not in by_suite:
        raise ConfigError(no_such_suite(arm, base, suite, found))
    if metric is None:
        with suppress(StoreError), open_store(db) as store:  # where nobody may write, the next look computes again
            keep_series(store, base, arms)
    chosen = by_suite if suite is None else {suite: by_suite[suite]}
    if json:
        document = {"arm": arm, "baseline": base.address, "metric": metric, "better": measure.better}
        first = next(iter(chosen.values()))
        suites = {name: series_document(points) for name, points in chosen.items() if name != POOLED}
        document |= {"points": series_document(first), "suites": suites, "elsewhere": found.elsewhere}
        print_json({"schema": "evalsvc.history/1", **document})
    else:
        stdout_console().print(render_histories(chosen, base, measure, found.elsewhere))
