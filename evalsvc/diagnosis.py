"""What this installation is and can do, without torch where there is none."""

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

from evalsvc.engine.precision import KVFormat, WeightFormat
from evalsvc.errors import EvalsvcError
from evalsvc.paths import cache_dir
from evalsvc.store.session import Location, open_store, store_revision

PACKAGES = ("evalsvc", "torch", "triton", "transformers", "lm-eval", "datasets", "sqlalchemy", "psycopg")
_SMALL = "SmolLM2-135M-Instruct"


def diagnose(db: str) -> dict[str, Any]:
    """Everything as plain JSON; `problems` holds a sentence for each thing that is there and cannot be used.

    Args:
        db: Path or URL of the database.
    """
    problems: list[str] = []
    engine = find_spec("torch") is not None
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "engine": "ready" if engine else "not installed: pip install 'evalsvc[engine]' (gates and reads without)",
        "device": _device(problems) if engine else None,
        "formats": {"weights": _kinds(WeightFormat), "kv": _kinds(KVFormat)},
        "cache": str(cache_dir()),
        "small_model": "prepared" if any((cache_dir() / "models").glob(f"{_SMALL}-*")) else "not prepared",
        "database": _database(db, problems),
        "disk_free_mib": _free(db),
        "problems": problems,
    }


def _kinds(form: type) -> list[str]:
    return list(get_args(get_type_hints(form)["kind"]))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(problems: list[str]) -> dict[str, Any] | None:
    """The device that torch sees, and which form the kernels take there."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    except (ImportError, OSError) as error:
        problems.append(f"torch is installed and cannot be imported: {error}")
        return None
    if not torch.cuda.is_available():
        return {"name": "cpu", "threads": torch.get_num_threads(), "kernels": _kernels("cpu", problems)}
    major, minor = torch.cuda.get_device_capability()
    free, total = torch.cuda.mem_get_info()
    memory = {"memory_free_mib": free // 2**20, "memory_mib": total // 2**20}
    held = {"name": torch.cuda.get_device_name(), "capability": f"{major}.{minor}", **memory}
    return {**held, "kernels": _kernels("cuda", problems)}


def _kernels(device: str, problems: list[str]) -> str | None:
    """Which form kernels take; None where the one that is asked cannot run."""
    from evalsvc.kernels.dispatch import described

    try:
        return described(device)
    except EvalsvcError as error:
        problems.append(str(error))
        return None


def _database(db: str, problems: list[str]) -> dict[str, Any]:
    name = db.split("://", 1)[0]
    try:
        location = Location.parse(db)
        name = location.name
        if location.path is not None and not location.path.exists():
            return {"name": name, "revision": None, "note": "not there yet; `evalsvc run FILE` makes it"}
        with open_store(db, read_only=True) as store:
            size = None if location.path is None else location.path.stat().st_size
            return {"name": name, "revision": store_revision(store), "bytes": size}
    except EvalsvcError as error:
        problems.append(str(error))
        return {"name": name, "revision": None}


def _free(db: str) -> int | None:
    """Where the database is, or would be made."""
    try:
        path = Location.parse(db).path
    except EvalsvcError:
        return None
    if path is None:
        return None
    folder = next(parent for parent in (path.absolute().parent, *Path(path).absolute().parents) if parent.is_dir())
    return shutil.disk_usage(folder).free // 2**20
