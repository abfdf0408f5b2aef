"""`evalsvc init`: files to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from evalsvc.cli.common import Json

FILES = ("experiment.yaml", "policy.yaml", "jobs.yaml", "cases.jsonl", "ci.yaml")


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; it is made if need be.")] = Path(),
    json: Json = False,
) -> None:
    """Write files to begin with; nothing is overwritten.

    A commented experiment, its policy and cases, a jobs file and a pipeline's snippet.

    \b
    Example:
      evalsvc init && evalsvc run
    """
    from importlib.resources import files

    from evalsvc.cli.common import print_json, write_file
    from evalsvc.errors import ConfigError

    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]}: is there already, and nothing was written; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from None
    for name in FILES:
        write_file(folder / name, files("evalsvc").joinpath("templates", name).read_text(encoding="utf-8"))
    written = [str(folder / name) for name in FILES]
    if json:
        print_json({"schema": "evalsvc.init/1", "written": written})
    else:
        typer.echo(f"wrote {', '.join(written)}; next: evalsvc run {folder / FILES[0]}")
