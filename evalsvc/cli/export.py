"""`evalsvc export`: samples of an arm, or two arms item by item, for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, TOGETHER_HELP, Db


def export(
    arm: Annotated[str, typer.Argument(metavar="ARM", help=TOGETHER_HELP)],
    against: Annotated[
        str | None, typer.Option("--against", metavar="ADDRESS", help="A baseline: one row an item, with both values.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="csv|jsonl",
            help="CSV has no prompts and answers; without it, FILE's ending, else jsonl.",
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="One row a generated token, with the five likeliest there; jsonl only.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to, .csv or .jsonl; stdout without it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Take the place of a FILE that is there.")] = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Write an arm's samples, or two arms item by item.

    Samples have all their scores; with --against a row has both arms' values and what was lost or gained.

    \b
    Examples:
      evalsvc export kv-fp8 --out samples.jsonl
      evalsvc export 1:kv-fp8 --tokens --out tokens.jsonl
      evalsvc export kv-fp8 --against bf16 --out pairs.csv
    """
    import sys

    from evalsvc.cli.common import named_arms, note, refuse_existing, refuse_unwritable, replacing
    from evalsvc.errors import ConfigError
    from evalsvc.exporting import format_of, pair_rows, sample_rows, token_rows, write_csv, write_jsonl
    from evalsvc.store.session import open_store

    refuse_unwritable(out, keep=(db,))
    form = format_of(kind, out)
    if tokens and (form == "csv" or against is not None):
        other = "--against" if against is not None else "--format csv" if kind else f"{out}, a CSV file"
        raise ConfigError(f"--tokens: goes without {other}; it writes the tokens of one arm as JSON lines")
    if not force:
        refuse_existing(out, unless="--force takes its place")
    write = write_csv if form == "csv" else write_jsonl
    with open_store(db, read_only=True) as store:
        found, *base = named_arms(store, *([arm] if against is None else [arm, against]))
        if tokens:
            rows = token_rows(store, found)
        elif not base:
            rows = sample_rows(store, found, texts=form == "jsonl")
        else:
            rows = pair_rows(store, base[0], found)
        if out is None:
            write(rows, sys.stdout)
            return
        with replacing(out) as file:
            written = write(rows, file)
    note(f"{written:,} row{'s' * (written != 1)} in {out}")
