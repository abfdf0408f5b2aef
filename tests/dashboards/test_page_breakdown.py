"""The page of where it dropped, and of how wrong answers are wrong."""

import json


def test_two_arms_of_one_name_are_two_arms(run_app, history_database):
    """A night's own baseline against a frozen one of the same name: bars stand side by side, and are not summed."""
    app = run_app(history_database, "breakdown", candidate="bf16")
    spec = json.loads(app.get("vega_lite_chart")[1].proto.spec)
    assert spec["encoding"]["color"]["scale"]["domain"] == ["1:bf16", "15:bf16"]
    calls = app.dataframe[0].value
    assert calls["arm"].tolist() == ["1:bf16", "15:bf16"]
    assert 50 < calls["trigger F1, %"][0] <= 100 and calls["calls that fit their schema, %"][0] == 100
    other = run_app(history_database, "breakdown", candidate="fp8-kv").dataframe[0].value
    assert other["arm"].tolist() == ["1:bf16", "fp8-kv"]
