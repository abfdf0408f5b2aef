"""Shared fixtures: one torch thread (bits are promised at one), and where the small real model is."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import platformdirs
import pytest


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
