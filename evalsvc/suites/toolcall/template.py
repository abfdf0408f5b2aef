"""The chat template of a model directory, read without loading the model."""

import json
from pathlib import Path


def template_of(model: Path) -> str | None:
    """A directory's chat template, the one for tools where it has several; None without one, or without a directory."""
    beside = model / "chat_template.jinja"
    try:
        if beside.is_file():
            return beside.read_text(encoding="utf-8")
        said = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    if isinstance(said, list):
        named = {entry.get("name"): entry.get("template") for entry in said if isinstance(entry, dict)}
        said = named.get("tool_use") or named.get("default")
    return said if isinstance(said, str) else None
