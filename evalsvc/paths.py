"""Where things are kept outside the database."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_dir() -> Path:
    """The user's cache: decoded models and calibrated scales. `EVALSVC_CACHE` names another folder."""
    named = os.environ.get("EVALSVC_CACHE")
    return Path(named).expanduser() if named else user_cache_path("evalsvc")
