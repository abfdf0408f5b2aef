"""`evalsvc rescore`: stored answers under changed scoring rules."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, AllowCode, Db, Json


def rescore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Experiment file (YAML), whose suites score.")],
    run: Annotated[int | None, typer.Option(metavar="N", help="The run; else the experiment's latest.")] = None,
    allow_code: AllowCode = False,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Score a run's stored answers again, without a model.

    For after a change of parsers or scorers.

    Scores are added under the suites' new scoring versions to every arm of the run and to its A/A, all or none, and
    are what is read from then on; earlier ones stay. Items that changed since they were answered are named and left.
    Arms that are read under unequal versions cannot be compared: the verdict is INVALID. The file is needed because a
    database holds answers, not the cases and the code that score them.

    \b
    Example:
      evalsvc rescore experiment.yaml
    """
    from dataclasses import asdict
    from pathlib import Path

    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.prepared import prepare
    from evalsvc.rescoring import rescore as rescore_run
    from evalsvc.rescoring import run_to_rescore
    from evalsvc.store.lock import locked_store

    prepared = prepare(Path(file), allow_code=allow_code)
    with locked_store(db) as store:
        chosen = run_to_rescore(store, prepared.experiment.name, run)
        reports = rescore_run(store, prepared.asked, chosen, prepared.hash_under)
    if json:
        rows = [asdict(report) | {"before": sorted(report.before)} for report in reports]
        print_json({"schema": "evalsvc.rescore/1", "run": chosen.id, "suites": rows})
    else:
        from evalsvc.cli.rescore_report import render_rescored

        stdout_console().print(render_rescored(chosen.id, reports))
