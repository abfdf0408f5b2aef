"""Planted faults in a running engine: random requests, a fault at a random moment, and what becomes of every answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from transformers import LlamaConfig

from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.guard import UNSOUND
from evalsvc.engine.kv.perturb import Planted, plant
from evalsvc.engine.requests import GenerateRequest, GenerateResult, Incident, RequestFailure, ScoreRequest
from tests.benchmarks.integrity_pages import Counts
from tests.tiny import TWO_LAYERS, write_model

VOCABULARY = 258
REQUESTS = 24
AT_ONCE = 4
TRIALS_OF_A_POOL = 8  # then its pages in quarantine make way for new ones


def tiny_model(folder: Path) -> Path:
    """A random llama of two layers with a tokenizer of bytes."""
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=512, **TWO_LAYERS)
    return write_model(folder, config, seed=4)


def requests_of(rng: Random, count: int) -> list[Any]:
    """Random requests: some begin alike, some are scored, through either stage."""
    made: list[Any] = []
    beginnings = [[rng.randrange(2, 256) for _ in range(40)] for _ in range(2)]
    for number in range(count):
        own = [rng.randrange(2, 256) for _ in range(rng.randint(1, 40))]
        prompt = rng.choice([[], *(beginning[: rng.randint(10, 40)] for beginning in beginnings)]) + own
        if rng.random() < 0.7:
            made.append(
                GenerateRequest(prompt=prompt, max_tokens=rng.randint(4, 14), ignore_eos=True, id=f"generate {number}")
            )
            continue
        tails = tuple([rng.randrange(2, 256) for _ in range(rng.randint(1, 18))] for _ in range(2))
        through = rng.choice(("prefill", "decode"))
        made.append(ScoreRequest(context=prompt, continuations=tails, through=through, id=f"score {number}"))
    return made


def said(outcome: Any) -> Any:
    """What of an answer must not change."""
    return outcome.token_ids if isinstance(outcome, GenerateResult) else outcome.logprobs


class Campaign:
    """An engine under faults.

    Attributes:
        checked: Slots whose check found what was expected.
    """

    def __init__(self, model: Path, plan: str, mode: str, seed: int, kv_tokens: int = 1024, fresh: bool = False):
        """`fresh` begins every workload with empty caches."""
        self._rng, self._fresh = Random(seed), fresh
        self._requests = requests_of(self._rng, REQUESTS)
        plain = Engine.load(model, plan, kv_tokens=1024, integrity="off")
        self._clean = {outcome.id: said(outcome) for outcome in plain.answer(self._requests)}
        self._engine = Engine.load(model, plan, kv_tokens=kv_tokens, chunk=24, max_batch=AT_ONCE, integrity=mode)
        self._kv_tokens, self._trials = kv_tokens, 0
        self._counted = 0

    @property
    def checked(self) -> int:
        """Slots whose check found what was expected, in all pools so far."""
        return self._counted + sum(stage.work.slots_checked for stage in self._stages())

    @property
    def preemptions(self) -> int:
        """How often pages were taken from what had them."""
        return self._engine.stats()["preemptions"]

    def _stages(self) -> list[Any]:
        arm = self._engine.arm()
        return [arm.prefill, arm.decode]

    def run(self, kind: str, faults: int) -> Counts:
        """Plants so many faults of a kind, each in a workload of its own."""
        found = Counts(0, 0, 0)
        while found.planted < faults:
            one = self.trial(kind)
            found = Counts(
                found.planted + one.planted, found.caught + one.caught, found.false_alarms + one.false_alarms
            )
        return found

    def soak(self, slots: int) -> int:
        """Runs without faults until so many slots were checked; returns alarms and changed answers."""
        wrong, goal = 0, self.checked + slots
        while self.checked < goal:
            wrong += self.trial(None).false_alarms
        return wrong

    def trial(self, kind: str | None) -> Counts:
        """One workload with at most one fault. An answer that changed and was not broken off is a false alarm, too."""
        self._trials += 1
        if self._trials % TRIALS_OF_A_POOL == 0:
            self._counted = self.checked
            self._engine.resize(self._kv_tokens)
        if self._fresh:
            for stage in self._stages():
                stage.cache.drop_all()
        requests = self._rng.sample(self._requests, self._rng.randint(2, AT_ONCE + 2))
        asked = [replace(request, id=f"{i} {request.id}") for i, request in enumerate(requests)]
        with self._planting(kind) as planted:
            outcomes = list(self._engine.answer(asked))
        for stage in self._stages():
            stage.pool.check()
            assert stage.pool.available == stage.pool.usable_pages, "pages are held after the last answer"
        pages = set().union(*(one.pages for one in planted)) if planted else set()
        caught = wrong = 0
        for outcome in outcomes:
            clean = self._clean[outcome.id.partition(" ")[2]]
            if not isinstance(outcome, RequestFailure):
                wrong += said(outcome) != clean
            elif outcome.incident is None or not self._explained(outcome.incident, pages):
                wrong += 1
            else:
                caught = 1
                wrong += outcome.token_ids != tuple(clean)[: len(outcome.token_ids)] and bool(outcome.token_ids)
        return Counts(int(bool(pages)), caught, int(wrong))

    def _explained(self, incident: Incident, pages: set[int]) -> bool:
        """Whether it names a planted page, or a copy that was taken of one: nobody's stamp, the other in quarantine."""
        lied = any(pages & stage.pool.quarantined for stage in self._stages() if stage.name == incident.stage)
        return incident.page in pages or (incident.found == UNSOUND and lied)

    @contextmanager
    def _planting(self, kind: str | None) -> Iterator[list[Planted]]:
        """Plants before one of the engine's rounds, as soon as there is a place for it."""
        loop: Any = self._engine._loop
        real: Callable[[], None] = loop._round
        wait, planted = self._rng.randint(0, 12), list[Planted]()

        def round_() -> None:
            nonlocal wait
            wait -= 1
            if wait < 0 and not planted and kind is not None:
                planted.extend(self._plant(kind))
            real()

        if kind is not None:
            loop._round = round_
        try:
            yield planted
        finally:
            loop.__dict__.pop("_round", None)
            for one in planted:
                one.undo()

    def _plant(self, kind: str) -> list[Planted]:
        prefill, decode = self._stages()
        stage = decode if kind == "truncated_handoff" or self._rng.random() < 0.6 else prefill
        reading = self._engine._loop.scheduler.reading(stage.pool)
        if not reading and kind != "truncated_handoff":
            return []
        found = plant(kind, self._rng, stage.pool, reading)
        return [] if found is None else [found]
