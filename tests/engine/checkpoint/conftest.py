"""Copies of tiny models whose tensors are stored otherwise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import compressing as ct


@pytest.fixture
def rewritten(tiny: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`rewritten(name, edit, config, **changes)`: a tiny model whose tensors `edit` changed, and fields of config.json.

    `edit` may return other tensors, or change the ones that it is given.
    """

    def make(
        name: str,
        edit: Callable[[dict[str, Tensor]], dict[str, Tensor] | None],
        config: dict[str, Any] | None = None,
        folder: str = "stored",
        **changes: Any,
    ) -> Path:
        path = Path(shutil.copytree(tiny(name, **changes), tmp_path / folder))
        tensors = load_file(path / "model.safetensors")
        edited = edit(tensors)
        save_file(tensors if edited is None else edited, path / "model.safetensors", metadata={"format": "pt"})
        fields = json.loads((path / "config.json").read_text()) | (config or {})
        (path / "config.json").write_text(json.dumps(fields))
        return path

    return make


@pytest.fixture
def both(rewritten):
    """`both("llama", scheme)`: a tiny model in a scheme, and the same decompressed by the library."""

    def make(name: str, held, experts_alone: bool = False):
        ignore = ct.KIMI if experts_alone else ("lm_head", "re:.*mlp.gate$")
        return (
            rewritten(name, ct.store(held, experts_alone), ct.config_of(held, ignore=ignore), **ct.KINDS[name]),
            rewritten(name, ct.plain(held, experts_alone), folder="plain", **ct.KINDS[name]),
        )

    return make
