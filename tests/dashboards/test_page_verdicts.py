"""The first page: what the gate said of every candidate, jobs that failed, runs that carry little."""

import html
import shutil
from dataclasses import replace
from pathlib import Path

from evalsvc.dashboards.markup import verdict_card
from evalsvc.dashboards.reads import Candidate, Held
from evalsvc.dashboards.rows import rows_of
from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from evalsvc.recorded.load import Sources, load
from evalsvc.store import queries, writer
from evalsvc.store.job_tables import ExecutionRow, ScheduleRow
from evalsvc.store.recording import record_run
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand


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


def test_a_card_folds_many_notes_and_says_once_what_would_decide(database):
    with open_store(database, read_only=True) as store:
        arm = queries.arms(store, 1)[1]
        stored = next(d["decision"] for d in queries.decisions(store, 1) if d["candidate"] == arm.name)
    sentence = "INCONCLUSIVE: all suites pooled; about 36 more items would decide"
    decision = {**stored, "sentence": sentence, "notes": [f"guard {n} not proven" for n in range(20)]}
    row = replace(rows_of(stored)[0], level="pooled", word="INCONCLUSIVE", blind=False, more_items=36)
    other = replace(row, level="suite", suite="math", more_items=43)
    facts = {"decided_at": None, "word": "INCONCLUSIVE", "problem": None, "held": Held(samples=1)}
    card = verdict_card(Candidate(arm=arm, decision=decision, rows=(row, other), **facts))
    shown, folded = card.split("<details")
    assert shown.count("<li>") == 8 and "13 more notes" in folded and folded.count("<li>") == 13
    assert card.count("about 36 more items would decide") == 1
    assert "open: math is INCONCLUSIVE; about 43 more items would decide" in folded


def test_families_appear_on_demand(run_app, database, markup_of):
    app = run_app(database)
    assert "choose</td>" not in markup_of(app)
    app.toggle[0].set_value(True).run()
    assert "choose</td>" in markup_of(app)


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
    assert '<td class="met">not declared</td>' in page
    flips = run_app(path, "flips")
    assert "&lt;b&gt;0&lt;/b&gt;" in markup_of(flips) and "scored tokens from" not in markup_of(flips)
    for shown in (flips, run_app(path, "sample")):
        said = [caption.value for caption in shown.caption]
        assert "(no text recorded)" in said and "(empty)" not in said


def test_prompts_that_carry_no_verdict_are_shown_as_invalid(run_app, tmp_path, markup_of):
    path = tmp_path / "own.db"
    stage = {"weights": "bf16", "kv": "bf16"}
    with open_store(path, create=True) as store:
        run = by_hand.open_run(store)
        for name, decode in (("base", stage), ("cand", {**stage, "kv": "fp8"})):
            arm = by_hand.open_arm(store, run, name, stages={"prefill": stage, "decode": decode}, expected=2)
            samples = [by_hand.sample(f"i{n}", suite="own", family="own", metric="", answer=name) for n in range(2)]
            writer.add_samples(store, run, arm, samples)
            writer.finish_arm(store, arm, None, "matched")
        writer.finish_run(store, run)
        base, cand = queries.arms(store, run)
        decision = decide_gate(base, cand, queries.pairs(store, base, cand), Policy(name="p"))
        row = (base.id, cand.id, "p", decision.verdict, decision.exit_code, decision.to_json())
        writer.save_decision(store, *row)
    page = markup_of(run_app(path))
    assert "INVALID" in page and "cand" in page


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
