"""What a user writes to name a model: a directory, a GGUF file, a hub id with or without a revision."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.engine import Engine
from evalsvc.errors import EngineError

OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch) -> Path:
    """A hub cache that holds `org/tiny` at two revisions, `v1` and `main`; nothing else can be reached."""
    held = tmp_path / "hub" / "models--org--tiny"
    for commit, name, ref in ((OLD, "llama", "v1"), (NEW, "qwen3", "main")):
        shutil.copytree(tiny(name), held / "snapshots" / commit)
        (held / "refs").mkdir(exist_ok=True)
        (held / "refs" / ref).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return held


def refusal(model) -> str:
    with pytest.raises(EngineError) as caught:
        open_checkpoint(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "model_type"),
    [("org/tiny", "qwen3"), ("org/tiny@v1", "llama"), (f"org/tiny@{OLD}", "llama"), ("org/tiny@main", "qwen3")],
)
def test_a_hub_model_comes_from_the_cache_at_its_revision(hub, model, model_type):
    assert open_checkpoint(model).config["model_type"] == model_type
    assert Engine.load(model, "w=bf16", kv_tokens=64).logits([5, 6]).isfinite().all()


def test_a_directory_of_that_name_wins(hub, tiny):
    shutil.copytree(tiny("qwen2"), "org/tiny")
    assert open_checkpoint("org/tiny").config["model_type"] == "qwen2"
    assert open_checkpoint("org/tiny@v1").config["model_type"] == "llama"


@pytest.mark.parametrize("model", ["org/other", "org/tiny@v2", f"org/tiny@{'3' * 40}"])
def test_a_model_that_is_not_in_the_cache_is_named_with_the_remedy_where_the_hub_is_off(hub, monkeypatch, model):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = refusal(model)
    assert message.startswith(f"model {model}: no such directory here")
    assert "HF_HUB_OFFLINE is set" in message and f"`hf download {model.partition('@')[0]}`" in message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionError("the network is unreachable\nTraceback"), "(the network is unreachable); run `hf download"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_the_network_says_is_passed_on_in_one_sentence(hub, monkeypatch, error, words):
    def fail(*_, local_files_only=False, **__):
        raise errors.LocalEntryNotFoundError("no") if local_files_only else error

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert words in refusal("org/other")


@pytest.mark.parametrize("kind", [errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.GatedRepoError])
def test_a_model_that_the_hub_does_not_give_is_not_blamed_on_the_network(hub, monkeypatch, kind):
    def fail(*_, local_files_only=False, **__):
        raise errors.LocalEntryNotFoundError("no") if local_files_only else kind("404", response=Mock(headers={}))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    message = refusal("org/other")
    assert "shows you no such model or revision" in message and "hf auth login" in message


def test_only_weights_configuration_and_tokenizer_are_fetched_and_no_code(hub, monkeypatch, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    asked = {}

    def note(name, **options):
        asked.update(options, name=name)
        return str(hub / "snapshots" / NEW)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", note)
    open_checkpoint("org/tiny@v1")
    assert (asked["name"], asked["revision"]) == ("org/tiny", "v1")
    wanted = ["config.json", "generation_config.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
    wanted += ["model.safetensors.index.json", "chat_template.jinja", "tokenizer.model", "tokenizer_config.json"]
    unwanted = [
        "modeling_x.py",
        "pytorch_model.bin",
        "original/model.safetensors",
        "consolidated.safetensors",
        "a.gguf",
    ]
    patterns = {"allow_patterns": asked["allow_patterns"], "ignore_patterns": asked["ignore_patterns"]}
    assert list(filter_repo_objects([*wanted, *unwanted], **patterns)) == wanted


@pytest.mark.parametrize("model", ["nowhere", "./nowhere/model", "/nowhere/model", "a/b/c", "~/nowhere-at-all"])
def test_a_path_that_is_nothing_is_not_looked_for_on_the_hub(monkeypatch, model):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    assert "no such directory" in refusal(model)
    assert "no such directory" in refusal(Path("org/tiny"))


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "model.bin: is neither a directory nor a .gguf file" in refusal(tmp_path / "model.bin")
    assert "nothing.gguf" in refusal(tmp_path / "nothing.gguf")


def test_a_directory_is_opened_as_one(tiny):
    assert isinstance(open_checkpoint(tiny("llama")), ModelDirectory)
    assert isinstance(open_checkpoint(str(tiny("llama"))), ModelDirectory)
