"""Shared fixtures: one torch thread (bits are promised at one), where the small real model is, a PostgreSQL server.

Garbage is looked for among what a test file made, not among the million objects that modules and collected tests are:
the engine looks at every load, Streamlit at every page.
"""

import gc
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

# The same examples in each run, and none of them timed: neither a draw nor a busy machine decides about a change.
# `--hypothesis-profile=search` draws anew.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("search", **_UNTIMED)
settings.register_profile("same", derandomize=True, **_UNTIMED)
settings.load_profile("same")
gc.disable()  # until every test is collected: importing makes objects that stay


def pytest_collection_finish() -> None:
    gc.enable()
    _set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        _set_aside()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries count at the very end what was not given back


def _set_aside() -> None:
    """What is in use now is looked at no more."""
    gc.collect()
    gc.freeze()


def _cache() -> Path:
    named = os.environ.get("EVALSVC_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("evalsvc")


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The directory of SmolLM2-135M-Instruct, as `make model` prepares it."""
    from evalsvc.engine.checkpoint.small_model import directory

    path = directory(_cache())
    if not path.is_dir():
        pytest.skip("the small model is not here: run `make model`")
    return path


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma-3-270m's GGUF file (Q4_K_M), where someone has put it: 253 MB, under terms of its own."""
    path = _cache() / "models" / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        pytest.skip(f"Gemma-3-270m is not here: put its GGUF file at {path}")
    return path


# Debian's `postgresql`, in a folder of its own, spoken to through its socket.
_SETTINGS = (
    "-c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c max_connections=40 -c unix_socket_directories="
)


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, which Debian keeps off the path; None where there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


def _user() -> str | None:
    """Who runs the server: it refuses root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@contextmanager
def server() -> Iterator[str]:
    """A running server; gives the URL of a database NAME as `url.format(NAME)`."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not here: no initdb and pg_ctl (Debian: apt-get install postgresql)")
    user = _user()
    with tempfile.TemporaryDirectory(prefix="evalsvc-pg-", dir="/tmp") as made:
        if user is not None:
            shutil.chown(made, user)
        data = f"{made}/data"

        def call(program: str, *arguments: str) -> None:
            with Path(made, "log.txt").open("ab") as log:
                subprocess.run(
                    [str(folder / program), "-D", data, *arguments],
                    check=True, user=user, group=user and pwd.getpwnam(user).pw_gid, extra_groups=user and [],
                    cwd=made, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                )  # fmt: skip

        call("initdb", "-A", "trust", "-U", "evalsvc", "--no-sync", "-E", "UTF8", "--locale=C")
        call("pg_ctl", "-w", "-o", _SETTINGS + made, "start")
        try:
            yield f"postgresql://evalsvc@/{{}}?host={made}"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")


class Databases:
    """Hands out the empty databases of one server, two in turn: a test may hold two at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._count = 0

    def new(self) -> str:
        """URL of an empty database."""
        import psycopg

        self._count += 1
        name = f"evalsvc_{self._count % 2}"
        if self._count <= 2:
            with psycopg.connect(self.url.format("postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        with psycopg.connect(self.url.format(name), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url.format(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A PostgreSQL server of this test run; `new()` makes an empty database and gives its URL."""
    with server() as url:
        yield Databases(url)
