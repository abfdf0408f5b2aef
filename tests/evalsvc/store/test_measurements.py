"""Figures of serving in the database."""

from dataclasses import replace

import pytest

from evalsvc.errors import StoreError
from evalsvc.serving.figures import latest
from evalsvc.store.measurements import measurements, save
from evalsvc.store.records import Measurement
from evalsvc.store.session import open_store

ONE = Measurement(
    fingerprint="f",
    arm="a",
    plan="w=bf16,kv=bf16",
    device="cpu:AVX512",
    settings_hash="s",
    settings={"seed": 0},
    kind="serving",
    prompt_tokens=32,
    concurrency=4,
    figures={"wall_s": 2.0, "ttft_s": [0.1, 0.2]},
)


def stored(path):
    with open_store(path, read_only=True) as store:
        return measurements(store)


def test_a_figure_comes_back_as_it_was_stored(tmp_path):
    path = tmp_path / "runs.sqlite"
    with open_store(path, create=True) as store:
        save(store, ONE)
        save(store, replace(ONE, repeat=1, status="no_room", message="no pages", figures={}))
        save(store, replace(ONE, fingerprint="g"))
        of_f = measurements(store, ["f"])
    assert [replace(m, created_at="") for m in of_f] == [
        ONE,
        replace(ONE, repeat=1, status="no_room", message="no pages", figures={}),
    ]
    assert of_f[0].created_at and [m.fingerprint for m in stored(path)] == ["f", "f", "g"]


def test_the_same_cell_again_replaces_the_earlier_figure(tmp_path):
    path = tmp_path / "runs.sqlite"
    with open_store(path, create=True) as store:
        save(store, ONE)
        save(store, replace(ONE, figures={"wall_s": 3.0}))
    assert [m.figures for m in stored(path)] == [{"wall_s": 3.0}]


def test_what_is_no_number_is_not_stored(tmp_path):
    with open_store(tmp_path / "runs.sqlite", create=True) as store:
        with pytest.raises(StoreError, match="no plain JSON"):
            save(store, replace(ONE, figures={"wall_s": float("nan")}))
        assert measurements(store) == []


def test_the_newest_settings_of_an_arm_count():
    old, new = replace(ONE, settings_hash="old"), replace(ONE, settings_hash="new")
    price = replace(ONE, settings_hash="", kind="price", figures={"per_hour": 2.0})
    assert latest([old, new, replace(new, repeat=1), price]) == [new, replace(new, repeat=1)]
