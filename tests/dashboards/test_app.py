"""The page without a browser: what it says of a good database, and of none."""

import html
import json
import shutil
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from evalsvc.alternatives import pack
from evalsvc.dashboards import reads_arms, reads_flips
from evalsvc.dashboards.pages import PAGES
from evalsvc.engine.requests import GenerateResult, TokenLogprobs
from evalsvc.gate import decide_gate
from evalsvc.history import arms_of, histories
from evalsvc.policy import Policy
from evalsvc.recorded.load import Sources, load
from evalsvc.series import keep_series
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.job_tables import AlertRow, DeliveryRow, ExecutionRow, NoticeRow, ScheduleRow
from evalsvc.store.measurements import save
from evalsvc.store.recording import record_run
from evalsvc.store.records import Measurement, NewSample, NewScore, Rescored, Turn
from evalsvc.store.schema import Sample
from evalsvc.store.session import open_store
from evalsvc.suites.toolcall.suite import ToolCallSuite


def choose(app: AppTest, label: str, value: str) -> AppTest:
    box = next(box for box in app.selectbox if box.label == label)
    box.select(value).run()
    assert not app.exception
    return app


def test_the_first_page_shows_every_candidate_with_word_symbol_and_mark(run_app, database, markup_of):
    page = markup_of(run_app(database))
    for name in ("fp8-weights", "kv-fp8-decode", "int4-asym", "int4-sym-decode", "kv-damaged"):
        assert f'<span class="ev-name">{name}</span>' in page
    for words in ("✓ PASS", "▼ REGRESSED", "? INCONCLUSIVE", "⊘ INVALID: blind", "left out of the decision"):
        assert words in page
    assert "⚑ injected fault: decode_k_scale 0.25" in page
    assert "A/A (baseline against itself, 2:base): <b>0.0 points</b> of 148 items flipped (b 0, c 0)." in page


def test_a_card_holds_the_gates_own_sentence_and_comes_worst_first(run_app, database, markup_of):
    with open_store(database, read_only=True) as store:
        sentences = {row["candidate"]: row["decision"]["sentence"] for row in queries.decisions(store, 1)}
    cards = [part for part in markup_of(run_app(database)).split("ev-card")[1:] if "ev-say" in part]
    for name, sentence in sentences.items():
        assert any(f'"ev-name">{name}<' in card and sentence in html.unescape(card) for card in cards), name
    words = ["REGRESSED" if "▼ REGRESSED" in card else "PASS" if "✓ PASS" in card else "" for card in cards]
    assert words.index("PASS") > max(i for i, word in enumerate(words) if word == "REGRESSED")


def test_families_appear_on_demand(run_app, database, markup_of):
    app = run_app(database)
    assert "choose</td>" not in markup_of(app)
    app.toggle[0].set_value(True).run()
    assert "choose</td>" in markup_of(app)


def test_the_candidate_of_the_address_is_kept_from_page_to_page(run_app, database, to_page, markup_of):
    app = run_app(database, candidate="int4-asym")
    assert next(box for box in app.selectbox if box.label == "Candidate").value == "int4-asym"
    for page in ("compare", "flips", "sample"):
        app = to_page(app, page)
        assert app.query_params["candidate"] in ("int4-asym", ["int4-asym"])
        assert '<span class="ev-name">int4-asym</span>' in markup_of(app) or page == "sample"


def test_a_choice_enters_the_address_and_one_that_is_not_there_is_left(run_app, database):
    app = run_app(database, candidate="nobody", run="77")
    assert app.query_params["run"] in ("1", ["1"])
    app = choose(app, "Candidate", "kv-fp8-decode")
    assert app.query_params["candidate"] in ("kv-fp8-decode", ["kv-fp8-decode"])


def test_compare_holds_the_decisions_rows_as_numbers(run_app, database, words_of):
    app = run_app(database, "compare", candidate="int4-sym-decode")
    assert len(app.get("vega_lite_chart")) == 1
    table = app.dataframe[0].value
    pooled = table[table["row"] == "pooled"].iloc[0]
    with open_store(database, read_only=True) as store:
        (row,) = [d for d in queries.decisions(store, 1) if d["candidate"] == "int4-sym-decode"]
    stored = row["decision"]["rows"][0]
    assert (pooled["lost b"], pooled["drop"], pooled["margin"]) == (stored["b"], stored["drop_points"], 5.0)
    assert "n 148, 95 % interval" in words_of(app)


def test_the_2x2_tables_add_up_to_n(run_app, database):
    table = run_app(database, "flips", candidate="int4-sym-decode").dataframe[0].value
    assert len(table) > 5
    assert (table[["both right", "lost b", "gained c", "both wrong"]].sum(axis=1) == table["n"]).all()


def test_flips_are_code_not_markup(run_app, database, markup_of):
    app = run_app(database, "flips", candidate="kv-damaged", suite="formats")
    shown = [code.value for code in app.code]
    assert any(value.startswith("<script>") for value in shown)
    assert "one⟨U+2028⟩two⟨U+202E⟩three␀four" in shown
    assert "<script>" not in markup_of(app)
    assert max(map(len, shown)) <= 4000
    assert any("first 4,000 of 200,000 characters" in caption.value for caption in app.caption)


def test_flips_are_filtered_by_direction_and_page(run_app, database, markup_of):
    app = run_app(database, "flips", candidate="int4-asym")
    both = [caption.value for caption in app.caption if "shown by this choice" in caption.value]
    lost, gained = int(both[0].split()[0]), int(both[0].split()[2])
    assert lost and gained
    assert markup_of(app).index("▼ lost") < markup_of(app).find("▲ gained") or lost > 10
    app = choose(app, "Direction", "gained")
    assert any(f"{gained} shown by this choice" in caption.value for caption in app.caption)
    assert markup_of(app).count("▼ lost") == 0


def test_flips_in_sql_are_the_flips_of_the_store(database, hostile_database):
    keys = ("suite", "family", "item", "through", "repeat", "direction")
    for path in (database, hostile_database):
        with open_store(path, read_only=True) as store:
            base, *others = queries.arms(store, 1)
            for arm in others:
                ours = reads_flips.flips(store, base, arm)
                theirs = queries.flips(store, base, arm)
                named = {(f.suite, f.family, f.item, f.through, f.repeat, f.direction) for f in ours}
                assert len(ours) == len(theirs) and named == {tuple(f[k] for k in keys) for f in theirs}
                assert [f.direction for f in ours] == sorted((f.direction for f in ours), reverse=True)


def test_a_scoring_version_that_does_not_count_flips_nothing(tmp_path, database):
    path = Path(shutil.copy(database, tmp_path / "rescored.db"))
    with open_store(path) as store:
        base, arm = (a for a in queries.arms(store, 1) if a.name in ("base", "fp8-weights"))
        before = len(reads_flips.flips(store, base, arm))
        sides = [p.candidate for p in queries.pairs(store, base, arm) if p.suite == "tools" and p.candidate]
        turned = [
            Rescored(
                sample_id=side.sample_id,
                scoring_version="2",
                scores=(NewScore(metric="acc", filter="none", value=1.0 - (side.value or 0.0)),),
            )
            for side in sides
        ]
        writer.add_scores(store, turned, {arm.id: {"tools": "1"}})
        arm = queries.resolve_arm(store, "1:fp8-weights")
        assert len(reads_flips.flips(store, base, arm)) == before
        writer.add_scores(store, [], {arm.id: {"tools": "2"}})
        arm = queries.resolve_arm(store, "1:fp8-weights")
        assert len(reads_flips.flips(store, base, arm)) == len(queries.flips(store, base, arm)) > before


def test_a_sample_shows_both_answers_where_they_part_and_its_scores(run_app, database, words_of, markup_of):
    app = run_app(database, "sample", candidate="int4-sym-decode")
    assert "flip 1 of" in words_of(app) and "both say" not in words_of(app)
    assert "After 0 equal characters: which token that is was not stored." in markup_of(app)
    scores = app.dataframe[0].value
    assert scores["metric"].tolist() == ["acc"] and scores["candidate"].tolist() == [0.0]


def test_a_sample_of_another_arm_is_a_sentence(run_app, database):
    app = run_app(database, "sample", candidate="int4-asym", sample="999999")
    assert "holds no sample 999999" in app.warning[0].value


def test_a_run_without_a_decision_says_how_to_get_one(run_app, undecided_database, to_page, words_of, markup_of):
    app = run_app(undecided_database)
    page = markup_of(app)
    assert "No gate has decided this candidate yet" in page
    command = "evalsvc gate --baseline 1:base --candidate 1:int4-asym --policy POLICY"
    assert command in page and command in words_of(app)
    assert "running since" in page and "This run is in progress" in words_of(app)
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


def test_a_run_that_has_only_begun_is_one_sentence(run_app, opened_database):
    assert "has no samples yet" in run_app(opened_database).info[0].value


def test_a_run_of_recorded_arms_is_shown_without_plan_proof_or_tokens(run_app, tmp_path, markup_of):
    table = tmp_path / "arms.csv"
    table.write_text("item,base,other\n" + "".join(f"<b>{i}</b>,1,{int(i > 40)}\n" for i in range(300)))
    recorded = load(Sources(name="theirs", baseline="base", arms={}, table=table, plans={}))
    path = tmp_path / "recorded.db"
    with open_store(path, create=True) as store:
        found = record_run(store, experiment="theirs", experiment_hash=recorded.experiment_hash, arms=recorded.arms)
        base, other = queries.arms(store, found.run_id)
        policy = Policy(name="p", proof="declared")
        decided = decide_gate(base, other, queries.pairs(store, base, other), policy)
        writer.save_decision(
            store, base.id, other.id, policy.sha256, decided.verdict, decided.exit_code, decided.to_json()
        )
    page = markup_of(run_app(path))
    for said in ("▼ REGRESSED", "recorded: imported from", "nobody said which formats"):
        assert said in page
    assert "&lt;b&gt;0&lt;/b&gt;" in markup_of(run_app(path, "flips"))


def test_prompts_that_carry_no_verdict_are_shown_as_invalid(run_app, tmp_path, markup_of):
    path = tmp_path / "own.db"
    stage = {"weights": "bf16", "kv": "bf16"}
    common: dict[str, Any] = {"item_hash": "h", "family": "own", "cluster": "", "metric": "", "filter": "none"}
    with open_store(path, create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        for name, decode in (("base", stage), ("cand", {**stage, "kv": "fp8"})):
            arm = writer.open_arm(
                store,
                run,
                name=name,
                fingerprint=name,
                plan="w=bf16",
                stages={"prefill": stage, "decode": decode},
                injected={},
                details={},
                expected=2,
            )
            samples = [
                NewSample(
                    **common,
                    suite="own",
                    item_id=f"i{n}",
                    chance=0.0,
                    scored_by="generation",
                    request_hash="r",
                    settings_hash="s",
                    rendered_hash="t",
                    answer=name,
                    stage_tokens={"prefill": 1, "decode": 3},
                )
                for n in range(2)
            ]
            writer.add_samples(store, run, arm, samples)
            writer.finish_arm(store, arm, None, "matched")
        writer.finish_run(store, run)
        base, cand = queries.arms(store, run)
        decision = decide_gate(base, cand, queries.pairs(store, base, cand), Policy(name="p"))
        row = (base.id, cand.id, "p", decision.verdict, decision.exit_code, decision.to_json())
        writer.save_decision(store, *row)
    page = markup_of(run_app(path))
    assert "INVALID" in page and "cand" in page


def test_seconds_that_a_stage_computed_for_several_arms_are_not_an_arms_own(run_app, database, markup_of):
    page = markup_of(run_app(database, "health"))
    assert " tokens answered · 15 s</div>" in page  # fp8-weights, alone with its prefill stage
    assert " · 3 s · prefill 12 s with base, int4-sym-decode, kv-damaged</div>" in page
    assert "269.0 MB" in page and "0.45" in page


def test_what_is_planned_leased_and_told_stands_on_the_health_page(run_app, database, tmp_path, markup_of):
    path = tmp_path / "jobs.db"
    shutil.copy(database, path)
    at = "2026-11-30T01:00:00.000+00:00"
    with open_store(path) as store, store.session() as session, session.begin():
        session.add(ScheduleRow(job="nightly", cron="0 2 * * *", time_zone="Europe/Berlin", seen_until=at))
        session.add(NoticeRow(id="n1", job="nightly", subject="arm:c", event="regressed", payload={}, created_at=at))
        session.flush()
        done = {"job": "nightly", "planned_at": at, "not_before": at, "status": "failed", "attempt": 2}
        session.add(ExecutionRow(**done, exit_code=2, message="<b>disk</b>"))
        session.add(AlertRow(job="nightly", subject="arm:c", word="REGRESSED", alert="regressed", planned_at=at))
        session.add(DeliveryRow(notice_id="n1", channel="team", not_before=at, tries=3, message="refused"))
    app = run_app(path, "health")
    shown = {tuple(frame.value.columns)[0:2]: frame.value for frame in app.dataframe}
    queue, schedule = shown["id", "job"], shown["job", "cron"]
    assert (queue.status[0], queue.attempt[0], queue["exit code"][0]) == ("failed", 2, 2)
    assert queue.message[0] == "<b>disk</b>" and "<b>disk" not in markup_of(app)  # text in a table, never markup
    assert schedule["time zone"][0] == "Europe/Berlin" and queue["planned at"][0] == "2026-11-30 01:00:00"
    assert shown["job", "subject"].word[0] == "REGRESSED"
    assert (shown["id", "channel"].tries[0], shown["id", "channel"].status[0]) == (3, "pending")


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


def test_the_history_names_the_night_of_the_regression(run_app, history_database):
    app = run_app(history_database, "history", candidate="fp8-kv")
    (warning,) = app.warning
    assert "11:fp8-kv" in warning.value.replace("\\", "") and "engine: 1 -> 2" in warning.value.replace("\\", "")
    assert len(app.get("vega_lite_chart")) == 1
    table = app.dataframe[0].value
    assert len(table) == 14 and table["gate"].tolist()[0] == "REGRESSED" and table["gate"].tolist()[-1] == "PASS"
    assert not run_app(history_database, "history", candidate="fp8").warning


def test_the_history_of_the_page_is_that_of_the_command(history_database):
    with open_store(history_database, read_only=True) as store:
        baseline = queries.resolve_arm(store, "@prod")
        ours, words = reads_arms.series(store, baseline, arms_of(store, baseline, "fp8-kv"))
        arms = arms_of(store, baseline, "fp8-kv")
        assert reads_arms.suites_of(store, baseline, arms) == ["formats", "tasks", "tools"]
        pages = {suite: reads_arms.series(store, baseline, arms, (), suite)[0] for suite in ("", "tools")}
        commands = histories(store, baseline, "fp8-kv")
    assert pages[""] == ours
    for suite, page in pages.items():
        for one, other in zip(page, commands[suite], strict=True):
            assert (one.drop, one.interval) == (pytest.approx(other.drop), pytest.approx(other.interval))
            bare = {"drop": 0, "interval": None, "change": None}
            assert replace(one, **bare) == replace(other, **bare)
        assert [point.change is None for point in page] == [point.change is None for point in commands[suite]]
    assert len(words) == 14


def test_every_page_of_the_generated_history_has_something_to_show(
    run_app, to_page, words_of, markup_of, history_database
):
    """What is right and where answers part, what is gained, what was measured, and the jobs that ran it."""
    app = run_app(history_database, "sample", candidate="fp8-kv")
    assert "Not shown" not in words_of(app) and "which token that is was not stored" not in markup_of(app)
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
    assert "<td>✗ none are made up</td>" in markup_of(app) and '<th class="">bf16 (baseline)</th>' in markup_of(app)
    executions = next(frame.value for frame in app.dataframe if "exit code" in frame.value)
    assert executions["exit code"].tolist() == [1.0] * 5 + [0.0] * 9 and "nothing measured" not in markup_of(app)


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


def test_the_usual_baseline_is_the_one_that_gates_were_asked_about(run_app, history_database, to_page):
    app = run_app(history_database)
    assert next(box for box in app.selectbox if box.label == "Baseline").value == "1:bf16"
    app = to_page(app, "history")
    assert next(box for box in app.selectbox if box.label == "Frozen baseline").options == ["1:bf16 @prod"]


def test_the_trade_off_of_measured_arms(run_app, database, tmp_path, words_of):
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
    app = choose(app, "Figure", "throughput")
    assert app.dataframe[0].value["value"].tolist() == [50.0] * 3
    app = choose(app, "Requests at once", "at most")
    assert app.dataframe[0].value["value"].tolist() == [200.0] * 3
    assert "choose another cell" in words_of(choose(app, "Figure", "cost"))


def test_the_trade_off_of_capacity_and_of_unequal_largest_concurrencies(run_app, words_of, database, tmp_path):
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


def test_three_arms_flow_side_by_side_and_two_do_not(run_app, words_of, database, hostile_database):
    app = run_app(database, "flips", candidate="kv-damaged")
    assert len(app.get("vega_lite_chart")) == 1
    flipped = set()
    with open_store(database, read_only=True) as store:
        base, *others = queries.arms(store, 1)
        for arm in others[:5]:
            flipped |= {(f["suite"], f["item"], f["through"]) for f in queries.flips(store, base, arm)}
    assert f"n {len(flipped):,} items that any arm flips" in words_of(app)
    assert not run_app(hostile_database, "flips").get("vega_lite_chart")


def test_a_job_that_failed_stands_on_the_first_page_until_it_ends_well(run_app, markup_of, database, tmp_path):
    path = Path(shutil.copy(database, tmp_path / "failed.db"))
    times = [f"2026-11-{day}T01:00:00.000+00:00" for day in (28, 29, 30)]
    with open_store(path) as store, store.session() as session, session.begin():
        for job in ("nightly", "other"):
            session.add(ScheduleRow(job=job, cron="0 2 * * *", time_zone="UTC", seen_until=times[0]))
        session.flush()
        for job, at, status in (
            ("other", times[0], "failed"),
            ("other", times[1], "done"),
            ("nightly", times[0], "done"),
            ("nightly", times[1], "failed"),
            ("nightly", times[2], "queued"),
        ):
            session.add(ExecutionRow(job=job, planned_at=at, not_before=at, status=status, message="no *disk*"))
    (warning,) = run_app(path).warning
    said = warning.value.replace("\\", "")
    assert said == "Job nightly, planned for 2026-11-29 01:00 UTC, failed: no *disk*" and "\\*disk" in warning.value
    assert not run_app(database).warning


def test_integrity_and_what_ran_stand_on_the_health_page(run_app, words_of, markup_of, database, tmp_path):
    app = run_app(database, "health")
    assert markup_of(app).count("<td>linear.bf16.torch 210</td>") == 12 and "kernels, calls" in markup_of(app)
    assert "No incident" in words_of(app) and not app.warning
    path = tmp_path / "incident.db"
    stage = {"weights": "bf16", "kv": "bf16"}
    with open_store(path, create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        for name in ("base", "torn"):
            facts = {"plan": "w=bf16", "stages": {"decode": stage}, "injected": {}, "details": {}, "expected": 1}
            arm = writer.open_arm(store, run, name=name, fingerprint=name, **facts)
            failed = {"status": "error", "error_class": "integrity", "error_message": "page 3 is of another sequence"}
            sample = NewSample(
                suite="s",
                item_id="i",
                item_hash="i",
                family="f",
                cluster="",
                metric="acc",
                filter="none",
                chance=0.0,
                scored_by="generation",
                request_hash="r",
                settings_hash="s",
                rendered_hash="t",
                **(failed if name == "torn" else {}),
            )
            writer.add_samples(store, run, arm, [sample])
            writer.finish_arm(store, arm, {"mismatches": ["decode.kv is bf16"]}, "mismatched")
        writer.finish_run(store, run)
    app = run_app(path, "health")
    assert app.warning[0].value == "3 integrity incidents in this run."
    found = next(frame.value for frame in app.dataframe if "incident" in frame.value)
    assert found["what was found"].tolist() == ["decode.kv is bf16"] * 2 + ["page 3 is of another sequence"]
    assert found["samples"].tolist()[-1] == 1


def test_divergence_shows_quantiles_by_stage_and_place_and_says_which_were_not_stored(run_app, words_of, database):
    app = run_app(database, "divergence", candidate="int4-asym")
    whole, along = (found.value for found in app.dataframe)
    row = whole[(whole["arm"] == "int4-asym") & (whole["where"] == "fixed text, decode")].iloc[0]
    assert row["99 %"] == row["99.9 %"] == row["largest"] > row["median"] > 0
    assert (row["same top 1, %"], row["tokens n"]) == (50, 400)
    assert along["tokens"].tolist() == 2 * ["1-8", "9-16", "17-32", "33-64"]
    assert along["tokens n"].tolist() == 2 * [80, 80, 160, 80]
    assert len(app.get("vega_lite_chart")) == 3 and "An empty quantile was not stored" in words_of(app)
    assert "No places are stored" in words_of(run_app(database, "divergence", candidate="kv-damaged"))


@pytest.fixture
def sides(tmp_path):
    """`sides(base, cand)`: a database with one sample in each of two arms, as these fields say it; gives its path."""
    numbers = iter(range(9))

    def make(base, cand):
        path = tmp_path / f"sides{next(numbers)}.db"
        with open_store(path, create=True) as store:
            run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
            for name, fields in (("base", base), ("cand", cand)):
                facts = {"plan": "w=bf16", "stages": {}, "injected": {}, "details": {}, "expected": 1}
                arm = writer.open_arm(store, run, name=name, fingerprint=name, **facts)
                item = {"suite": "bbh", "item_id": "bbh:0", "item_hash": "i", "family": "bbh", "cluster": ""}
                item |= {"metric": "exact_match", "filter": "strict", "chance": 0.0, "scored_by": "generation"}
                asked = {"request_hash": "r", "settings_hash": "s", "rendered_hash": "t", "scoring_version": "1"}
                writer.add_samples(store, run, arm, [NewSample(**item, **asked, **fields)])
                writer.finish_arm(store, arm, None, "declared")
            writer.finish_run(store, run)
        return path

    return make


def test_lm05_a_sample_shows_what_the_filter_left_with_its_stray_character(run_app, words_of, sides):
    def said(answer, left, value):
        scores = [NewScore(metric="exact_match", filter="strict", value=value, filtered=left)]
        scores += [NewScore(metric="exact_match", filter="whole", value=0.0)]
        return {"answer": answer, "scores": tuple(scores)}

    app = run_app(
        sides(said("So the answer is (D).", "(D)", 1.0), said("So the answer is (D). ", "(D). ", 0.0)), "sample"
    )
    shown = [code.value for code in app.code]
    assert shown[:4] == ["So the answer is (D).", "(D)", "So the answer is (D). ", "(D). "]
    words = words_of(app)
    assert "What the filter strict left:" in words and "What the filter strict left (ends with 1 space):" in words
    assert "filter whole" not in words


@pytest.fixture
def generated():
    """`generated(turns)`: a sample's fields, of answers told as text and, by token, what was likeliest there."""

    def make(turns, value=1.0):
        answers = []
        for text, places in turns:
            entries = tuple(TokenLogprobs(top[0][0], top[0][1], tuple(top)) for top in places)
            about = {"id": "i", "prompt_tokens": 1, "prompt_sha256": "p", "finish_reason": "stop", "stage_tokens": {}}
            ids = tuple(entry.token for entry in entries)
            about |= {"token_ids": ids, "texts": {5: " <b>Yes", 6: " No"}, "logprobs": entries}
            answers.append(GenerateResult(**about, text=text))
        stored = [Turn(answer.text, "stop", answer.token_ids) for answer in answers]
        stored[-1] = Turn(None, None, answers[-1].token_ids)
        score = NewScore(metric="exact_match", filter="strict", value=value)
        fields = {"answer": answers[-1].text, "scores": (score,), "turns": tuple(stored)}
        return fields | {"alternatives": pack(answers)}

    return make


FIRST = [(7, -0.1), (8, -3.0)]
YES, NO = [(5, log(0.75)), (6, log(0.25))], [(6, log(0.5)), (9, log(0.375))]


def test_a_sample_names_the_likeliest_tokens_where_the_answers_part(run_app, words_of, markup_of, sides, generated):
    yes, no = generated([("So Yes", [FIRST, YES])]), generated([("So No", [FIRST, NO])], 0.0)
    app = run_app(sides(yes, no), "sample")
    ours, theirs = (found.value for found in app.dataframe if "written" in found.value)
    assert ours["token"].tolist() == ['" <b>Yes"', '" No"'] and ours["written"].tolist() == ["✓", ""]
    assert ours["probability"].tolist() == [0.75, 0.25] and theirs["probability"].tolist() == [0.5, 0.375]
    assert theirs["id"].tolist() == [6, 9] and theirs["token"].isna().tolist() == [False, True]
    assert "After 3 equal characters: token 2, id 5 against id 6." in markup_of(app)
    assert "Likeliest at token 2" in markup_of(app)
    words = words_of(run_app(sides(yes, no | {"alternatives": None}), "sample"))
    assert "cand: other likely tokens were not stored." in words


def test_turns_that_part_are_shown_with_the_likeliest_tokens_of_their_own_turn(
    run_app, words_of, markup_of, sides, generated
):
    """The second of three: the last ones are equal, and each arm's tokens are counted from its own first one."""
    turns = [("Let me see.", [FIRST, FIRST, FIRST]), ("So Yes", [FIRST, YES]), ("Done.", [FIRST])]
    other = [turns[0], ("So No", [FIRST, NO]), turns[2]]
    app = run_app(sides(generated(turns), generated(other, 0.0)), "sample")
    ours, theirs = (found.value for found in app.dataframe if "written" in found.value)
    assert ours["id"].tolist() == [5, 6] and theirs["id"].tolist() == [6, 9]
    assert "After 3 equal characters of turn 2: token 2, id 5 against id 6." in markup_of(app)
    assert "Likeliest at token 2 of turn 2" in markup_of(app)
    ended = run_app(sides(generated(turns[:2]), generated(turns, 0.0)), "sample")
    assert "of turn 3: token 1, the end against id 7" in markup_of(ended)
    assert "base: the answer had ended." in words_of(ended)


def test_a_sample_says_what_was_right_argument_by_argument(run_app, words_of, database, tmp_path):
    """Of a run whose case file is where it was; the file's text is as untrusted as an answer."""
    path = Path(shutil.copy(database, tmp_path / "calls.db"))
    tool = {"name": "book", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    call = {"name": "book", "arguments": {"city": "<b>Oslo</b>"}}
    cases = tmp_path / "calls.jsonl"
    cases.write_text(json.dumps({"id": "one", "prompt": "Book.", "tools": [tool], "expect": {"call": call}}))
    (item,) = ToolCallSuite("calls", cases, form="json").items()
    suite = {"name": "calls", "kind": "toolcall", "cases": cases.name}
    with open_store(path) as store:
        resolved = {"suites": [suite], "folder": str(tmp_path)}
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved=resolved, baseline="base", seed=0)
        for name, city in (("base", "<b>Oslo</b>"), ("cand", "Rome")):
            facts = {"plan": "w=bf16", "stages": {}, "injected": {}, "details": {}, "expected": 1}
            arm = writer.open_arm(store, run, name=name, fingerprint=name, **facts)
            sample = NewSample(
                suite="calls",
                item_id=item.id,
                item_hash=item.sha256,
                family="calls",
                cluster="",
                metric="correct",
                filter="json",
                chance=0.0,
                scored_by="generation",
                request_hash="r",
                settings_hash="s",
                rendered_hash="t",
                answer=json.dumps({"name": "book", "arguments": {"city": city}}),
                scoring_version="1",
                scores=(NewScore(metric="correct", filter="json", value=float(name == "base")),),
            )
            writer.add_samples(store, run, arm, [sample])
            writer.finish_arm(store, arm, None, "declared")
        writer.finish_run(store, run)
    app = run_app(path, "sample", run=run)
    expected = app.dataframe[0].value
    assert expected["what"].tolist() == ["call: function", "call: city"]
    assert expected["expected"].tolist() == ["book", '"<b>Oslo</b>"']
    assert expected["baseline: base"].tolist() == ["✓ book", '✓ "<b>Oslo</b>"']
    assert expected["candidate: cand"].tolist() == ["✓ book", '✗ "Rome"']
    cases.unlink()
    assert "Not shown: what is right cannot be read" in words_of(run_app(path, "sample", run=run)).replace("\\", "")
