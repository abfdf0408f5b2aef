"""The page of effects."""

import pytest

from evalsvc.dashboards.page_attribution import unknown_frame
from evalsvc.verdict.attribution import Effect


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
    page = markup_of(app).replace("<wbr>", "")  # where a format may break
    assert f"no arm has decode.weights={fp8} and nothing else" in page
    assert "baseline <b>15:bf16</b>" in page and "against 15:bf16" in page  # and not 1:bf16, which gates compare with


def test_a_reason_stands_once_with_all_that_it_leaves_unknown():
    changes = [(("decode.kv", "fp8"),), (("decode.kv", "fp8"), ("prefill.kv", "fp8")), (("prefill.kv", "fp8"),)]
    effects = [Effect(changes=changes[n], unknown=why) for n, why in ((0, "no arm"), (1, "no arm"), (2, "no item"))]
    frame = unknown_frame([*effects, Effect(changes=changes[0], drop=0.1)])
    assert frame["why"].tolist() == ["no arm", "no item"]
    assert frame["unknown"].tolist() == ["decode.kv=fp8\ndecode.kv=fp8 with prefill.kv=fp8", "prefill.kv=fp8"]
