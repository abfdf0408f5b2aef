"""The page of what is gained: one serving figure at a time."""

import json
import shutil
from pathlib import Path

from evalsvc.store import queries
from evalsvc.store.measurements import save
from evalsvc.store.records import Measurement
from evalsvc.store.session import open_store


def test_the_trade_off_of_measured_arms(run_app, choose, database, tmp_path, words_of):
    path = Path(shutil.copy(database, tmp_path / "measured.db"))
    with open_store(path) as store:
        for number, arm in enumerate(queries.arms(store, 1)[:3]):
            common = {"fingerprint": arm.fingerprint, "arm": arm.name, "plan": arm.plan, "device": "cpu"}
            for at_once in (1, 4):
                figures = {
                    "ttft_s": [0.1],
                    "itl_s": [0.01],
                    "e2e_s": [1.0 + number],
                    "prompt_tokens": 100,
                    "generated_tokens": 50 * at_once,
                    "wall_s": 1.0,
                }
                cell = {"prompt_tokens": 64, "concurrency": at_once, "figures": figures}
                save(store, Measurement(**common, settings_hash="s", settings={}, kind="serving", **cell))
    app = run_app(path, "tradeoff", candidate="fp8-weights")
    table = app.dataframe[0].value
    assert table["value"].tolist() == [1.0, 2.0, 3.0] and table["word"].tolist()[0] == "baseline"
    assert not app.warning
    app = choose(app, "Figure", "throughput")
    assert app.dataframe[0].value["value"].tolist() == [50.0] * 3
    old = run_app(path, "tradeoff", figure="beauty", prompt="65", at_once="4")
    said = [warning.value.partition(". Another is shown")[0] for warning in old.warning]
    assert [one.partition(" names ")[2] for one in said] == [
        '"beauty": no figure',
        '"65": no measured number of prompt tokens',
    ]
    assert old.dataframe[0].value["value"].tolist() == [1.0, 2.0, 3.0]
    (said,) = [warning.value for warning in run_app(path, "tradeoff", at_once="9").warning]
    assert "no measured number of requests at once" in said
    app = choose(app, "Requests at once", "at most")
    assert app.dataframe[0].value["value"].tolist() == [200.0] * 3
    assert "choose another cell" in words_of(choose(app, "Figure", "cost"))


def test_the_trade_off_of_capacity_and_of_unequal_largest_concurrencies(run_app, choose, words_of, database, tmp_path):
    """Capacity is one figure an arm whatever the concurrency; `at most` takes each arm's own largest one."""
    path = Path(shutil.copy(database, tmp_path / "capacity.db"))
    with open_store(path) as store:
        for number, arm in enumerate(queries.arms(store, 1)[:2]):
            common = {"fingerprint": arm.fingerprint, "arm": arm.name, "plan": arm.plan, "device": "cpu"}
            common |= {"settings_hash": "s", "settings": {"memory_bytes": 10**9}}
            parts = {"weights_bytes": 2 * 10**8, "other_bytes": 0, "kv_bytes_per_token": 20_000 // (1 + number)}
            room = {"decode": {**parts, "pool_tokens": 1000}}
            save(store, Measurement(**common, kind="capacity", figures=room))
            for at_once in (1, 4, 8)[: 2 + number]:
                figures = {"ttft_s": [0.1], "itl_s": [0.01], "e2e_s": [1.0], "prompt_tokens": 100, "wall_s": 1.0}
                figures |= {"generated_tokens": 50 * at_once}
                cell = {"prompt_tokens": 64, "concurrency": at_once, "figures": figures}
                save(store, Measurement(**common, kind="serving", **cell))
    app = choose(run_app(path, "tradeoff"), "Figure", "capacity")
    table = app.dataframe[0].value
    assert table["value"].tolist() == [8e8 // 20_000, 8e8 // 10_000] and len(app.selectbox) == 4
    assert "tokens of keys and values that fit" in json.dumps(json.loads(app.get("vega_lite_chart")[0].proto.spec))
    app = choose(app, "Figure", "throughput")
    for at_once, shown in (("4", [200.0, 200.0]), ("8", [400.0]), ("at most", [200.0, 400.0])):
        assert choose(app, "Requests at once", at_once).dataframe[0].value["value"].tolist() == shown
