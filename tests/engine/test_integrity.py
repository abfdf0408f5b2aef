"""A page that lies ends the requests that read it, and nothing else."""

from dataclasses import replace

import pytest
import torch

from evalsvc.engine.kv.pages import PAGE
from evalsvc.engine.requests import GenerateRequest, RequestFailure, ScoreRequest

UNEQUAL = "w=bf16,kv=bf16 > w=bf16,kv=fp8"


def lanes_of(engine):
    """Lanes in decode, by the id of their request."""
    running = engine._loop.scheduler._lanes
    return {lane.owner.request.id: lane for lanes in running.values() for lane in lanes}


def restamp(pool, slot, layer=1):
    """As a late writer leaves a slot: another tag."""
    pool.guard.stamps[layer, slot, 0] += 100_000


def ask(engine, requests, after, plant):
    """Answers requests; `plant(lanes)` is called once, when so many pieces of text have come."""
    outcomes, pieces = {}, 0
    for outcome in engine.stream(requests):
        if hasattr(outcome, "finish_reason"):
            outcomes[outcome.id] = outcome
            continue
        pieces += 1
        if pieces == after:
            plant(lanes_of(engine))
    return outcomes


@pytest.fixture(scope="module")
def requests(ids):
    return [GenerateRequest(prompt=ids(30 + n, n), max_tokens=20, ignore_eos=True, id=f"r{n}") for n in range(4)]


@pytest.mark.parametrize("mode", ["tags", "content", "content:first"])
@pytest.mark.parametrize("plan", ["w=bf16", UNEQUAL])
def test_the_request_that_meets_it_ends_with_what_it_had_and_neighbours_keep_every_bit(
    serve, requests, plan, mode, nothing_held
):
    clean = {r.id: r for r in serve("llama", plan).generate(requests)}
    engine = serve("llama", plan, integrity=mode)
    pool, bad = engine.arm().decode.pool, []

    def plant(lanes):
        sequence = lanes["r1"].sequence
        bad.append(sequence.pages[1])
        restamp(pool, sequence.slots(20, 21)[0])

    outcomes = ask(engine, requests, 12, plant)
    broken = outcomes.pop("r1")
    assert isinstance(broken, RequestFailure)
    assert (broken.error, broken.finish_reason) == ("integrity", "integrity")
    assert 0 < len(broken.token_ids) < 20 and broken.token_ids == clean["r1"].token_ids[: len(broken.token_ids)]
    assert {r: o.token_ids for r, o in outcomes.items()} == {r: clean[r].token_ids for r in outcomes}

    met = broken.incident
    assert (met.stage, met.page, met.layer, met.expected[1], met.found[1]) == ("decode", bad[0], 1, 20, 20)
    assert met.found[0] == met.expected[0] + 100_000 and met.slot == bad[0] * PAGE + 4 and not met.content
    assert met.step == engine.arm().decode.work.forwards - (20 - len(broken.token_ids)) + 1
    assert str(met) in broken.message
    assert pool.quarantined == set(bad) and pool.usable_pages == pool.n_pages - 1
    again = {r.id: r.token_ids for r in engine.generate(requests)}
    assert again == {r: clean[r].token_ids for r in clean}
    pool.check()
    engine.arm().decode.cache.drop_all()
    assert pool.free_pages == pool.n_pages - 1


def test_a_page_of_a_shared_prefix_ends_all_who_share_it_and_leaves_the_cache(serve, ids):
    prompt = ids(40, 5)
    requests = [GenerateRequest(prompt=[*prompt, n], max_tokens=12, ignore_eos=True, id=f"s{n}") for n in range(3)]
    other = GenerateRequest(prompt=ids(25, 9), max_tokens=12, ignore_eos=True, id="other")
    clean = {r.id: r.token_ids for r in serve("llama", "w=bf16").generate([*requests, other])}
    engine = serve("llama", "w=bf16")
    list(engine.generate([replace(requests[0], max_tokens=1, id="first")]))
    decode = engine.arm().decode

    def plant(lanes):
        shared = lanes["s0"].sequence.pages[1]
        assert all(lanes[f"s{n}"].sequence.pages[1] == shared for n in range(3))
        restamp(decode.pool, shared * PAGE + 2, layer=0)

    outcomes = ask(engine, [*requests, other], 10, plant)
    assert [outcomes[f"s{n}"].finish_reason for n in range(3)] == ["integrity"] * 3
    assert len({outcomes[f"s{n}"].incident.page for n in range(3)}) == 1
    assert outcomes["other"].token_ids == clean["other"]
    assert {r.id: r.token_ids for r in engine.generate(requests)} == {r.id: clean[r.id] for r in requests}
    decode.pool.check()


def test_a_prompt_that_meets_a_bad_page_in_prefill_leaves_nothing_of_itself_in_the_cache(serve, ids, nothing_held):
    engine = serve("llama", "w=bf16")
    prompt = ids(60, 3)
    request = GenerateRequest(prompt=prompt, max_tokens=4, ignore_eos=True, id="x")
    clean = next(engine.generate([request])).token_ids
    prefill = engine.arm().prefill
    pages = prefill.cache.take(prompt, 48).pages
    for page in pages:
        prefill.pool.release([page])
    restamp(prefill.pool, pages[2] * PAGE + 15)
    score = ScoreRequest(context=prompt, continuations=([5], [6, 7]), id="score")
    outcomes = {o.id: o for o in engine.answer([request, score])}
    assert [outcomes[i].error for i in ("x", "score")] == ["integrity", "integrity"]
    assert outcomes["x"].incident.stage == "prefill" and outcomes["x"].token_ids == ()
    assert prefill.cache.peek(prompt, 59)[0] == 2 and prefill.pool.quarantined == {pages[2]}
    assert next(engine.generate([request])).token_ids == clean


@pytest.mark.parametrize("plan", ["w=bf16", UNEQUAL])
def test_a_handoff_that_is_cut_short_ends_only_its_request(serve, requests, plan, monkeypatch):
    clean = {r.id: r.token_ids for r in serve("llama", plan).generate(requests)}
    engine = serve("llama", plan)
    pool, calls = engine.arm().decode.pool, []
    store = pool.store

    def cut(layer, slots, rows, stamps):
        calls.append(layer)
        if len(calls) == 4:  # the second layer of the second request
            slots, rows, stamps = slots[:-3], [part[:-3] for part in rows], stamps[:-3]
        store(layer, slots, rows, stamps)

    monkeypatch.setattr(pool, "store", cut)
    outcomes = {o.id: o for o in engine.generate(requests)}
    broken = [o for o in outcomes.values() if isinstance(o, RequestFailure)]
    assert [(b.error, b.incident.stage, b.incident.layer) for b in broken] == [("integrity", "handoff", 1)]
    assert {i: o.token_ids for i, o in outcomes.items() if o not in broken} == {
        i: t for i, t in clean.items() if i != broken[0].id
    }
    assert len(pool.quarantined) == 1
    pool.check()


def test_a_bad_page_that_is_to_be_handed_over_ends_every_arm_of_the_request(serve, ids, monkeypatch):
    engine = serve("llama", plans={"a": "w=bf16", "b": UNEQUAL})
    request = GenerateRequest(prompt=ids(20, 1), max_tokens=3, arms=("a", "b"), id="x")
    prefill = engine.arm("a").prefill
    assert engine.arm("b").prefill is prefill
    computed = engine._loop.scheduler.complete

    def planted():
        prompts = computed()
        for prompt in prompts:
            restamp(prefill.pool, prompt.sequence.slots(18, 19)[0])
        return prompts

    monkeypatch.setattr(engine._loop.scheduler, "complete", planted)
    outcomes = list(engine.answer([request]))
    assert sorted((o.arm, o.error, o.incident.stage) for o in outcomes) == [
        ("a", "integrity", "handoff"),
        ("b", "integrity", "handoff"),
    ]
    for stage in (prefill, engine.arm("a").decode, engine.arm("b").decode):
        stage.pool.check()
    assert len(prefill.pool.quarantined) == 1


def test_answers_that_no_longer_fit_beside_pages_in_quarantine_fail_by_name(serve, ids):
    engine = serve("llama", "w=bf16", kv_tokens=4 * PAGE)
    requests = [GenerateRequest(prompt=ids(8, n), max_tokens=48, ignore_eos=True, id=f"r{n}") for n in range(2)]
    pool = engine.arm().decode.pool

    def plant(lanes):
        restamp(pool, lanes["r0"].sequence.slots(3, 4)[0])

    outcomes = ask(engine, requests, 6, plant)
    assert outcomes["r0"].error == "integrity"
    failure = outcomes["r1"]
    assert failure.error == "pool" and "pool of 64, 16 of them in quarantine" in failure.message
    refused = next(engine.generate([replace(requests[0], max_tokens=50)]))
    assert refused.error == "pool" and "16 of them in quarantine" in refused.message


def test_preempted_answers_are_sound(serve, ids, nothing_held):
    requests = [GenerateRequest(prompt=ids(16, n), max_tokens=40, ignore_eos=True, id=str(n)) for n in range(5)]
    roomy = {o.id: o.token_ids for o in serve("llama", UNEQUAL).generate(requests)}
    engine = serve("llama", UNEQUAL, kv_tokens=9 * PAGE, integrity="content")
    assert {o.id: o.token_ids for o in engine.generate(requests)} == roomy
    assert engine.stats()["preemptions"] > 0
    nothing_held(engine)


def test_the_mode_changes_no_bit_and_the_proof_says_what_was_checked(serve, mixed, answers):
    found = {}
    for mode in ("off", "tags", "content", "content:first"):
        engine = serve("llama", UNEQUAL, integrity=mode)
        found[mode] = answers(engine, mixed(3))
        proof = engine.proof()
        assert proof["mismatches"] == []
        for stage in ("prefill", "decode"):
            held = proof[stage]["integrity"]
            assert held["mode"] == mode and held["slots_read"] > 0
            assert held["slots_checked"] == (0 if mode == "off" else held["slots_read"])
            assert held["requests_broken_off"] == held["pages_in_quarantine"] == 0
    assert all(found[mode] == found["off"] for mode in found)


def test_a_check_that_does_not_run_fails_the_step_and_none_that_ran_is_a_mismatch(serve, ids, monkeypatch):
    from evalsvc.engine import attention

    engine = serve("llama", "w=bf16")
    request = GenerateRequest(prompt=ids(20), max_tokens=3, id="x")
    list(engine.generate([request]))
    paged = attention.paged_attention
    with monkeypatch.context() as patched:
        patched.setattr(attention, "paged_attention", lambda *args: paged(*args[:-1]))
        with pytest.raises(Exception, match="layer 0 read 20 slots and compared 0"):
            list(engine.generate([replace(request, prompt=ids(20, 4))]))
    engine.arm().decode.work.slots_checked = 0
    mismatch = engine.proof()["mismatches"][-1]
    assert mismatch.startswith("decode: 0 of ") and "checked for their tags" in mismatch


def test_a_slot_that_is_not_sound_never_reaches_who_asks_a_stage_for_logits(serve, ids):
    engine = serve("llama", "w=bf16")
    run = engine.arm().prefill.pool.write

    def forgetful(layer, slots, key, value, stamps):
        run(layer, slots, key, value, stamps if layer else torch.zeros_like(stamps))

    engine.arm().prefill.pool.write = forgetful
    with pytest.raises(Exception, match="position 0 was to hold tag"):
        engine.logits(ids(5))
