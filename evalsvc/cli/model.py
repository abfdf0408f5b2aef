"""`evalsvc model`: makes the small real model ready, once."""

import typer

app = typer.Typer(no_args_is_help=True, help="The small real model.")


@app.command()
def prepare() -> None:
    """Checks the small model's file and decodes it into the cache, unless it is there; prints its directory.

    \b
    Example:
      evalsvc model prepare
    """
    from evalsvc.engine.checkpoint.small_model import prepare as prepare_model
    from evalsvc.paths import cache_dir

    typer.echo(prepare_model(cache_dir()))
