"""The chat template of an experiment's model, before anything of it is loaded."""

from pathlib import Path

from evalsvc.errors import EvalsvcError
from evalsvc.suites.toolcall.template import template_of


def known_template(model: str, base_dir: Path) -> str | None:
    """A model's chat template as far as it lies here: a directory's, a GGUF file's, or a hub snapshot's in the cache.

    Nothing is fetched, and no weights are read.

    Args:
        model: As an experiment names it.
        base_dir: Folder that relative paths start from.

    Returns:
        None where there is none, or where nothing of the model is here yet.
    """
    path = base_dir / Path(model).expanduser()
    try:
        if path.is_file():
            from evalsvc.engine.checkpoint.gguf_header import read_header

            said = read_header(path).fields.get("tokenizer.chat_template")
            return said if isinstance(said, str) else None
        if not path.exists():
            from evalsvc.engine.checkpoint.hub import cached

            path = cached(model) or path
    except (EvalsvcError, ImportError):  # the engine says what is wrong with a model when it loads it
        return None
    return template_of(path)
