"""The loop that asks, scores and stores, with a target and a suite in memory."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from evalsvc import runner
from evalsvc.alternatives import at
from evalsvc.engine.requests import (
    Answer,
    GenerateRequest,
    GenerateResult,
    Request,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
    Timings,
    TokenLogprobs,
)
from evalsvc.errors import EngineError, EvidenceError, StoreError
from evalsvc.questions import Question, questions, settings_hash
from evalsvc.runner import ArmRun, Outcome, run_group
from evalsvc.store import queries, writer
from evalsvc.store.schema import Sample, ScoreRow
from evalsvc.store.session import Store, open_store
from evalsvc.suites.base import Asked, Item, Score
from evalsvc.targets.base import ArmFacts


def item(name: str, **fields: Any) -> Item:
    given: dict[str, Any] = {"id": name, "family": "f", "cluster": "", "sha256": f"h-{name}", "metric": "correct"}
    return Item(**given | fields)


class FakeSuite:
    """Asks `turns` times for each item, each time after what was said; right when the last answer is `yes`."""

    scoring_version = "fake-1"

    def __init__(self, items: Sequence[Item], turns: int = 1, name: str = "fake") -> None:
        self.name, self.turns, self._items = name, turns, items

    def items(self) -> Sequence[Item]:
        return self._items

    def next_request(self, item: Item, answers: Sequence[Answer]) -> Asked | None:
        if len(answers) >= self.turns:
            return None
        if item.scored_by == "loglikelihood":
            return ScoreRequest(context=item.id, continuations=("a", "b"))
        said = getattr(answers[-1], "text", "") if answers else ""
        after = f" after {said}" if said not in ("", "yes") else ""
        return GenerateRequest(prompt=f"{item.id} turn {len(answers)}{after}", max_tokens=4)

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

    def submit(self, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
        for request in requests:
            self.asked.append(request)
            for arm in request.arms:
                said = self.answer(replace(request, arms=(arm,)))
                if isinstance(said, RequestFailure):
                    yield replace(said, id=request.id, arm=arm)
                elif said is not None:
                    yield replace(result(request, said), arm=arm)

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


def open_arms(store: Store, *names: str) -> list[ArmRun]:
    run_id = writer.open_run(store, experiment="e", experiment_hash="x", resolved={}, baseline=names[0], seed=0)
    arms = []
    for fact in map(facts, names):
        fields = {"plan": fact.plan, "stages": fact.stages, "injected": {}, "details": {}, "expected": 40}
        arm_id = writer.open_arm(store, run_id, name=fact.name, fingerprint=fact.fingerprint, **fields)
        arms.append(ArmRun(run_id, arm_id, fact))
    return arms


@pytest.fixture
def arm(store: Store) -> ArmRun:
    return open_arms(store, "base")[0]


@pytest.fixture
def three(store: Store) -> list[ArmRun]:
    return open_arms(store, "a", "b", "c")


def run_one(store: Store, target: FakeTarget, arm: ArmRun, asked: Sequence[Question], seed: int) -> Outcome:
    return run_group(store, target, [arm], asked, seed)[arm.facts.name]


def ask(count: int = 40, turns: int = 1, throughs: Sequence[str] = ("prefill",), **fields: Any) -> list[Question]:
    return questions([FakeSuite([item(f"i{n:02}", **fields) for n in range(count)], turns)], throughs)


def samples(store: Store, arm: ArmRun | None = None) -> list[Sample]:
    with store.session() as session:
        found = session.scalars(select(Sample).order_by(Sample.id))
        return [sample for sample in found if arm is None or sample.arm_id == arm.arm_id]


def statuses(store: Store, arm: ArmRun | None = None) -> dict[str, int]:
    found = [sample.status for sample in samples(store, arm)]
    return {status: found.count(status) for status in sorted(set(found))}


def fail(error: str = "too_long") -> RequestFailure:
    return RequestFailure(id="", error=error, message=f"{error} it is")


def test_all_is_asked_once_and_stored_with_its_score(store, arm):
    target = FakeTarget(lambda request: "yes" if "i01" in request.prompt else "no")
    outcome = run_one(store, target, arm, ask(40), seed=1)
    assert (outcome.stored, outcome.errors) == (40, 0)
    assert sorted(target.prompts) == [f"i{n:02} turn 0" for n in range(40)]
    held = queries.arms(store, arm.run_id)[0]
    values = {pair.item_id: pair.baseline.value for pair in queries.pairs(store, held, held) if pair.baseline}
    assert values == {f"i{n:02}": float(n == 1) for n in range(40)}


def test_what_else_a_token_could_have_been_is_stored_and_is_in_no_hash(store, arm):
    class Saying(FakeTarget):
        """Names the likeliest tokens of those answers whose request asks for them."""

        def submit(self, requests):
            for result in super().submit(requests):
                assert {request.logprobs for request in requests} == {5}
                top = tuple((token, -float(token)) for token in range(5))
                yield replace(result, logprobs=(TokenLogprobs(0, 0.0, top),) * 2, texts={0: " a"})

    (asked,) = ask(1)
    run_one(store, Saying(), arm, [asked], seed=1)
    with store.session() as session:
        (sample,) = session.scalars(select(Sample))
        assert sample.settings_hash == settings_hash(asked.request) and asked.request.logprobs is None
        assert [(one.token, one.text) for one in at(sample.alternatives, 1)][:2] == [(0, " a"), (1, None)]
    run_one(store, FakeTarget(), arm, ask(2), seed=1)
    with store.session() as session:
        assert session.scalars(select(Sample.alternatives).order_by(Sample.id)).all()[1:] == [None]


def test_only_what_is_missing_is_asked(store, arm):
    run_one(store, FakeTarget(), arm, ask(25), seed=1)
    target = FakeTarget()
    assert run_one(store, target, arm, ask(40), seed=1).stored == 15
    assert sorted(target.prompts) == [f"i{n:02} turn 0" for n in range(25, 40)]
    again = FakeTarget()
    assert run_one(store, again, arm, ask(40), seed=1).stored == 0 and again.asked == []


def test_the_order_is_shuffled_and_belongs_to_the_seed(tmp_path, store, arm):
    def order(seed: int) -> list[str]:
        target = FakeTarget()
        with open_store(tmp_path / f"{seed}-{random.random()}.sqlite", create=True) as other:
            run_one(other, target, open_arms(other, "b")[0], ask(40), seed=seed)
        return target.prompts

    assert order(1) == order(1)
    assert order(1) != order(2) and order(1) != sorted(order(1))


def test_a_failure_is_an_error_and_no_score_and_is_tried_again(store, arm):
    broken = FakeTarget(lambda request: fail() if "i03" in request.prompt else "yes")
    outcome = run_one(store, broken, arm, ask(10), seed=1)
    assert outcome.errors == 1 and outcome.first_error == "fake/i03: too_long it is"
    assert statuses(store) == {"error": 1, "scored": 9}
    error = next(sample for sample in samples(store) if sample.status == "error")
    assert (error.error_class, error.error_message, error.answer) == ("too_long", "too_long it is", "")
    held = queries.arms(store, arm.run_id)[0]
    assert [p.item_id for p in queries.pairs(store, held, held) if p.baseline and p.baseline.value is None] == ["i03"]

    target = FakeTarget()
    assert run_one(store, target, arm, ask(10), seed=1).stored == 1
    assert target.prompts == ["i03 turn 0"] and statuses(store) == {"scored": 10}


def test_a_suite_asks_on_and_the_sample_sums_its_turns(store, arm):
    target = FakeTarget()
    assert run_one(store, target, arm, ask(5, turns=3), seed=1).stored == 5
    assert len(target.asked) == 15 and len({request.id for request in target.asked}) == 5
    for turn in range(3):  # all items of one turn go out together
        assert sorted(target.prompts[5 * turn : 5 * turn + 5]) == [f"i0{n} turn {turn}" for n in range(5)]
    first = samples(store)[0]
    assert (first.prompt_tokens, first.answer_tokens, first.handed_over, first.finish_reason) == (9, 6, True, "stop")
    assert first.timings == {"queue_s": 0.0, "prefill_s": 1.5, "decode_s": 0.75}


def test_a_failure_in_a_later_turn_ends_the_item(store, arm):
    target = FakeTarget(lambda request: fail() if request.prompt == "i02 turn 1" else "yes")
    run_one(store, target, arm, ask(5, turns=3), seed=1)
    assert statuses(store) == {"error": 1, "scored": 4} and "i02 turn 2" not in target.prompts


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError, EngineError])
def test_what_was_answered_is_stored_when_the_target_stops(store, arm, raised):
    left = iter(range(21))

    def answer(request: Request) -> str:
        if next(left, None) is None:
            raise raised("stop")
        return "yes"

    with pytest.raises(raised):
        run_one(store, FakeTarget(answer), arm, ask(40), seed=1)
    assert len(samples(store)) == 21
    target = FakeTarget()
    assert run_one(store, target, arm, ask(40), seed=1).stored == 19
    assert statuses(store) == {"scored": 40}


def test_a_target_that_is_left_early_is_closed(store, arm, monkeypatch):
    closed = []

    class Closing(FakeTarget):
        def submit(self, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
            try:
                yield from super().submit(requests)
            finally:
                closed.append(True)

    def full(*_: Any) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(writer, "add_samples", full)
    with pytest.raises(StoreError, match="full"):
        run_one(store, Closing(), arm, ask(40), seed=1)
    assert closed == [True]


def test_a_request_without_answer_stops_the_run_and_the_others_stay(store, arm):
    target = FakeTarget(lambda request: None if "i07" in request.prompt else "yes")
    with pytest.raises(EngineError, match="arm base: 1 of 40 requests were never answered"):
        run_one(store, target, arm, ask(40), seed=1)
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
    run_one(store, FakeTarget(), arm, ask(20), seed=1)
    assert statuses(store) == {"error": 1, "scored": 19}
    error = next(sample for sample in samples(store) if sample.status == "error")
    assert (error.error_class, error.error_message, error.answer) == ("scoring", message, "yes")


def test_score_questions_are_asked_through_each_stage(store, arm):
    asked = ask(3, throughs=("prefill", "decode"), scored_by="loglikelihood")
    assert [question.through for question in asked] == ["prefill", "decode"] * 3
    target = FakeTarget()
    run_one(store, target, arm, asked, seed=1)
    assert sorted(getattr(request, "through", "") for request in target.asked) == ["decode"] * 3 + ["prefill"] * 3
    held = {s.through: s for s in samples(store) if s.prompt == "i00"}
    assert held["prefill"].settings_hash != held["decode"].settings_hash
    assert held["prefill"].request_hash == held["decode"].request_hash
    assert (held["prefill"].handed_over, held["decode"].handed_over) == (False, True)
    assert held["decode"].stage_tokens == {"prefill": 0, "decode": 2}
    assert held["decode"].answer == '{"choices": ["a", "b"], "logprobs": [-1.0, -2.0], "greedy": [true, false]}'


def test_progress_counts_what_was_there_before(store, arm):
    run_one(store, FakeTarget(), arm, ask(10), seed=1)
    seen: list[tuple[str, int, int]] = []
    run_group(store, FakeTarget(), [arm], ask(40), 1, lambda *news: seen.append(news[:3]))
    assert seen[0] == ("base", 10, 40) and seen[-1] == ("base", 40, 40) and seen == sorted(seen)


def test_a_question_of_several_turns_is_asked_on_through_its_own_stage(store, arm):
    target = FakeTarget()
    run_one(store, target, arm, ask(3, turns=2, throughs=("prefill", "decode"), scored_by="loglikelihood"), seed=1)
    through = [getattr(request, "through", "") for request in target.asked]
    assert sorted(through[:6]) == sorted(through[6:]) == ["decode"] * 3 + ["prefill"] * 3
    assert {s.through: s.stage_tokens for s in samples(store)} == {
        "prefill": {"prefill": 4, "decode": 0},
        "decode": {"prefill": 0, "decode": 4},
    }


def test_a_group_is_asked_once_and_each_arm_has_the_samples_that_it_has_alone(tmp_path, store, three):
    def answer(request: Request) -> Any:
        if request.arms == ("b",) and "i05" in str(getattr(request, "prompt", "")):
            return fail()
        return "yes" if request.arms == ("a",) else "no"

    target, asked = FakeTarget(answer), ask(40)
    outcomes = run_group(store, target, three, asked, 1)
    assert {request.arms for request in target.asked} == {("a", "b", "c")} and len(target.asked) == 40
    assert {name: (o.stored, o.errors) for name, o in outcomes.items()} == {"a": (40, 0), "b": (40, 1), "c": (40, 0)}
    assert outcomes["b"].first_error == "fake/i05: too_long it is"

    def held(opened: Store, arm: ArmRun) -> list[Any]:
        return [
            (s.prompt, s.answer, s.status, s.error_class, s.timings, s.arm_fingerprint) for s in samples(opened, arm)
        ]

    with open_store(tmp_path / "alone.sqlite", create=True) as alone:
        for ours, theirs in zip(three, open_arms(alone, "a", "b", "c"), strict=True):
            run_one(alone, FakeTarget(answer), theirs, asked, seed=1)
            assert held(store, ours) == held(alone, theirs)
    again = FakeTarget(answer)
    run_group(store, again, three, asked, 1)
    assert [(request.arms, getattr(request, "prompt", "")) for request in again.asked] == [(("b",), "i05 turn 0")]


def test_arms_at_different_places_are_each_asked_what_they_miss(store, three):
    a, b, _ = three
    run_one(store, FakeTarget(), a, ask(10), seed=1)
    run_one(store, FakeTarget(), b, ask(25), seed=1)
    target = FakeTarget()
    seen: list[tuple[str, int, int]] = []
    outcomes = run_group(store, target, three, ask(40), 2, lambda *news: seen.append(news[:3]))
    asked = {prompt[:3]: request.arms for prompt, request in zip(target.prompts, target.asked, strict=True)}
    assert asked == {f"i{n:02}": tuple("abc")[0 if n >= 25 else 2 :] for n in (*range(10), *range(25, 40))} | {
        f"i{n}": ("a", "c") for n in range(10, 25)
    }
    assert {name: outcome.stored for name, outcome in outcomes.items()} == {"a": 30, "b": 15, "c": 40}
    assert seen[:3] == [("a", 10, 40), ("b", 25, 40), ("c", 0, 40)]
    for name in "abc":
        counts = [done for arm, done, _ in seen if arm == name]
        assert counts == sorted(counts) and counts[-1] == 40
    assert [statuses(store, arm) for arm in three] == [{"scored": 40}] * 3


def test_later_turns_follow_each_arms_own_answers_and_equal_ones_are_asked_together(store, three):
    target = FakeTarget(lambda request: "no" if request.arms == ("b",) and "i01" in request.prompt else "yes")
    run_group(store, target, three, ask(2, turns=2), 1)
    later = {prompt: request.arms for prompt, request in zip(target.prompts, target.asked, strict=True)}
    assert later == {
        "i00 turn 0": ("a", "b", "c"),
        "i00 turn 1": ("a", "b", "c"),
        "i01 turn 0": ("a", "b", "c"),
        "i01 turn 1": ("a", "c"),
        "i01 turn 1 after no": ("b",),
    }
    assert [[s.answer for s in samples(store, arm)].count("no") for arm in three] == [0, 1, 0]


def test_a_failed_turn_of_one_arm_leaves_the_others_going_on(store, three):
    target = FakeTarget(lambda request: fail() if request.arms == ("c",) and request.prompt == "i02 turn 1" else "yes")
    run_group(store, target, three, ask(5, turns=3), 1)
    assert [statuses(store, arm) for arm in three] == [{"scored": 5}] * 2 + [{"error": 1, "scored": 4}]
    last = next(request for request in target.asked if getattr(request, "prompt", "") == "i02 turn 2")
    assert last.arms == ("a", "b")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, EngineError])
def test_what_each_arm_answered_is_stored_when_the_target_stops(store, three, raised):
    left = iter(range(50))

    def answer(request: Request) -> str:
        if next(left, None) is None:
            raise raised("stop")
        return "yes"

    with pytest.raises(raised):
        run_group(store, FakeTarget(answer), three, ask(40), 1)
    assert [len(samples(store, arm)) for arm in three] == [17, 17, 16]
    assert {name: o.stored for name, o in run_group(store, FakeTarget(), three, ask(40), 1).items()} == {
        "a": 23,
        "b": 23,
        "c": 24,
    }


def test_one_arm_that_cannot_be_stored_takes_nothing_from_the_others(store, three, monkeypatch):
    add = writer.add_samples

    def full(opened: Store, run_id: int, arm_id: int, given: Sequence[Any]) -> int:
        if arm_id == three[1].arm_id:
            raise StoreError("the disk is full")
        return add(opened, run_id, arm_id, given)

    monkeypatch.setattr(writer, "add_samples", full)
    with pytest.raises(StoreError, match="full"):
        run_group(store, FakeTarget(), three, ask(40), 1)
    assert [len(samples(store, arm)) for arm in three] == [16, 0, 15]


def test_samples_that_have_waited_are_stored_whichever_arm_answers(store, three, monkeypatch):
    """Two seconds, at 1.5 an answer: the second answer finds the first arm's sample old."""
    now = 0.0
    stored: list[int] = []

    def answer(request: Request) -> str:
        nonlocal now
        now += 1.5
        stored.append(len(samples(store)))
        return "yes"

    monkeypatch.setattr(runner.time, "monotonic", lambda: now)
    run_group(store, FakeTarget(answer), three, ask(1), 1)
    assert stored == [0, 0, 2]


def test_who_left_what_unanswered_is_said_arm_by_arm(store, three):
    target = FakeTarget(lambda request: None if request.arms == ("b",) and request.prompt > "i37" else "yes")
    with pytest.raises(EngineError, match=r"^arm b: 3 of 40 requests were never answered; run again$"):
        run_group(store, target, three, ask(40), 1)
    assert [len(samples(store, arm)) for arm in three] == [40, 37, 40]


@pytest.mark.parametrize("change", [{"arm": "z"}, {"id": "77"}, {}])
def test_an_answer_that_nobody_asked_or_that_came_before_is_refused(store, three, change):
    class Saying(FakeTarget):
        def submit(self, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
            for answer in super().submit(requests):
                yield answer
                yield replace(answer, **change)

    with pytest.raises(EngineError, match="an answer came twice, or unasked"):
        run_group(store, Saying(), three, ask(5), 1)
    assert len(samples(store)) == 1


def test_lm19_an_arm_is_asked_itself_and_never_given_anothers_answer(store):
    """The same prompts to two arms of a run, one after the other, and to an arm of that name in another run."""
    first = open_arms(store, "a", "b")
    again = open_arms(store, "a", "b")
    asked = ask(10)
    for arm in (*first, again[1]):
        target = FakeTarget(lambda request: f"I am {request.arms[0]}")
        assert run_one(store, target, arm, asked, seed=0).stored == 10
        assert len(target.asked) == 10
        with store.session() as session:
            said = session.scalars(select(Sample.answer).where(Sample.arm_id == arm.arm_id)).all()
        assert list(said) == [f"I am {arm.facts.name}"] * 10


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"logprobs": (0.0, 0.0)}, "all 2 log-likelihoods are 0"),
        ({"stage_tokens": {"prefill": 1, "decode": 0}}, "log-probabilities of 1 tokens came, and 2 were asked"),
        ({"logprobs": (-1.0,)}, "1 log-likelihoods came of 2 that were asked"),
    ],
)
def test_lm22_a_target_that_leaves_out_log_probabilities_is_never_scored(store, arm, fields, says):
    """Such a server once gave every setting of a model one accuracy, that of the first choice."""

    class Short(FakeTarget):
        def submit(self, requests):
            for answer in super().submit(requests):
                yield replace(answer, **fields)

    outcome = run_one(store, Short(), arm, ask(3, scored_by="loglikelihood"), seed=0)
    assert (outcome.stored, outcome.errors) == (3, 3) and says in outcome.first_error
    with store.session() as session:
        assert session.scalars(select(ScoreRow)).all() == []
