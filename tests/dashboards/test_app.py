"""The pages without a browser: what all of them say of a good database, of hostile texts, and of no database."""

import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from evalsvc.dashboards import reads_flips
from evalsvc.dashboards.pages import PAGES
from evalsvc.store import queries, session
from evalsvc.store.lock import locked_store
from evalsvc.store.session import open_store


def test_the_candidate_of_the_address_is_kept_from_page_to_page(run_app, database, to_page, markup_of):
    app = run_app(database, candidate="int4-asym")
    assert next(box for box in app.selectbox if box.label == "Candidate").value == "int4-asym"
    for page in ("compare", "flips", "sample"):
        app = to_page(app, page)
        assert app.query_params["candidate"] in ("int4-asym", ["int4-asym"])
        assert '<span class="ev-name">int4-asym</span>' in markup_of(app) or page == "sample"


def test_a_choice_enters_the_address_and_one_that_is_not_there_is_left(run_app, choose, database):
    app = run_app(database, candidate="nobody", run="77")
    assert app.query_params["run"] in ("1", ["1"])
    said = [warning.value.replace("\\", "") for warning in app.warning]
    assert [one.split(": no ")[0].rsplit(" ", 1)[1] for one in said] == ['"77"', '"nobody"']
    assert "no run of this database with arms" in said[0] and "no candidate of run 1." in said[1]
    app = choose(app, "Candidate", "kv-fp8-decode")
    assert app.query_params["candidate"] in ("kv-fp8-decode", ["kv-fp8-decode"]) and not app.warning


def test_another_run_keeps_what_it_has_of_the_choice_and_is_no_old_link(run_app, choose, history_database):
    app = run_app(history_database, run="15", baseline="1:bf16", candidate="fp8-kv")
    app = choose(app, "Run", "3")
    chosen = {box.label: box.value for box in app.selectbox}
    assert chosen == {"Run": "3", "Baseline": "1:bf16", "Candidate": "fp8-kv"}
    assert not app.warning


def test_a_run_without_a_decision_says_how_to_get_one(run_app, undecided_database, to_page, words_of, markup_of):
    app = run_app(undecided_database)
    page = markup_of(app)
    assert "No gate has decided this candidate yet" in page
    command = "evalsvc gate --baseline 1:base --candidate 1:int4-asym --policy POLICY"
    assert command in page and command in words_of(app)
    assert "interrupted, begun" in page and "This run was interrupted" in words_of(app)
    with locked_store(undecided_database) as store:
        store.claim(1)
        answered = run_app(undecided_database)
    assert "running since" in markup_of(answered) and "This run is in progress" in words_of(answered)
    app = to_page(app, "compare")
    assert "No gate has decided this candidate yet" in words_of(app)
    app = to_page(app, "flips")
    assert len(app.code) > 0


def test_no_database_is_one_sentence(run_app, tmp_path, empty_database):
    assert "No database is named" in run_app(None).info[0].value
    assert "evalsvc dashboard --demo" in run_app(empty_database).info[0].value
    app = run_app(tmp_path / "gone.db")
    assert len(app.code) == 1 and app.error[0].value.startswith("This page cannot be shown.")
    assert "no such database; `evalsvc run FILE` makes one" in app.code[0].value
    assert "holds no run with arms yet" in run_app(empty_database).info[0].value


def test_a_file_that_is_no_database_is_one_sentence(run_app, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a long enough text")
    assert "is not a SQLite database" in run_app(path).code[0].value


def test_a_locked_database_says_to_reload_the_page(run_app, database, tmp_path, monkeypatch):
    path = Path(shutil.copy(database, tmp_path / "locked.db"))
    monkeypatch.setattr(session, "open_store", partial(open_store, timeout_s=0.1))
    holder = sqlite3.connect(path)
    holder.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
    try:
        (said,) = [code.value for code in run_app(path).code]
    finally:
        holder.close()
    assert said == f"{path}: is locked by another program; wait for that program or stop it, then reload this page"
    assert not run_app(path).code


def test_a_run_that_has_only_begun_is_one_sentence(run_app, opened_database):
    assert "has no samples yet" in run_app(opened_database).info[0].value


PATHS = [listed.path for listed in PAGES]


@pytest.mark.parametrize("page", PATHS)
def test_every_page_says_what_to_do_where_there_is_nothing(run_app, empty_database, opened_database, page, words_of):
    assert "evalsvc run FILE" in words_of(run_app(empty_database, page))
    assert "Reload this page" in words_of(run_app(opened_database, page))


@pytest.mark.parametrize("page", PATHS)
def test_every_page_shows_every_verdict_and_an_unfinished_run(
    run_app, database, undecided_database, history_database, page, markup_of
):
    for path in (database, undecided_database, history_database):
        app = run_app(path, page)
        assert "<h1>" in markup_of(app)
        assert not app.error


@pytest.mark.parametrize("page", PATHS)
def test_hostile_texts_are_shown_and_never_obeyed(run_app, hostile_database, page, markup_of):
    app = run_app(hostile_database, page)
    assert "<h1>" in markup_of(app) and not app.error
    assert "<script>" not in markup_of(app) and "<b>y</b>" not in markup_of(app)
    read_as_markdown = [
        element.value for kind in (app.caption, app.info, app.warning, app.markdown) for element in kind
    ]
    assert not [text for text in read_as_markdown if "$15 now" in text and "\\$15" not in text]
    assert all(len(code.value) <= 4100 for code in app.code)


def test_every_page_of_the_generated_history_has_something_to_show(
    run_app, choose, to_page, words_of, markup_of, history_database
):
    """What is right and where answers part, what is gained, what was measured, and the jobs that ran it."""
    app = run_app(history_database, "sample", candidate="fp8-kv")
    assert "Not shown" not in words_of(app) and "the tokens were not stored" not in markup_of(app)
    assert app.dataframe[0].value["expected"].notna().all()
    with open_store(history_database, read_only=True) as store:
        arms = [queries.resolve_arm(store, address) for address in ("1:bf16", "15:fp8-kv")]
        (flip, *_) = [one for one in reads_flips.flips(store, *arms) if one.suite == "tasks"]
        right = reads_flips.sample(store, arms[1], flip.candidate_id)
    task = run_app(history_database, "sample", candidate="fp8-kv", sample=flip.candidate_id)
    assert right is not None and right.right_answer in [code.value for code in task.code]
    assert "Likeliest at token" in markup_of(task)
    app = to_page(app, "tradeoff")
    assert len(app.get("vega_lite_chart")) == 1 and app.dataframe[0].value["arm"].tolist()[0] == "bf16 (baseline)"
    for figure in ("throughput", "capacity", "cost"):
        assert len(choose(app, "Figure", figure).get("vega_lite_chart")) == 1
    app = to_page(app, "health")
    page = markup_of(app)
    assert page.count("<td>✗ none are made up</td>") == 1 and '<th class="">all 5 arms</th>' in page
    assert '<div class="ev-name">1:bf16</div>' in page and '<div class="ev-name">15:bf16</div>' in page
    executions = next(frame.value for frame in app.dataframe if "exit code" in frame.value)
    assert executions["exit code"].tolist() == [1.0] * 5 + [0.0] * 9 and "nothing measured" not in markup_of(app)


def test_the_usual_baseline_is_the_one_that_gates_were_asked_about(run_app, history_database, to_page):
    app = run_app(history_database)
    assert next(box for box in app.selectbox if box.label == "Baseline").value == "1:bf16"
    app = to_page(app, "history")
    assert next(box for box in app.selectbox if box.label == "Frozen baseline").options == ["1:bf16 @prod"]
