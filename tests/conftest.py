"""Shared fixtures: one torch thread (bits are promised at one), and where the small real model is."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import platformdirs
import pytest


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The directory of SmolLM2-135M-Instruct, as `make model` prepares it."""
    from evalsvc.engine.checkpoint.small_model import directory

    cache = os.environ.get("EVALSVC_CACHE")
    path = directory(Path(cache) if cache else platformdirs.user_cache_path("evalsvc"))
    if not path.is_dir():
        pytest.skip("the small model is not here: run `make model`")
    return path
