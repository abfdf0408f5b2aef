"""`evalsvc doctor`: what is here, and what is missing."""

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def doctor(db: Db = DEFAULT_DB, json: Json = False) -> None:
    """Show versions, device, kernels, formats, cache, database.

    And free disk space; needs no torch. Exits 2 where something that is there cannot be used, such as a damaged
    database; what is missing is said.

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
            table.add_row(_label(name), one_line(_words(value, name)))
        stdout_console().print(table)
    if found["problems"]:
        raise typer.Exit(EXIT_ERROR)


_BARE = ("name", "note")  # say what they are


def _label(name: str) -> str:
    return name.removesuffix("_mib").replace("_", " ").replace("bytes", "size")


def _words(value: object, name: str = "") -> str:
    if isinstance(value, dict):
        known = {key: _words(held, key) for key, held in value.items() if held is not None}
        between = "; " if any(isinstance(held, list) for held in value.values()) else ", "
        return between.join(said if key in _BARE else f"{_label(key)} {said}" for key, said in known.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int) and (name == "bytes" or name.endswith("_mib")):
        return _size(value if name == "bytes" else value * 2**20)
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _size(count: int) -> str:
    """Bytes as people write them."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    return f"{count / 2 ** (10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
