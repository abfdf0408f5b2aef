"""The shipped data, and answers to score."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evalsvc.engine.requests import GenerateResult, ScoreResult

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def data() -> Path:
    return ROOT / "data"


@pytest.fixture(scope="session")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "data" / "generate.py")
    assert spec and spec.loader
    sys.path.append(str(ROOT / "data"))  # of the script's own modules
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(text: str) -> GenerateResult:
    return GenerateResult(
        id="",
        text=text,
        token_ids=(1,),
        prompt_tokens=1,
        prompt_sha256="",
        finish_reason="stop",
        stage_tokens={"prefill": 1},
    )


def weighed(*logprobs: float) -> ScoreResult:
    return ScoreResult(
        id="",
        logprobs=logprobs,
        greedy=tuple(False for _ in logprobs),
        continuation_tokens=tuple(1 for _ in logprobs),
        prompt_tokens=1,
        prompt_sha256="",
        stage_tokens={"prefill": len(logprobs)},
    )


@pytest.fixture
def answer():
    """A generated answer of a text."""
    return said


@pytest.fixture
def ranking():
    """A log-likelihood answer of some values."""
    return weighed
