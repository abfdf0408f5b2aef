"""`evalsvc doctor` says what is here, and never fails over what is missing."""

import importlib.util

import pytest

from evalsvc import diagnosis
from evalsvc.cli.doctor import _size
from evalsvc.store.schema import REVISION


def test_it_knows_versions_formats_database_and_disk(evalsvc_json, db):
    code, found = evalsvc_json("doctor", "--db", db)
    assert code == 0 and found["problems"] == []
    assert found["versions"]["evalsvc"] and found["versions"]["torch"]
    assert {"fp32", "bf16", "fp8", "int4"} <= set(found["formats"]["weights"])
    assert {"fp32", "bf16", "fp8", "int8"} <= set(found["formats"]["kv"])
    assert found["database"]["revision"] == REVISION and found["database"]["bytes"] > 0
    assert found["disk_free_mib"] > 0 and found["device"]["kernels"] in ("torch", "triton")


def test_it_works_without_torch(evalsvc_json, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(diagnosis, "find_spec", lambda name: None if name == "torch" else real(name))
    code, found = evalsvc_json("doctor", "--db", tmp_path / "none.sqlite")
    assert code == 0 and found["device"] is None and "evalsvc[engine]" in found["engine"]
    assert found["database"]["revision"] is None and "not there yet" in found["database"]["note"]


def test_what_is_not_there_yet_is_no_word_of_its_own(evalsvc, tmp_path):
    said = " ".join(evalsvc("doctor", "--db", tmp_path / "none.sqlite")[1].split())
    assert ", not there yet; `evalsvc run FILE` makes it" in said and "revision" not in said and "note" not in said


def test_a_database_that_is_none_is_a_problem(evalsvc, tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_text("no database at all, only words")
    code, out, _ = evalsvc("doctor", "--db", path)
    assert code == 2 and "is not a SQLite database" in " ".join(out.split())


def test_amounts_are_in_units_of_people(evalsvc, monkeypatch, db):
    from pathlib import Path

    monkeypatch.setattr(diagnosis, "_free", lambda db: 45_331)
    size = Path(db).stat().st_size / 1024
    said = " ".join(evalsvc("doctor", "--db", db)[1].split())
    assert "formats weights fp32, bf16," in said and "; kv fp32, bf16, fp8, int8 cache" in said
    assert f"runs.sqlite, revision {REVISION}, size" in said and "database name" not in said
    assert "disk free 44.27 GiB" in said and f"size {size:.4g} KiB" in said and "mib" not in said


@pytest.mark.parametrize(
    ("count", "says"), [(0, "0 bytes"), (1023, "1023 bytes"), (2**20, "1 MiB"), (3 * 2**29, "1.5 GiB")]
)
def test_sizes(count, says):
    assert _size(count) == says
