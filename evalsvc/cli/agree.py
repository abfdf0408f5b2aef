"""`evalsvc agree`: answers of two arms side by side, right or wrong aside."""

from typing import Annotated, Any

import typer

from evalsvc.cli.common import DEFAULT_DB, TOGETHER_HELP, Db, Json


def agree(
    baseline: Annotated[str, typer.Argument(metavar="BASELINE", help=TOGETHER_HELP)],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="As the baseline.")],
    examples: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N answers that differ.")] = 0,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show how many answers are the baseline's, where others part.

    For prompts of your own, which no gold answer judges, and for every other generated answer. Two runs of one arm
    that only batch otherwise may differ too: where the baseline has an A/A, its figures stand beside. Another text is
    no worse text: this is a look, exits 0, and 4 when no prompt was answered by both.

    \b
    Example:
      evalsvc agree bf16 kv-fp8 --examples 3
    """
    from evalsvc.agreement import compare
    from evalsvc.cli.common import named_arms, print_json, stdout_console
    from evalsvc.errors import EXIT_INVALID
    from evalsvc.store.answers import answers
    from evalsvc.store.queries import aa_of
    from evalsvc.store.session import open_store

    with open_store(db, read_only=True) as store:
        arms = named_arms(store, baseline, candidate)
        again = aa_of(store, arms[0].run_id)
        again = again if again is not None and again.fingerprint == arms[0].fingerprint else None
        held = [answers(store, arm) for arm in arms]
        rows, compared = compare(*held)
        aa = [] if again is None else compare(held[0], answers(store, again))[0]
    differing = [one for one in compared if one.parting is not None][:examples]
    here = arms[1].run_id == arms[0].run_id and arms[0].name == arms[1].baseline  # what the probe compares with
    kl = {key: found for key, found in (arms[1].probe or {}).items() if here and key.startswith("answers_")}
    beside = {(row.suite, row.family): row for row in aa}
    if json:
        figures: list[dict[str, Any]] = []
        for row in rows:
            other = beside.get((row.suite, row.family))
            figures.append(row.to_json() | {"aa": None if other is None else other.to_json()})
        print_json(
            {
                "schema": "evalsvc.agree/1",
                "baseline": arms[0].address,
                "candidate": arms[1].address,
                "aa": None if again is None else again.address,
                "rows": figures,
                "kl": {key.removeprefix("answers_"): found for key, found in kl.items()},
                "examples": [_example(one) for one in differing],
            }
        )
    else:
        from evalsvc.cli.agree_report import render_agreement

        stdout_console().print(render_agreement(arms[0].address, arms[1].address, rows, beside, kl, differing))
    if not compared:
        raise typer.Exit(EXIT_INVALID)


def _example(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    ours, theirs = one.baseline, one.candidate
    return {
        "suite": ours.suite,
        "family": ours.family,
        "item": ours.item_id,
        "repeat": ours.repeat,
        "prompt": ours.prompt,
        "baseline": {"answer": ours.answer, "finish_reason": ours.finish_reason},
        "candidate": {"answer": theirs.answer, "finish_reason": theirs.finish_reason},
        "alike": asdict(one.parting),
    }
