"""`evalsvc model`: makes the small real model ready, once."""

import typer

app = typer.Typer(no_args_is_help=True, help="The small real model.")


@app.command()
def prepare() -> None:
    """Check and decode the small model into the cache.

    Unless it is there already; prints its directory.

    \b
    Example:
      evalsvc model prepare
    """
    from evalsvc.engine.checkpoint.small_model import prepare as prepare_model
    from evalsvc.paths import cache_dir

    typer.echo(prepare_model(cache_dir()))
