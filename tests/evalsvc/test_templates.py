"""A model's chat template is found before the model is loaded, whatever form the model has."""

import json

import pytest

from evalsvc.templates import known_template

TEMPLATE = "{% for m in messages %}<tool_call>{{ m.content }}{% endfor %}"


def test_of_a_directory_and_of_nothing(tmp_path):
    (tmp_path / "m").mkdir()
    assert known_template("m", tmp_path) is None
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert known_template("m", tmp_path) == TEMPLATE
    assert known_template("nowhere", tmp_path) is None


def test_of_a_gguf_file_and_none_of_a_broken_one(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert known_template("m.gguf", tmp_path) == TEMPLATE
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00")
    assert known_template("broken.gguf", tmp_path) is None


def test_of_a_hub_snapshot_in_the_cache(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "chat_template.jinja").write_text(TEMPLATE)

    def snapshot_download(name, revision=None, *, local_files_only):
        assert local_files_only and (name, revision) == ("some/model", "v1")
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert known_template("some/model@v1", tmp_path) == TEMPLATE
