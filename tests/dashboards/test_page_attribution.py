"""The page of effects."""

import pytest


def test_effects_are_told_suite_by_suite(run_app, markup_of, history_database):
    app = run_app(history_database, "attribution")
    pooled, suites = (found.value for found in app.dataframe)
    fp8 = "fp8:w8a8:channel:token"
    named = ["decode.kv=fp8:token-head", f"decode.weights={fp8}", f"prefill.weights={fp8}"]
    assert pooled["change"].tolist() == named and pooled["n"].tolist() == [270] * 3
    assert suites["suite"].tolist() == ["formats", "tasks", "tools"] * 3 and suites["n"].tolist() == [90] * 9
    for change, drop in zip(named, pooled["drop"], strict=True):
        own = suites[suites["change"] == change]
        assert own["drop"].mean() == pytest.approx(drop)
        assert (own["lower"] <= own["drop"]).all() and (own["drop"] <= own["upper"]).all()
    assert f"no arm has decode.weights={fp8} and nothing else" in markup_of(app)
