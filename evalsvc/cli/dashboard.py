"""`evalsvc dashboard`: serves the pages over a database."""

from pathlib import Path
from typing import Annotated

import typer

from evalsvc.cli.common import DEFAULT_DB, Db, Json


def dashboard(
    db: Db = DEFAULT_DB,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port on 127.0.0.1.")] = 8501,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show a generated history of 60 nights instead of a database.")
    ] = False,
    json: Json = False,
) -> None:
    """Serve the dashboard on this machine until interrupted.

    `--demo` writes the history into the cache once; no model runs for it.

    \b
    Example:
      evalsvc dashboard --db results/evalsvc.sqlite
    """
    import signal
    import subprocess
    import sys

    from evalsvc.cli.common import note, print_json
    from evalsvc.dashboards.launch import streamlit_args
    from evalsvc.errors import EXIT_ERROR
    from evalsvc.store.session import open_store

    if demo:
        db = str(_demo_database())
    open_store(db, read_only=True).close()  # a mistyped path is a sentence here, not a page later
    _refuse_taken(port)
    url = f"http://127.0.0.1:{port}"
    if json:
        print_json({"schema": "evalsvc.dashboard/1", "url": url})
        sys.stdout.flush()
    note(f"dashboard: {url} (Ctrl-C stops it)")
    streamlit = [sys.executable, *streamlit_args(db, port, headless=not browser)]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the server outlives this process
    try:
        code = subprocess.run(streamlit, check=False, stdout=subprocess.DEVNULL).returncode
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        note(f"error: the dashboard stopped with code {code}")
        raise typer.Exit(EXIT_ERROR)


def _refuse_taken(port: int) -> None:
    """Refuses a port before its address is told: the server itself would say so seconds later."""
    import socket

    from evalsvc.errors import ConfigError

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was left a moment ago is free
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except PermissionError:
            raise ConfigError(f"--port {port}: needs rights that you have not; take one above 1023") from None
        except OSError as error:
            raise ConfigError(f"--port {port}: cannot be listened on ({error.strerror}); name another port") from None


def _demo_database() -> Path:
    """The generated history in the cache, written whole or not at all."""
    import tempfile

    from evalsvc.cli.common import note
    from evalsvc.demo.history import NIGHTS, VERSION, write_history
    from evalsvc.errors import ConfigError
    from evalsvc.paths import cache_dir
    from evalsvc.store.schema import REVISION

    kept = cache_dir() / f"demo-history-{VERSION}-{REVISION}"  # one of another schema is left as it is
    path = kept / "history.sqlite"
    if path.exists():
        return path
    note(f"writing a generated history of {NIGHTS} nights to {path}, once, half a minute or so")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder) / "made"
            made.mkdir()
            write_history(made / path.name, folder=kept)
            made.replace(kept)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); name another folder in EVALSVC_CACHE"
        ) from None
    return path
