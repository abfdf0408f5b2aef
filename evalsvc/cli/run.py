"""`evalsvc run`: an experiment from its file to a table of verdicts."""

from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, AllowCode, Db, Json


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Experiment file (YAML).")] = "experiment.yaml",
    gate: Annotated[
        str | None, typer.Option("--gate", metavar="POLICY", help="Policy file; its verdicts set the exit code.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Compute everything again, as another run.")] = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Start another run that copies what the same arms answered before.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TEXT", help="Go on with the run begun under this key, or start one under it."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another run writes to the database.")] = False,
    families: Annotated[bool, typer.Option("--families", help="Also show each suite's families.")] = False,
    allow_code: AllowCode = False,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Ask every arm every item, and compare with the baseline.

    Continues the latest unfinished run of the same experiment; a finished one is printed again and computes nothing.
    --new computes everything again; --reuse copies what is the same to the last hash, and says how much.
    Exits 0 once all arms ran; with --gate, as `evalsvc gate` over all candidates.

    \b
    Example:
      evalsvc run experiment.yaml --gate policy.yaml
    """
    from pathlib import Path

    from evalsvc.cli.aggregates import group_lines, groups_of, lm_eval_aggregates
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.cli.oddities import oddities
    from evalsvc.cli.progress import TerminalReporter
    from evalsvc.cli.run_report import decide_run, keep_histories, render_arms, run_document
    from evalsvc.errors import ConfigError
    from evalsvc.execution import execute
    from evalsvc.gate import combine_exit_codes, provable_sentence
    from evalsvc.policy import Policy, load_policy
    from evalsvc.prepared import prepare
    from evalsvc.store.lock import locked_store
    from evalsvc.store.session import open_store, refuse_unusable

    if key == "":
        raise ConfigError("--key is empty, and would go on with whatever run was begun without one; give a text")
    if new and key is not None:
        raise ConfigError("--new and --key contradict each other: a key's run is gone on with")
    if reuse and (new or key is not None):
        other = "--new" if new else "--key"
        raise ConfigError(f"--reuse and {other} contradict each other: with {other} every answer is computed")
    prepared = prepare(Path(file), allow_code=allow_code)
    named = prepared.experiment.policy
    if gate is not None:
        policy = load_policy(gate)
    else:
        policy = Policy(name="default") if named is None else load_policy(prepared.base_dir / named)
    refuse_unusable(db, create=True)
    with TerminalReporter() as report:
        report.note(provable_sentence(prepared.items_by_suite(), policy))
        try:
            with locked_store(db, create=True, wait=wait) as store:
                run_id = execute(prepared, store, report, new=new, key=key, reuse=reuse, policy=policy)
                decisions = decide_run(store, run_id, policy)
                keep_histories(store, run_id)
        except KeyboardInterrupt:
            report.note("what was answered is stored; the same command goes on from there")
            raise
    code = combine_exit_codes(decision.exit_code for decision in decisions)
    with open_store(db, read_only=True) as store:
        aggregates, odd = lm_eval_aggregates(prepared.asked, store, run_id), list(oddities(store, run_id))
        if json:
            print_json(run_document(store, run_id, decisions, code) | {"lm_eval": aggregates, "oddities": odd})
        else:
            from evalsvc.cli.tables import render_decisions

            console = stdout_console()
            console.print(render_decisions(decisions, families=families))
            console.print(render_arms(store, run_id))
            if lines := group_lines(aggregates, groups_of(prepared.asked)):
                console.print(lines)
            for sentence in odd:
                console.print(one_line(sentence), style="yellow", markup=False, highlight=False)
    if gate is not None:
        raise typer.Exit(code)
