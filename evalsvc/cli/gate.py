"""`evalsvc gate`: a policy applied to candidates, ending in an exit code."""

from pathlib import Path
from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, TOGETHER_HELP, Db, Json, PolicyFile


def gate(
    policy: PolicyFile,
    baseline: Annotated[str, typer.Option(metavar="ADDRESS", help=TOGETHER_HELP)],
    candidate: Annotated[list[str], typer.Option(metavar="ADDRESS", help="As the baseline; may be given again.")],
    families: Annotated[bool, typer.Option("--families", help="Also show each suite's families.")] = False,
    db: Db = DEFAULT_DB,
    json: Json = False,
    json_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Write that JSON document to a file.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write markdown for a comment or step summary.")
    ] = None,
) -> None:
    """Decide by a policy if candidates may replace the baseline.

    Exits 0 PASS, 1 REGRESSED, 3 INCONCLUSIVE, 4 INVALID, 2 for mistakes and errors; with several candidates the first
    of 2, 4, 1, 3, 0 that occurs. Decisions are stored, and shown by the dashboard.

    \b
    Example:
      evalsvc gate --policy policy.yaml --baseline bf16 --candidate kv-fp8
    """
    from json import dumps

    from evalsvc.cli.common import named_arms, print_json, refuse_unwritable, stdout_console, write_file
    from evalsvc.cli.deciding import decide_stored
    from evalsvc.gate import combine_exit_codes
    from evalsvc.policy import load_policy
    from evalsvc.reports import to_junit, to_markdown
    from evalsvc.store.session import open_store
    from evalsvc.store.writer import save_decision

    rules = load_policy(policy)
    refuse_unwritable(json_file, junit, markdown, keep=(db, policy))
    with open_store(db) as store:
        base, *named = named_arms(store, baseline, *candidate)
        arms = list({arm.id: arm for arm in named}.values())  # one arm may have been given by two addresses
        decisions = [decide_stored(store, base, arm, rules) for arm in arms]
        for arm, made in zip(arms, decisions, strict=True):  # the baseline may have been stood in for
            save_decision(store, made.baseline.id, arm.id, rules.sha256, made.verdict, made.exit_code, made.to_json())
    code = combine_exit_codes(decision.exit_code for decision in decisions)
    documents = [decision.to_json() for decision in decisions]
    document = {"schema": "evalsvc.gate/1", "exit_code": code, "decisions": documents}
    if json_file:
        write_file(json_file, dumps(document, indent=2, allow_nan=False) + "\n")
    if junit:
        write_file(junit, to_junit(decisions))
    if markdown:
        write_file(markdown, to_markdown(decisions))
    if json:
        print_json(document)
    else:
        from evalsvc.cli.tables import render_decisions

        stdout_console().print(render_decisions(decisions, families=families))
    raise typer.Exit(code)
