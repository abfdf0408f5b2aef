"""A checkpoint by what a user writes: a directory, a GGUF file or a hub id."""

from pathlib import Path

from evalsvc.errors import EngineError

from .base import Checkpoint
from .directory import ModelDirectory
from .hub import fetch, is_hub_id
from .language import language_part


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Opens a model's files; its tensors stay unread.

    Args:
        model: A directory with config.json, safetensors and tokenizer; a `.gguf` file; or a hub id with an optional
            revision, `organisation/name@revision`. A directory of the same name wins over a hub id.

    Raises:
        EngineError: Nothing of that name, or files that cannot be used.
        CapabilityError: A GGUF file of a kind that is not served.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return language_part(ModelDirectory(path))
    if path.suffix.lower() == ".gguf":
        from .gguf import GgufFile

        return GgufFile(path)
    if path.exists():
        raise EngineError(f"model {path}: is neither a directory nor a .gguf file")
    if isinstance(model, str) and is_hub_id(model):
        return language_part(ModelDirectory(fetch(model)))
    raise EngineError(
        f"model {path}: no such directory; give one with config.json and *.safetensors, a .gguf file or a hub id"
    )
