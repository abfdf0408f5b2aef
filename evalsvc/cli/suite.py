"""`evalsvc suite`: case files made from public sets, and looked over before a model sees them."""

from pathlib import Path
from typing import Annotated

import typer

from evalsvc.cli.common import Json

SETS = {
    "bfcl": "a BFCL_v4_*.json of BFCL, or the folder that holds them and possible_answer/",
    "ifeval": "IFEval's input_data.jsonl",
}
app = typer.Typer(help="Import public sets as case files, and check case files.", no_args_is_help=True)


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(metavar="SET", help="What PATH holds: bfcl or ifeval.")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="bfcl: a BFCL_v4_*.json or their folder, possible_answer/ beside; ifeval: input_data.jsonl.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Case file to write (JSONL).")],
) -> None:
    """Write a public set as a case file.

    bfcl for a suite of kind `toolcall`, ifeval for one of kind `formats`.

    \b
    Example:
      evalsvc suite import bfcl data/bfcl --out bfcl.jsonl
    """
    import json

    from evalsvc.cli.common import note, refuse_unwritable, write_file
    from evalsvc.errors import ConfigError

    if kind not in SETS:
        raise ConfigError(f"{kind}: is no set that can be imported; known: {', '.join(SETS)}")
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder; give {SETS[kind]}")
    refuse_unwritable(out, keep=(str(path),))
    if kind == "bfcl":
        from evalsvc.suites.toolcall.bfcl import import_bfcl

        cases = import_bfcl(path)
    else:
        from evalsvc.suites.formats.ifeval import import_ifeval

        made = import_ifeval(path)
        cases = made.cases
        for key, reason in made.left_out.items():
            note(f"left out {key}: {reason}")
        for key, remark in made.notes.items():
            note(f"{key}: {remark}")
    faulty = [case["id"] for case in cases if "faults" in case]
    if faulty:
        note(f"known faults of the set, kept and named as `faults` of their cases: {', '.join(faulty)}")
    write_file(out, "".join(json.dumps(case) + "\n" for case in cases))
    note(f"{len(cases)} cases written to {out}")


@app.command()
def validate(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of tool-call cases, format cases or own prompts.")
    ],
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="How tool calls are written; json unless named, all: each."),
    ] = None,
    json: Json = False,
) -> None:
    """Look a case file over, without a model.

    Scores every case's right answer, an empty and a wrong one, and names duplicates, doubts and misfits.

    \b
    Examples:
      evalsvc suite validate cases.jsonl
      evalsvc suite validate calls.jsonl --format all
    """
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.errors import ConfigError
    from evalsvc.suites.formats import validate as formats
    from evalsvc.suites.toolcall.parsers import FORMATS
    from evalsvc.suites.toolcall.validate import validate as look_over

    if format not in (None, "all", *FORMATS):
        raise ConfigError(f"--format {format}: not a format; known: all, {', '.join(FORMATS)}")
    kind = formats.kind_of(path)
    if kind == "toolcall":
        found = {form: look_over(path, form) for form in (FORMATS if format == "all" else [format or "json"])}
    elif format is not None:
        raise ConfigError(f"--format {format}: says how tool calls are written, and {path} has none; leave it out")
    else:
        found = {"text": formats.validate(path)}
    problems = list(dict.fromkeys(problem for one in found.values() for problem in one.problems))
    faults = list(dict.fromkeys(fault for one in found.values() for fault in one.faults))
    first = next(iter(found.values()))
    document = {"cases": first.cases, "unproven": first.unproven, "formats": list(found)}
    document |= {"faults": faults, "problems": problems}
    if json:
        print_json({"schema": "evalsvc.suite.validate/1", **document})
    else:
        console = stdout_console()
        for line in (*(f"known: {fault}" for fault in faults), *problems):
            console.print(one_line(line), soft_wrap=True)
        known = f"{_count(len(faults), 'known fault')}, " if faults else ""
        console.print(f"{_count(first.cases, 'case')} of kind {kind}, {known}{_count(len(problems), 'problem')}")
        if first.unproven:
            console.print(f"without a right answer to try (`example` names one): {first.unproven:,}", soft_wrap=True)
    if problems:
        raise ConfigError(f"{path}: {_count(len(problems), 'problem')} in {_count(first.cases, 'case')}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
