"""`evalsvc bench-serve`: speed, throughput, capacity and cost of plans, measured on this machine."""

from typing import Annotated, Literal

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def bench_serve(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Experiment file (YAML) whose arms are measured.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="In place of FILE: a model.")] = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", metavar="[NAME=]PLAN", help="With --model: a plan; again for more.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="ARM", help="With FILE: only this arm; again for more.")
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option("--prompt-tokens", metavar="N,N", help="Exact lengths of prompts, in tokens.")
    ] = "32,128",
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", metavar="N,N", help="Requests under way; max: as many as the plan holds."),
    ] = "1,4,max",
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=1, metavar="N", help="Exact length of each answer, in tokens.")
    ] = 16,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, metavar="N", help="Requests of each client in a repeat.")
    ] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1, metavar="N", help="How often each cell is measured.")] = 3,
    most: Annotated[
        int, typer.Option("--most", min=1, metavar="N", help="Most requests under way at a plan's own maximum.")
    ] = 16,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory", metavar="GIB", help="Memory of each stage's device, 2^30 bytes; else what the first arm needs."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price-per-hour", metavar="PRICE", help="Of the device, in any currency; without it no cost."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, metavar="N", help="With --model: torch threads; 1 unless named.")
    ] = None,
    integrity: Annotated[
        Literal["tags", "off", "content", "content:first"] | None,
        typer.Option("--integrity", help="With --model: what is checked of KV pages; tags unless named."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of the prompts' random token ids.")] = 0,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Measure speed, throughput, capacity and cost of each plan.

    Closed loop: a client asks again once it is answered. Each repeat of each cell is stored; the same command goes on
    from there. What does not fit is a result. Exits 0.

    \b
    Example:
      evalsvc bench-serve experiment.yaml
    """
    from evalsvc.cli.bench_report import bench_document, render_bench
    from evalsvc.cli.common import note, print_json, stdout_console
    from evalsvc.serving.ask import ask
    from evalsvc.serving.bench import run_bench
    from evalsvc.serving.grid import Grid, numbers
    from evalsvc.store.lock import locked_store

    grid = Grid(
        prompt_tokens=numbers(prompt_tokens, "--prompt-tokens"),
        concurrency=numbers(concurrency, "--concurrency", maximum=True),
        new_tokens=new_tokens,
        rounds=rounds,
        repeats=repeats,
        seed=seed,
        most=most,
    )
    bench = ask(
        file, model, plan or [], arm or [], grid, memory_gib=memory, price=price, threads=threads, integrity=integrity
    )
    try:
        with locked_store(db, create=True) as store:
            found = run_bench(bench, store, note)
    except KeyboardInterrupt:
        note("what was measured is stored; the same command goes on from there")
        raise
    if json:
        print_json(bench_document(found, grid, price))
    else:
        stdout_console().print(render_bench(found, grid, price))
