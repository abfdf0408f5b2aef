"""A model by its hub id, `organisation/name` or `organisation/name@revision`, fetched once into the hub's own cache."""

import os
import re
from pathlib import Path

from evalsvc.errors import EngineError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_WANTED = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model")
_UNWANTED = ("*/*", "consolidated*")  # other forms of the same weights
_TRUE = ("1", "ON", "YES", "TRUE")


def is_hub_id(text: str) -> bool:
    """Whether text has the form of a hub id."""
    return _ID.fullmatch(text) is not None


def fetch(model_id: str) -> Path:
    """The directory of a hub model, from the cache or fetched now. No code of the model is fetched.

    Raises:
        EngineError: It is not in the cache, and the hub cannot be reached or does not give it.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = model_id.partition("@")
    asked = {"revision": revision or None, "allow_patterns": list(_WANTED), "ignore_patterns": list(_UNWANTED)}
    try:
        return Path(snapshot_download(name, **asked))
    except Exception as error:  # what a network or a disk can do is of many kinds
        try:
            return Path(snapshot_download(name, **asked, local_files_only=True))
        except Exception:
            raise EngineError(f"model {model_id}: no such directory here, and {_why(name, error)}") from None


def cached(model_id: str) -> Path | None:
    """The directory of a hub model that lies in the cache already; None for another, or for what is no id."""
    if not is_hub_id(model_id):
        return None
    from huggingface_hub import snapshot_download

    name, _, revision = model_id.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except Exception:  # of many kinds; all say that it is not there
        return None


def _why(name: str, error: Exception) -> str:
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        return "the hub shows you no such model or revision; check the id, or log in with `hf auth login`"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    reason = "HF_HUB_OFFLINE is set" if offline else str(error).strip().partition("\n")[0]
    return (
        f"by this id it is not in the hub's cache and cannot be fetched ({reason}); run `hf download {name}` where "
        "there is a network, or give a directory"
    )
