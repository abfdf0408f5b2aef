"""The page of an arm over its runs, on a generated history."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from evalsvc.dashboards import reads_arms
from evalsvc.history import arms_of, histories
from evalsvc.series import keep_series
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.schema import Sample
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand


def test_the_history_names_the_night_of_the_regression(run_app, history_database):
    app = run_app(history_database, "history", candidate="fp8-kv")
    (warning,) = app.warning
    assert "11:fp8-kv" in warning.value.replace("\\", "") and "engine: 1 -> 2" in warning.value.replace("\\", "")
    assert len(app.get("vega_lite_chart")) == 1
    table = app.dataframe[0].value
    since = dict(zip(table["run"], table["since the run before"], strict=True))
    assert since["11:fp8-kv"].startswith("level 0.") and since["11:fp8-kv"].endswith(" points; engine: 1 -> 2")
    assert [said for said in since.values() if said] == [since["11:fp8-kv"]]
    assert len(table) == 14 and table["gate"].tolist()[0] == "REGRESSED" and table["gate"].tolist()[-1] == "PASS"
    assert not run_app(history_database, "history", candidate="fp8").warning
    (warning,) = run_app(history_database, "history", candidate="fp8", series="gone").warning
    assert 'names "gone": no suite of this series. Another is shown' in warning.value


def test_the_history_of_the_page_is_that_of_the_command(history_database):
    with open_store(history_database, read_only=True) as store:
        baseline = queries.resolve_arm(store, "@prod")
        ours, words = reads_arms.series(store, baseline, arms_of(store, baseline, "fp8-kv"))
        arms = arms_of(store, baseline, "fp8-kv")
        assert reads_arms.suites_of(store, baseline, arms) == ["formats", "tasks", "tools"]
        pages = {suite: reads_arms.series(store, baseline, arms, (), suite)[0] for suite in ("", "tools")}
        commands = histories(store, baseline, "fp8-kv").by_suite
    assert pages[""] == ours
    for suite, page in pages.items():
        for one, other in zip(page, commands[suite], strict=True):
            assert (one.drop, one.interval) == (pytest.approx(other.drop), pytest.approx(other.interval))
            bare = {"drop": 0, "interval": None, "change": None}
            assert replace(one, **bare) == replace(other, **bare)
        assert [point.change is None for point in page] == [point.change is None for point in commands[suite]]
    assert len(words) == 14


def test_a_history_that_was_kept_is_shown_without_reading_a_sample(run_app, history_database, words_of, tmp_path):
    """Kept by `evalsvc history`, of a baseline against which no gate decided; another suite of it as fast."""
    path = Path(shutil.copy(history_database, tmp_path / "kept.db"))
    with open_store(path) as store:
        frozen = queries.resolve_arm(store, "3:bf16")
        promote(store, frozen, "other", "to look from")
        arms = arms_of(store, frozen, "fp8-kv")
        assert len(reads_arms.not_compared(store, frozen, arms)) == len(arms)
        assert keep_series(store, frozen, arms) == len(arms)
        arms = arms_of(store, frozen, "fp8-kv")
        assert not reads_arms.not_compared(store, frozen, arms)
        with store.transaction() as session:  # a page that read them would find nothing
            session.execute(update(Sample).where(Sample.arm_id == frozen.id).values(status="skipped"))
    app = run_app(path, "history", candidate="fp8-kv", frozen="3:bf16", series="tools")
    assert "Drop of suite tools against the frozen baseline, n 90 items a run" in words_of(app)
    assert app.dataframe[0].value["n"].tolist() == [90] * 14 and not app.button


def test_runs_that_were_asked_other_suites_are_named_and_left_out(run_app, history_database, words_of, tmp_path):
    """Another experiment has an arm of the same name: as `evalsvc history`, and alone it has nothing to show."""
    path = Path(shutil.copy(history_database, tmp_path / "other.db"))
    with open_store(path) as store:
        run_id = by_hand.open_run(store, experiment="other", baseline="bf16")
        stage = {"weights": "bf16", "kv": "bf16"}
        for name in ("bf16", "fp8-kv", "chatty"):
            stages = {"prefill": stage, "decode": {**stage, "kv": "bf16" if name == "bf16" else f"fp8-{name}"}}
            facts = {"fingerprint": f"o-{name}", "stages": stages, "expected": len(elsewhere_asked())}
            arm_id = by_hand.open_arm(store, run_id, name, **facts)
            writer.add_samples(store, run_id, arm_id, elsewhere_asked())
            writer.finish_arm(store, arm_id, None, "matched")
        writer.finish_run(store, run_id)
        baseline, address = queries.resolve_arm(store, "@prod"), f"{run_id}:fp8-kv"
        arms = arms_of(store, baseline, "fp8-kv")
        found = reads_arms.elsewhere(store, baseline, arms)
        assert found == histories(store, baseline, "fp8-kv").elsewhere == {address: ["chat"]}
    app = run_app(path, "history", run=1, candidate="fp8-kv", frozen=baseline.address)
    assert len(app.dataframe[0].value) == len(arms) - 1 and address not in app.dataframe[0].value["run"].tolist()
    assert f"Left out, asked nothing that {baseline.address} was: {address} (chat)" in words_of(app).replace("\\", "")
    own = run_app(path, "history", run=run_id, candidate="fp8-kv", frozen=f"{run_id}:bf16")
    assert own.dataframe[0].value["run"].tolist() == [address]
    alone = run_app(path, "history", run=run_id, candidate="chatty", frozen=baseline.address)
    (said,) = [info.value.replace("\\", "") for info in alone.info]
    assert said == (
        "No run of this arm can be compared with this baseline; all were asked nothing that "
        f"{baseline.address} was: {run_id}:chatty (chat)."
    )
    assert not alone.dataframe


def elsewhere_asked():
    return [by_hand.sample(f"i{i}", 1.0, suite="chat") for i in range(20)]
