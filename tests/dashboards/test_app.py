"""The page without a browser: what it says of a good database, and of none."""

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from evalsvc.dashboards.launch import APP
from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from evalsvc.recorded.load import Sources, load
from evalsvc.store import queries, writer
from evalsvc.store.recording import record_run
from evalsvc.store.records import NewSample
from evalsvc.store.session import open_store


@pytest.fixture
def run_app(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["app.py"])

    def run(database: Path | str | None) -> AppTest:
        if database is None:
            monkeypatch.delenv("EVALSVC_DB", raising=False)
        else:
            monkeypatch.setenv("EVALSVC_DB", str(database))
        app = AppTest.from_file(str(APP), default_timeout=60).run()
        assert not app.exception, app.exception[0].message
        return app

    return run


def markup_of(app: AppTest) -> str:
    """Everything that the page put out as HTML."""
    elements: Any = app.get("html")
    return "\n".join(element.proto.body for element in elements)


def choose(app: AppTest, label: str, value: str) -> AppTest:
    box = next(box for box in app.selectbox if box.label == label)
    box.select(value).run()
    assert not app.exception
    return app


def test_the_table_shows_every_candidate_with_word_symbol_and_mark(run_app, database):
    page = markup_of(run_app(database))
    for name in ("fp8-weights", "kv-fp8-decode", "int4-asym", "int4-sym-decode", "kv-damaged"):
        assert f'<span class="ev-name">{name}</span>' in page
    for words in ("✓ PASS", "▼ REGRESSED", "⊘ INVALID: blind", "left out of the decision"):
        assert words in page
    assert "⚑ injected fault: decode_k_scale 0.25" in page
    assert "A/A (baseline against itself, 2:base): <b>0.0 points</b> of 148 items flipped (b 0, c 0)." in page
    assert "269.0 MB" in page and "0.45" in page


def test_seconds_that_a_stage_computed_for_several_arms_are_not_an_arms_own(run_app, database):
    page = markup_of(run_app(database))
    assert " tokens answered · 15 s</div>" in page  # fp8-weights, alone with its prefill stage
    assert " · 3 s · prefill 12 s with base, int4-sym-decode, kv-damaged</div>" in page


def test_families_appear_on_demand(run_app, database):
    app = run_app(database)
    assert "choose</td>" not in markup_of(app)
    app.toggle[0].set_value(True).run()
    assert "choose</td>" in markup_of(app)


def test_a_plot_for_every_decided_candidate(run_app, database):
    assert len(run_app(database).get("vega_lite_chart")) == 5


def test_flips_are_code_not_markup(run_app, database):
    app = choose(choose(run_app(database), "Candidate", "kv-damaged"), "Suite", "formats")
    shown = [code.value for code in app.code]
    assert any(value.startswith("<script>") for value in shown)
    assert "one⟨U+2028⟩two⟨U+202E⟩three␀four" in shown
    assert "<script>" not in markup_of(app)
    assert max(map(len, shown)) <= 4000
    assert any("first 4,000 of 200,000 characters" in caption.value for caption in app.caption)


def test_flips_are_filtered_by_direction_and_family(run_app, database):
    app = choose(run_app(database), "Candidate", "int4-asym")
    both = [caption.value for caption in app.caption if "shown by this choice" in caption.value]
    lost, gained = int(both[0].split()[0]), int(both[0].split()[2])
    assert lost and gained
    app = choose(app, "Direction", "▲ gained")
    assert any(f"{gained} shown by this choice" in caption.value for caption in app.caption)
    assert markup_of(app).count("▼ lost") == 0


def test_a_run_without_a_decision_says_how_to_get_one(run_app, undecided_database):
    app = run_app(undecided_database)
    page = markup_of(app)
    assert "No gate has decided this candidate yet" in page
    assert "evalsvc gate --baseline 1:base --candidate 1:int4-asym --policy POLICY" in page
    assert "running since" in page
    assert any("No gate has decided a candidate" in info.value for info in app.info)
    assert len(app.code) > 0


def test_no_database_is_one_sentence(run_app, tmp_path, empty_database):
    assert "No database is named" in run_app(None).info[0].value
    app = run_app(tmp_path / "gone.db")
    assert (app.error[0].value, len(app.code)) == ("The database cannot be shown.", 1)
    assert "no such database; `evalsvc run FILE` makes one" in app.code[0].value
    assert "holds no run with arms yet" in run_app(empty_database).info[0].value


def test_a_file_that_is_no_database_is_one_sentence(run_app, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a long enough text")
    assert "is not a SQLite database" in run_app(path).code[0].value


def test_a_run_that_has_only_begun_is_one_sentence(run_app, opened_database):
    assert "has no samples yet" in run_app(opened_database).info[0].value


def test_a_run_of_recorded_arms_is_shown_without_plan_proof_or_tokens(run_app, tmp_path):
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
    for said in (
        "▼ REGRESSED",
        "nothing measured",
        "recorded: imported from",
        "nobody said which formats",
        "&lt;b&gt;0&lt;/b&gt;",
    ):
        assert said in page


def test_prompts_that_carry_no_verdict_are_shown_as_invalid(run_app, tmp_path):
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
