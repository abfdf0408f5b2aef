"""Every page on 2,000,000 samples, and the work that a page does only when it is asked to."""

from pathlib import Path
from types import ModuleType

import pytest

from evalsvc.dashboards import asked, reads_arms
from evalsvc.dashboards.pages import PAGES
from evalsvc.history import arms_of
from evalsvc.store import queries
from evalsvc.store.session import open_store

SAMPLES = 2_000_000


@pytest.fixture(scope="module")
def large_database(tmp_path_factory: pytest.TempPathFactory, large: ModuleType):
    path = large.write_large(tmp_path_factory.mktemp("large") / "large.db", SAMPLES)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def small_database(tmp_path_factory: pytest.TempPathFactory, large: ModuleType) -> Path:
    return large.write_large(tmp_path_factory.mktemp("small") / "small.db", 12_000)


@pytest.mark.slow
def test_every_page_is_drawn_over_two_million_samples(run_app, to_page, markup_of, large_database):
    with open_store(large_database, read_only=True) as store:
        assert sum(run.samples for run in queries.runs(store)) == SAMPLES
    app = run_app(large_database, candidate="int4")
    for listed in PAGES:
        app = to_page(app, listed.path)
        assert "<h1>" in markup_of(app) and not app.error, listed.path
        shown = sum(len(element.value) for kind in (app.code, app.caption, app.info) for element in kind)
        assert shown < 100_000, "a page holds a page's worth of answers"
    button = next(found for found in to_page(app, "attribution").button if found.label == "Compute the effects")
    assert not button.disabled and not app.get("vega_lite_chart")


def test_a_copied_arm_is_as_the_writer_would_have_stored_it(small_database, large):
    with open_store(small_database, read_only=True) as store:
        base, *others = queries.arms(store, large.NIGHTS + 1)
        assert len(others) == large.LARGE_ARMS - 1
        pairs = queries.pairs(store, base, others[-1])
        assert len(pairs) == base.expected and all(p.baseline and p.candidate for p in pairs)
        lost = sum(p.baseline.value > p.candidate.value for p in pairs if p.baseline and p.candidate)
        (decision,) = [d for d in queries.decisions(store, large.NIGHTS + 1) if d["candidate"] == "int4"]
        assert decision["decision"]["rows"][0]["b"] == lost > 0


def test_a_large_run_is_attributed_when_somebody_asks(run_app, words_of, small_database, monkeypatch):
    monkeypatch.setattr(asked, "AT_ONCE_SAMPLES", 100)
    app = run_app(small_database, "attribution")
    assert "Reads 1,200 samples" in words_of(app) and not app.get("vega_lite_chart")
    app.button[0].click().run()
    assert not app.exception and app.get("vega_lite_chart") and not app.button


def test_runs_that_no_gate_decided_wait_in_a_long_history(run_app, words_of, small_database, large, monkeypatch):
    monkeypatch.setattr(asked, "AT_ONCE_SAMPLES", 100)
    app = run_app(small_database, "history", run=large.NIGHTS, candidate="fp8-kv")
    table = app.dataframe[0].value
    assert table["since the run before"].tolist()[0].startswith(reads_arms.NOT_COMPARED)
    assert table["n"].isna().sum() == 1 and len(table) == large.NIGHTS + 1
    assert f"{large.REGRESSION_AT + 1}:fp8-kv" in app.warning[0].value.replace("\\", "")
    app.button[0].click().run()
    assert not any(reads_arms.NOT_COMPARED in said for said in app.dataframe[0].value["since the run before"])


def test_only_undecided_runs_wait(small_database, large):
    with open_store(small_database, read_only=True) as store:
        baseline = queries.resolve_arm(store, "@prod")
        arms = arms_of(store, baseline, "fp8-kv")
        assert [arm.run_id for arm in reads_arms.not_compared(store, baseline, arms)] == [large.NIGHTS + 1]
