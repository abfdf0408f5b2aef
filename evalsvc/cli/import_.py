"""`evalsvc import`: evidence that others wrote, as a finished run of recorded arms."""

from pathlib import Path
from typing import Annotated, Any

import typer

from evalsvc.cli.common import DEFAULT_DB, AllowCode, Db, Json


def import_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What `ls` will call the experiment.")],
    baseline: Annotated[str, typer.Option(metavar="ARM", help="The arm that the others are compared with.")],
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM=PATH", help="An arm's file or folder; may be given again, also for one arm."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: one table with a column for each arm.")
    ] = None,
    again: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="The baseline's evidence of a second run (its A/A).")
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option(metavar="ARM=PLAN", help="What the arm is said to be; for all arms or for none.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="lm-eval: the metric that carries the verdict.")
    ] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="NAME", help="lm-eval: the filter that carries it.")
    ] = None,
    scored_by: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Tables: `generation` or `loglikelihood`, where a plan is declared."),
    ] = None,
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Raw answers: the case file that they answer and are scored by.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORM", help="Raw answers: how tool calls are written; `native` is a list."),
    ] = None,
    allow_code: AllowCode = False,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Store what others measured, as a finished run.

    `compare`, `gate` and the dashboard take it like any other.

    PATH is lm-eval's samples_TASK_DATE.jsonl (--log_samples), a folder of them (the newest of each task), or a table:
    CSV, or one JSON object a line, with the columns `item` and `correct` (0, 1, true, false, or a score between), and
    if you like `suite`, `family`, `cluster`, `repeat`, `answer`, `error`. Empty, NaN and `error` mean that there is no
    answer, which never counts as wrong. With --cases it holds raw answers, which are scored here: `item` (a case's id),
    `answer` and `tool_calls` as an endpoint gave them, `finish_reason`.

    Nothing is stored unless everything can be; the same import again stores nothing.

    \b
    Examples:
      evalsvc import nightly --baseline bf16 --arm bf16=out/a --arm int4=out/b
      evalsvc import gsm8k --baseline base --table is_correct.csv
      evalsvc import kv --baseline a --arm a=a.csv --arm b=b.csv \\
          --plan a="w=bf16" --plan b="kv=bf16 > kv=fp8" --scored-by generation
      evalsvc import calls --cases bfcl.jsonl --baseline a \\
          --arm a=a.jsonl --arm b=b.jsonl
    """
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.cli.import_report import render_recorded
    from evalsvc.errors import ConfigError
    from evalsvc.recorded.declared import GENERATION, LOGLIKELIHOOD, UNKNOWN
    from evalsvc.recorded.load import Sources, load
    from evalsvc.store.lock import locked_store
    from evalsvc.store.recording import record_run

    if scored_by not in (None, GENERATION, LOGLIKELIHOOD):
        raise ConfigError(f"--scored-by {scored_by}: is neither {GENERATION} nor {LOGLIKELIHOOD}")
    arms: dict[str, list[Path]] = {}
    for key, path in _pairs("--arm", "PATH", arm):
        arms.setdefault(key, []).append(Path(path))
    plans = _pairs("--plan", "PLAN", plan)
    if len(dict(plans)) < len(plans):
        raise ConfigError("--plan is given twice for one arm")
    sources = Sources(
        name=name,
        baseline=baseline,
        arms=arms,
        table=table,
        again=again or [],
        plans=dict(plans),
        metric=metric,
        filter=filter_,
        scored_by=scored_by or UNKNOWN,
        cases=cases,
        format=format_,
        allow_code=allow_code,
    )
    recorded = load(sources)
    with locked_store(db, create=True) as store:
        found = record_run(
            store,
            experiment=name,
            experiment_hash=recorded.experiment_hash,
            arms=recorded.arms,
            again=recorded.again,
        )
    if json:
        print_json(_document(found, recorded))
    else:
        stdout_console().print(render_recorded(found, recorded))


def _pairs(option: str, what: str, given: list[str] | None) -> list[tuple[str, str]]:
    from evalsvc.errors import ConfigError

    split = [text.partition("=") for text in given or []]
    odd = next((text for text, (key, _, value) in zip(given or [], split, strict=True) if not key or not value), None)
    if odd is not None:
        raise ConfigError(f"{option} {odd[:80]!r}: write ARM={what}")
    return [(key, value) for key, _, value in split]


def _document(found: Any, recorded: Any) -> dict[str, Any]:
    arms = [
        {
            "address": f"{found.run_id}:{arm.name}",
            "plan": arm.plan or None,
            "fingerprint": arm.fingerprint,
            "samples": len(arm.samples),
            "errors": sum(sample.status == "error" for sample in arm.samples),
        }
        for arm in recorded.arms
    ]
    return {
        "schema": "evalsvc.import/1",
        "run": found.run_id,
        "aa_run": found.again_id,
        "stored": found.new,
        "arms": arms,
        "notes": list(recorded.notes),
    }
