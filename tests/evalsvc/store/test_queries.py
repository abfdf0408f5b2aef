"""Addresses, pairs, flips and totals."""

import pytest
from sqlalchemy.event import listen

from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.store import baselines, queries, writer
from evalsvc.store.records import ArmTotals


def two_arms(store, build):
    run_id = build.run()
    ids = build.arm(run_id, "base"), build.arm(run_id, "cand")
    return run_id, *ids, *queries.arms(store, run_id)


def test_pairs_are_an_outer_join_in_a_fixed_order(store, build):
    run_id, base_id, cand_id, base, cand = two_arms(store, build)
    writer.add_samples(store, run_id, base_id, [build.sample(2), build.sample(1, 0.0), build.error(3)])
    writer.add_samples(store, run_id, cand_id, [build.sample(4), build.sample(1), build.sample(3)])
    found = queries.pairs(store, base, cand)
    assert [p.item_id for p in found] == ["1", "2", "3", "4"]
    one, two, three, four = found
    assert (one.baseline.value, one.candidate.value) == (0.0, 1.0)
    assert (two.baseline.value, two.candidate) == (1.0, None)
    assert (three.baseline.status, three.baseline.value, three.baseline.error_class) == ("error", None, "Timeout")
    assert three.candidate.value == 1.0
    assert (four.baseline, four.candidate.value) == (None, 1.0)
    assert one.candidate.stage_tokens == {"decode": 1}


def test_the_stage_that_scored_and_the_repeat_keep_pairs_apart(store, build):
    run_id, base_id, cand_id, base, cand = two_arms(store, build)
    samples = [
        build.sample(1, through=through, settings_hash=through, repeat=repeat)
        for through in ("prefill", "decode")
        for repeat in (0, 1)
    ]
    writer.add_samples(store, run_id, base_id, samples)
    writer.add_samples(store, run_id, cand_id, samples)
    found = queries.pairs(store, base, cand)
    assert [(p.through, p.repeat) for p in found] == [("decode", 0), ("decode", 1), ("prefill", 0), ("prefill", 1)]
    assert all(p.baseline and p.candidate for p in found)


def test_an_item_that_changed_between_the_arms_is_one_pair_of_unequal_hashes(store, build):
    run_id, base_id, cand_id, base, cand = two_arms(store, build)
    writer.add_samples(store, run_id, base_id, [build.sample(1)])
    writer.add_samples(store, run_id, cand_id, [build.sample(1, item_hash="new", request_hash="new")])
    (pair,) = queries.pairs(store, base, cand)
    assert pair.baseline.item_hash != pair.candidate.item_hash
    assert pair.baseline.request_hash != pair.candidate.request_hash


def test_two_samples_for_one_place_are_no_evidence(store, build):
    run_id, base_id, _, base, cand = two_arms(store, build)
    writer.add_samples(store, run_id, base_id, [build.sample(1), build.sample(1, request_hash="changed")])
    with pytest.raises(EvidenceError, match="two different samples of item '1'"):
        queries.pairs(store, base, cand)


def test_only_the_items_own_metric_and_filter_is_the_value(store, build):
    run_id, base_id, _, base, _ = two_arms(store, build)
    writer.add_samples(store, run_id, base_id, [build.sample(1, filter="strict")])
    (pair,) = queries.pairs(store, base, base)
    assert pair.baseline.value is None


def test_flips_show_both_answers_and_leave_errors_out(store, build):
    run_id, base_id, cand_id, base, cand = two_arms(store, build)
    writer.add_samples(
        store,
        run_id,
        base_id,
        [build.sample(1, 1.0, answer="yes"), build.sample(2, 0.0), build.sample(3), build.sample(4), build.sample(5)],
    )
    writer.add_samples(
        store,
        run_id,
        cand_id,
        [
            build.sample(1, 0.0, answer="no", finish_reason="length"),
            build.sample(2, 1.0),
            build.sample(3),
            build.error(4),
        ],
    )
    found = queries.flips(store, base, cand)
    assert [(f["item"], f["direction"]) for f in found] == [("1", "lost"), ("2", "gained")]
    lost = found[0]
    assert (lost["prompt"], lost["baseline_answer"], lost["candidate_answer"]) == ("2 + 2 =", "yes", "no")
    assert (lost["baseline_finish"], lost["candidate_finish"]) == ("stop", "length")
    assert queries.flips(store, base, cand, suite="elsewhere") == []


def test_a_bare_arm_is_that_of_the_latest_finished_main_run(store, build):
    build.finished("base", "cand")
    second, _ = build.finished("base", "cand")
    build.finished("base", kind="aa", linked_run_id=second)
    third = build.run()
    build.arm(third, "base")
    build.arm(third, "new")
    assert queries.resolve_arm(store, "base").address == f"{second}:base"
    assert queries.resolve_arm(store, f"{third}:base").run_status == "interrupted"
    with pytest.raises(ConfigError, match=f"in no finished run; finish its run, or name one: {third}:new"):
        queries.resolve_arm(store, "new")


def test_who_typed_a_run_or_a_promoted_name_is_told_how_to_write_it(store, build):
    first, (base, _) = build.finished("base", "cand")
    build.finished("other")
    baselines.promote(store, next(arm for arm in queries.arms(store) if arm.id == base), "prod", "release 1")
    for address, says in (
        ("prod", r"; did you mean @prod\?$"),
        ("1", f"; write RUN:ARM, such as {first}:cand$"),
        ("first:base", f"; write RUN:ARM, such as {first}:base$"),
        ("9", "; write RUN:ARM, such as 2:other$"),
        ("bsae", "it has base, cand, other$"),
    ):
        with pytest.raises(ConfigError, match=says):
            queries.resolve_arm(store, address)


def test_a_mistyped_address_is_told_what_exists(store, build):
    with pytest.raises(ConfigError, match="has no arms; `evalsvc run FILE` makes them"):
        queries.resolve_arm(store, "base")
    run_id, _ = build.finished("base", "a:b")
    with pytest.raises(ConfigError, match="it has base, a:b"):
        queries.resolve_arm(store, "bsae")
    with pytest.raises(ConfigError, match="run 1 has no arm 'x'; it has base, a:b"):
        queries.resolve_arm(store, "1:x")
    with pytest.raises(ConfigError, match=r"there is no run 7 in .*; runs: 1"):
        queries.resolve_arm(store, "7:base")
    empty = build.run()
    with pytest.raises(ConfigError, match=f"run {empty} has no arms yet"):
        queries.resolve_arm(store, f"{empty}:base")
    assert queries.resolve_arm(store, "a:b").address == f"{run_id}:a:b"


def test_runs_count_their_samples_and_errors(store, build):
    run_id, base_id, *_ = two_arms(store, build)
    writer.add_samples(store, run_id, base_id, [build.sample(1), build.error(2)])
    other = build.run()
    first, second = queries.runs(store)
    assert (first.arms, first.samples, first.errors, first.status) == (("base", "cand"), 2, 1, "interrupted")
    assert (second.arms, second.samples, second.errors) == ((), 0, 0)
    assert queries.run_record(store, other) == second
    with pytest.raises(ConfigError, match=r"no run 9 .*; runs: 1, 2"):
        queries.run_record(store, 9)


def test_the_aa_is_the_newest_finished_one(store, build):
    main, _ = build.finished("base", "cand")
    assert queries.aa_of(store, main) is None
    build.finished("base", kind="aa", linked_run_id=main)
    newest, _ = build.finished("base", kind="aa", linked_run_id=main)
    build.arm(build.run(kind="aa", linked_run_id=main))
    found = queries.aa_of(store, main)
    assert found is not None and found.address == f"{newest}:base"


def test_the_latest_decision_of_each_pair_counts(store, build):
    run_id, (base, one, two) = build.finished("base", "one", "two")
    other, (elsewhere,) = build.finished("one")
    writer.save_decision(store, base, two, "p", "PASS", 0, {"n": 1})
    writer.save_decision(store, base, one, "p", "PASS", 0, {"n": 2})
    writer.save_decision(store, base, one, "p", "REGRESSED", 1, {"n": 3})
    writer.save_decision(store, base, elsewhere, "p", "PASS", 0, {"n": 4})
    found = queries.decisions(store, run_id)
    assert [(d["baseline"], d["candidate"], d["verdict"], d["decision"]["n"]) for d in found] == [
        ("base", "one", "REGRESSED", 3),
        ("base", "two", "PASS", 1),
    ]
    assert [d["baseline_run_id"] for d in queries.decisions(store, other)] == [run_id]


def test_totals_leave_the_queue_out_and_know_what_is_unknown(store, build):
    run_id, base_id, cand_id, *_ = two_arms(store, build)
    unknown = build.sample(2, None, status="skipped", prompt_tokens=None, answer_tokens=None, timings={})
    writer.add_samples(store, run_id, base_id, [build.sample(1), build.error(3), unknown])
    assert queries.arm_totals(store, base_id) == ArmTotals(
        samples=3, errors=1, skipped=1, prompt_tokens=10, answer_tokens=2, seconds=1.5
    )
    writer.add_samples(store, run_id, cand_id, [unknown])
    totals = queries.arm_totals(store, cand_id)
    assert (totals.prompt_tokens, totals.answer_tokens, totals.seconds) == (None, None, None)


@pytest.mark.slow
def test_twelve_thousand_pairs_load_without_a_query_each(path, store, build):
    run_id, base_id, cand_id, base, cand = two_arms(store, build)
    for arm_id, wrong in ((base_id, 7), (cand_id, 5)):
        writer.add_samples(store, run_id, arm_id, [build.sample(i, float(i % wrong > 0)) for i in range(12_000)])
    asked: list[str] = []
    listen(store.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert len(queries.pairs(store, base, cand)) == 12_000
    assert len(asked) < 20, asked[:20]
    assert len(queries.flips(store, base, cand)) > 3000
