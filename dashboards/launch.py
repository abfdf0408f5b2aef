"""How the dashboard is started: one list of arguments, used by the command and by the tests."""

import os
from pathlib import Path

APP = Path(__file__).with_name("app.py")
_OPTIONS = {
    "server.address": "127.0.0.1",  # answers of a model may be private: nobody else on the network reads them
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",  # a visitor sees no stack trace; the terminal does
    "theme.light.primaryColor": "#1f5f99",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f5f6f8",
    "theme.light.textColor": "#1c2430",
    "theme.dark.primaryColor": "#6cb2ee",
}


def streamlit_args(db: str | os.PathLike[str], port: int, *, headless: bool = True) -> list[str]:
    """Arguments for a Python interpreter that serves the dashboard of one database.

    Args:
        db: Path or URL of the database.
        port: Port on the loopback address.
        headless: Whether the browser stays closed.
    """
    options = _OPTIONS | {"server.port": str(port), "server.headless": str(headless).lower()}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return ["-m", "streamlit", "run", str(APP), *flags, "--", "--db", os.fspath(db)]


def database_address(arguments: list[str], environment: dict[str, str]) -> str | None:
    """The database named by `--db PATH` or `--db=PATH`, else by `EVALSVC_DB`; None when neither names one."""
    for index, argument in enumerate(arguments):
        if argument.startswith("--db="):
            return argument.removeprefix("--db=") or None
        if argument == "--db" and index + 1 < len(arguments):
            return arguments[index + 1]
    return environment.get("EVALSVC_DB") or None
