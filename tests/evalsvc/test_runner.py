"""The loop that asks, scores and stores, with a target and a suite in memory."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from evalsvc.engine.requests import (
    Answer,
    GenerateRequest,
    GenerateResult,
    Request,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
    Timings,
)
from evalsvc.errors import ConfigError, EngineError, EvidenceError, StoreError
from evalsvc.runner import ArmRun, Question, questions, request_hash, run_arm, settings_hash
from evalsvc.store import queries, writer
from evalsvc.store.schema import Sample
from evalsvc.store.session import Store, open_store
from evalsvc.suites.base import Item, Score
from evalsvc.targets.base import ArmFacts


def item(name: str, **fields: Any) -> Item:
    given: dict[str, Any] = {"id": name, "family": "f", "cluster": "", "sha256": f"h-{name}", "metric": "correct"}
    return Item(**given | fields)


class FakeSuite:
    """Asks `turns` times for each item; right when the last answer is `yes`."""

    scoring_version = "fake-1"

    def __init__(self, items: Sequence[Item], turns: int = 1, name: str = "fake") -> None:
        self.name, self.turns, self._items = name, turns, items

    def items(self) -> Sequence[Item]:
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Request | None:
        if len(answers) >= self.turns:
            return None
        if item.scored_by == "loglikelihood":
            return ScoreRequest(context=item.id, continuations=("a", "b"))
        return GenerateRequest(prompt=f"{item.id} turn {len(answers)}", max_tokens=4)

    def score(self, item: Item, answers: Sequence[Answer]) -> Sequence[Score]:
        said = getattr(answers[-1], "text", "yes")
        return [Score(metric="correct", value=float(said == "yes"))]


class FakeTarget:
    """Answers `yes`; `answer` may replace an answer, fail a request, or raise."""

    def __init__(self, answer: Callable[[Any], Any] = lambda request: "yes") -> None:
        self.answer = answer
        self.asked: list[Request] = []

    def facts(self, arm: str) -> ArmFacts:
        return facts(arm)

    def submit(self, arm: str, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
        for request in requests:
            self.asked.append(request)
            said = self.answer(request)
            if isinstance(said, RequestFailure):
                yield replace(said, id=request.id)
            elif said is not None:
                yield result(request, said)

    def proof(self, arm: str) -> None:
        return None

    @property
    def prompts(self) -> list[Any]:
        return [getattr(request, "prompt", getattr(request, "context", None)) for request in self.asked]


def result(request: Request, text: str) -> Answer:
    common: dict[str, Any] = {
        "id": request.id,
        "prompt_tokens": 3,
        "prompt_sha256": "r",
        "timings": Timings(queue_s=0.0, prefill_s=0.5, decode_s=0.25),
    }
    if isinstance(request, ScoreRequest):
        tokens = {"prefill": 2, "decode": 0} if request.through == "prefill" else {"prefill": 0, "decode": 2}
        handed = request.through == "decode"
        scored: dict[str, Any] = {"logprobs": (-1.0, -2.0), "greedy": (True, False), "continuation_tokens": (1, 1)}
        return ScoreResult(**common, **scored, stage_tokens=tokens, handed_over=handed)  # pyright: ignore[reportArgumentType]
    return GenerateResult(
        **common, text=text, token_ids=(1, 2), finish_reason="stop", stage_tokens={"prefill": 1, "decode": 1}
    )


def facts(name: str) -> ArmFacts:
    stage = {"weights": "bf16", "kv": "bf16"}
    return ArmFacts(
        name=name,
        fingerprint=f"fp-{name}",
        plan="w=bf16,kv=bf16",
        stages={"prefill": stage, "decode": stage},
        injected={},
        details={},
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.sqlite", create=True) as opened:
        yield opened


@pytest.fixture
def arm(store: Store) -> ArmRun:
    run_id = writer.open_run(store, experiment="e", experiment_hash="x", resolved={}, baseline="base", seed=0)
    fact = facts("base")
    fields = {"plan": fact.plan, "stages": fact.stages, "injected": {}, "details": {}, "expected": 40}
    return ArmRun(run_id, writer.open_arm(store, run_id, name="base", fingerprint=fact.fingerprint, **fields), fact)


def ask(count: int = 40, turns: int = 1, throughs: Sequence[str] = ("prefill",), **fields: Any) -> list[Question]:
    return questions([FakeSuite([item(f"i{n:02}", **fields) for n in range(count)], turns)], throughs)


def samples(store: Store) -> list[Sample]:
    with store.session() as session:
        return list(session.scalars(select(Sample).order_by(Sample.id)))


def statuses(store: Store) -> dict[str, int]:
    found = [sample.status for sample in samples(store)]
    return {status: found.count(status) for status in sorted(set(found))}


def fail(error: str = "too_long") -> RequestFailure:
    return RequestFailure(id="", error=error, message=f"{error} it is")


def test_all_is_asked_once_and_stored_with_its_score(store, arm):
    target = FakeTarget(lambda request: "yes" if "i01" in request.prompt else "no")
    outcome = run_arm(store, target, arm, ask(40), seed=1)
    assert (outcome.stored, outcome.errors) == (40, 0)
    assert sorted(target.prompts) == [f"i{n:02} turn 0" for n in range(40)]
    held = queries.arms(store, arm.run_id)[0]
    values = {pair.item_id: pair.baseline.value for pair in queries.pairs(store, held, held) if pair.baseline}
    assert values == {f"i{n:02}": float(n == 1) for n in range(40)}


def test_only_what_is_missing_is_asked(store, arm):
    run_arm(store, FakeTarget(), arm, ask(25), seed=1)
    target = FakeTarget()
    assert run_arm(store, target, arm, ask(40), seed=1).stored == 15
    assert sorted(target.prompts) == [f"i{n:02} turn 0" for n in range(25, 40)]
    again = FakeTarget()
    assert run_arm(store, again, arm, ask(40), seed=1).stored == 0 and again.asked == []


def test_the_order_is_shuffled_and_belongs_to_the_seed(tmp_path, store, arm):
    def order(seed: int) -> list[str]:
        target = FakeTarget()
        with open_store(tmp_path / f"{seed}-{random.random()}.sqlite", create=True) as other:
            run_id = writer.open_run(other, experiment="e", experiment_hash="x", resolved={}, baseline="b", seed=0)
            keys = {"plan": "p", "stages": {}, "injected": {}, "details": {}, "expected": 40}
            arm_id = writer.open_arm(other, run_id, name="b", fingerprint="f", **keys)
            run_arm(other, target, ArmRun(run_id, arm_id, facts("b")), ask(40), seed=seed)
        return target.prompts

    assert order(1) == order(1)
    assert order(1) != order(2) and order(1) != sorted(order(1))


def test_a_failure_is_an_error_and_no_score_and_is_tried_again(store, arm):
    broken = FakeTarget(lambda request: fail() if "i03" in request.prompt else "yes")
    outcome = run_arm(store, broken, arm, ask(10), seed=1)
    assert outcome.errors == 1 and outcome.first_error == "fake/i03: too_long it is"
    assert statuses(store) == {"error": 1, "scored": 9}
    error = next(sample for sample in samples(store) if sample.status == "error")
    assert (error.error_class, error.error_message, error.answer) == ("too_long", "too_long it is", "")
    held = queries.arms(store, arm.run_id)[0]
    assert [p.item_id for p in queries.pairs(store, held, held) if p.baseline and p.baseline.value is None] == ["i03"]

    target = FakeTarget()
    assert run_arm(store, target, arm, ask(10), seed=1).stored == 1
    assert target.prompts == ["i03 turn 0"] and statuses(store) == {"scored": 10}


def test_a_suite_asks_on_and_the_sample_sums_its_turns(store, arm):
    target = FakeTarget()
    assert run_arm(store, target, arm, ask(5, turns=3), seed=1).stored == 5
    assert len(target.asked) == 15 and len({request.id for request in target.asked}) == 5
    for turn in range(3):  # all items of one turn go out together
        assert sorted(target.prompts[5 * turn : 5 * turn + 5]) == [f"i0{n} turn {turn}" for n in range(5)]
    first = samples(store)[0]
    assert (first.prompt_tokens, first.answer_tokens) == (9, 6)
    assert first.timings == {"queue_s": 0.0, "prefill_s": 1.5, "decode_s": 0.75}


def test_a_failure_in_a_later_turn_ends_the_item(store, arm):
    target = FakeTarget(lambda request: fail() if request.prompt == "i02 turn 1" else "yes")
    run_arm(store, target, arm, ask(5, turns=3), seed=1)
    assert statuses(store) == {"error": 1, "scored": 4} and "i02 turn 2" not in target.prompts


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError, EngineError])
def test_what_was_answered_is_stored_when_the_target_stops(store, arm, raised):
    left = iter(range(21))

    def answer(request: Request) -> str:
        if next(left, None) is None:
            raise raised("stop")
        return "yes"

    with pytest.raises(raised):
        run_arm(store, FakeTarget(answer), arm, ask(40), seed=1)
    assert len(samples(store)) == 21
    target = FakeTarget()
    assert run_arm(store, target, arm, ask(40), seed=1).stored == 19
    assert statuses(store) == {"scored": 40}


def test_a_target_that_is_left_early_is_closed(store, arm, monkeypatch):
    closed = []

    class Closing(FakeTarget):
        def submit(self, arm: str, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
            try:
                yield from super().submit(arm, requests)
            finally:
                closed.append(True)

    def full(*_: Any) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(writer, "add_samples", full)
    with pytest.raises(StoreError, match="full"):
        run_arm(store, Closing(), arm, ask(40), seed=1)
    assert closed == [True]


def test_a_request_without_answer_stops_the_run_and_the_others_stay(store, arm):
    target = FakeTarget(lambda request: None if "i07" in request.prompt else "yes")
    with pytest.raises(EngineError, match="arm base: 1 of 40 requests were never answered"):
        run_arm(store, target, arm, ask(40), seed=1)
    assert len(samples(store)) == 39


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([Score(metric="correct", value=float("nan"))], "correct is nan"),
        ([Score(metric="correct", value=1.0), Score(metric="other", value=float("inf"))], "other is inf"),
        ([Score(metric="other", value=1.0)], "no score of correct through filter none"),
        ([], "no score of correct through filter none"),
        (EvidenceError("cannot be scored"), "cannot be scored"),
    ],
)
def test_where_scoring_fails_the_sample_is_an_error_that_keeps_its_answer(store, arm, monkeypatch, scores, message):
    def score(self: FakeSuite, item: Item, answers: Sequence[Answer]) -> Sequence[Score]:
        if item.id != "i04":
            return [Score(metric="correct", value=1.0)]
        if isinstance(scores, Exception):
            raise scores
        return scores

    monkeypatch.setattr(FakeSuite, "score", score)
    run_arm(store, FakeTarget(), arm, ask(20), seed=1)
    assert statuses(store) == {"error": 1, "scored": 19}
    error = next(sample for sample in samples(store) if sample.status == "error")
    assert (error.error_class, error.error_message, error.answer) == ("scoring", message, "yes")


def test_score_questions_are_asked_through_each_stage(store, arm):
    asked = ask(3, throughs=("prefill", "decode"), scored_by="loglikelihood")
    assert [question.through for question in asked] == ["prefill", "decode"] * 3
    target = FakeTarget()
    run_arm(store, target, arm, asked, seed=1)
    assert sorted(getattr(request, "through", "") for request in target.asked) == ["decode"] * 3 + ["prefill"] * 3
    held = {s.through: s for s in samples(store) if s.prompt == "i00"}
    assert held["prefill"].settings_hash != held["decode"].settings_hash
    assert held["prefill"].request_hash == held["decode"].request_hash
    assert (held["prefill"].handed_over, held["decode"].handed_over) == (False, True)
    assert held["decode"].stage_tokens == {"prefill": 0, "decode": 2}
    assert held["decode"].answer == '{"choices": ["a", "b"], "logprobs": [-1.0, -2.0]}'


def test_generations_are_asked_once_whatever_the_stages():
    assert [question.through for question in ask(2, throughs=("prefill", "decode"))] == ["", ""]


def test_hashes_hold_what_changes_an_answer_and_nothing_else():
    request = GenerateRequest(prompt="abc", max_tokens=4, stop=("\n",))
    assert request_hash(request) == request_hash(replace(request, arms=("a",), id="other", max_tokens=5))
    assert settings_hash(request) == settings_hash(replace(request, arms=("a",), id="other", prompt="x"))
    assert request_hash(request) != request_hash(replace(request, prompt="abd"))
    assert len({settings_hash(replace(request, **c)) for c in ({}, {"max_tokens": 5}, {"stop": ("\n", "x")})}) == 3
    score = ScoreRequest(context="abc", continuations=("d", "e"))
    assert request_hash(score) == request_hash(replace(score, through="decode", arms=("a",)))
    assert request_hash(score) != request_hash(replace(score, continuations=("e", "d")))
    assert request_hash(score) != request_hash(GenerateRequest(prompt="abc", max_tokens=1))
    assert request_hash(replace(request, prompt=[1, 2])) != request_hash(replace(request, prompt="[1, 2]"))


@pytest.mark.parametrize("other", [item("same"), item("same", sha256="another document")])
def test_one_item_twice_is_refused(other):
    with pytest.raises(ConfigError, match="suite fake: item same stands in it twice"):
        questions([FakeSuite([item("first"), item("same"), other])], ("prefill",))


def test_one_item_in_two_suites_is_two_questions():
    suites = [FakeSuite([item("same")], name=name) for name in ("one", "two")]
    assert len(questions(suites, ("prefill",))) == 2


def test_nothing_to_ask_is_refused():
    with pytest.raises(ConfigError, match="hold no item"):
        questions([FakeSuite([])], ("prefill",))
    with pytest.raises(ConfigError, match="item i asks nothing"):
        questions([FakeSuite([item("i")], turns=0)], ("prefill",))


def test_progress_counts_what_was_there_before(store, arm):
    run_arm(store, FakeTarget(), arm, ask(10), seed=1)
    seen: list[tuple[int, int]] = []
    run_arm(store, FakeTarget(), arm, ask(40), seed=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (10, 40) and seen[-1] == (40, 40) and seen == sorted(seen)
