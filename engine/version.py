"""Which sources compute: part of what every answer and every cached calibration depends on."""

import hashlib
import json
from functools import cache
from importlib import metadata
from pathlib import Path

from evalsvc.kernels import dispatch


@cache
def source_version() -> str:
    """sha256 over the sources of engine and kernels and the versions of what computes for them."""
    digest = hashlib.sha256()
    for module in (__file__, dispatch.__file__):
        root = Path(module).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(json.dumps([metadata.version(name) for name in ("torch", "transformers")]).encode())
    return digest.hexdigest()
