"""`evalsvc doctor`: what is here, and what is missing."""

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def doctor(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Show versions, device, kernels, formats, the model cache, the database and free disk space. Needs no torch.

    Exits 2 where something that is there cannot be used, such as a damaged database; what is missing is said.

    \b
    Example:
      evalsvc doctor
    """
    from evalsvc.cli.common import one_line, print_json, stdout_console
    from evalsvc.diagnosis import diagnose
    from evalsvc.errors import EXIT_ERROR

    found = diagnose(db)
    if json:
        print_json({"schema": "evalsvc.doctor/1", **found})
    else:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, value in found.items():
            table.add_row(name.replace("_", " "), one_line(_words(value)))
        stdout_console().print(table)
    if found["problems"]:
        raise typer.Exit(EXIT_ERROR)


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_words(held)}" for name, held in value.items())
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
