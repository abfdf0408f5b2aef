"""`evalsvc show`: one run, or one arm with its plan, proof, probe and counts."""

from typing import Annotated

import typer

from evalsvc.cli.common import ADDRESS_HELP, DEFAULT_DB, Db, Json


def show(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help=f"RUN, {ADDRESS_HELP}")],
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show a run, or what an arm is and what was measured of it.

    \b
    Examples:
      evalsvc show 1
      evalsvc show kv-fp8
    """
    from dataclasses import asdict

    from evalsvc.calling import call_figures
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.cli.listing import calls_document, render_arm, render_run
    from evalsvc.serving.figures import served
    from evalsvc.store import queries
    from evalsvc.store.measurements import measurements
    from evalsvc.store.rates import failure_rates
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        if address.isdecimal():
            run = queries.run_record(store, int(address))
            arms = queries.arms(store, run.id)
            document = {"schema": "evalsvc.show/1", "run": asdict(run), "arms": [asdict(arm) for arm in arms]}
            table = render_run(run, arms)
        else:
            arm = queries.resolve_arm(store, address)
            totals = queries.arm_totals(store, arm.id)
            fields = {"address": arm.address, **asdict(arm)}
            baseline = next((a for a in queries.arms(store, arm.run_id) if a.name == arm.baseline), None)
            failures = failure_rates(store, arm, baseline)
            calls = call_figures(store, arm, baseline)
            document = {"schema": "evalsvc.show/1", "arm": fields, "totals": asdict(totals)}
            document |= {"failures": {suite: asdict(rates) for suite, rates in failures.items()}}
            serving = measurements(store, [arm.fingerprint])
            document |= {"serving": [asdict(cell) for cell in served(serving)]}
            document |= {"calls": {suite: calls_document(found) for suite, found in calls.items()}}
            table = render_arm(arm, totals, failures, calls, served(serving))
    if json:
        print_json(document)
    else:
        stdout_console().print(table)
