"""The scheduler without a model: a memory that holds token ids in place of keys and values stands for the stages."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evalsvc.engine.kv.pages import PAGE, Pages, PoolFull, Sequence, pages_for
from evalsvc.engine.kv.prefix import PrefixCache
from evalsvc.engine.prompts import Lane, Prompt, Tail
from evalsvc.engine.scheduler import Scheduler


class TokenPages(Pages):
    """Pages whose slots hold token ids; -1 where nobody wrote."""

    def __init__(self, tokens: int):
        super().__init__(tokens)
        self.held = [-1] * (self.n_pages * PAGE)

    def copy_slots(self, source, target):
        for mine, theirs in zip(source, target, strict=True):
            self.held[theirs] = self.held[mine]

    def read(self, sequence: Sequence) -> list[int]:
        return [self.held[slot] for slot in sequence.slots(0, sequence.length)]

    def write(self, sequence: Sequence, tokens) -> None:
        for slot, token in zip(self.extend(sequence, len(tokens)), tokens, strict=True):
            self.held[slot] = token


@dataclass(eq=False)
class FakeStage:
    key: str
    tokens: int
    pool: TokenPages = field(init=False)
    cache: PrefixCache = field(init=False)

    def __post_init__(self):
        self.pool = TokenPages(self.tokens)
        self.cache = PrefixCache(self.pool)


@dataclass(eq=False)
class Asked:
    """One request: its prompt, and how its answers go on."""

    prompt: list[int]
    answers: list[tuple[int, list[int]]] = field(default_factory=list)  # (decode stage, tokens)
    tails: list[list[int]] = field(default_factory=list)


class World:
    """Runs a scheduler to the end and checks everything at every step."""

    def __init__(self, prefill_tokens: int, decode_tokens: list[int], max_batch: int = 4, chunk: int = 24):
        self.prefill = FakeStage("prefill", prefill_tokens)
        self.decode = [FakeStage(f"decode{i}", tokens) for i, tokens in enumerate(decode_tokens)]
        self.scheduler = Scheduler(max_batch, chunk, logit_rows=16)
        self.ended: Counter = Counter()
        self.lanes: list[tuple[Lane, list[int], list[int]]] = []
        self.prompts: list[Prompt] = []
        self.computed = 0

    def submit(self, asked: Asked) -> bool:
        prompt = Prompt(asked if asked.tails else None, self.prefill, asked.prompt, logits=True)
        for stage, tokens in asked.answers:
            lane = Lane(object(), self.decode[stage], tokens[:1], len(asked.prompt) + len(tokens))
            prompt.lanes.append(lane)
            self.lanes.append((lane, asked.prompt, tokens))
        prompt.tails = [Tail(asked, tokens) for tokens in asked.tails]
        try:
            self.scheduler.submit(prompt)
        except PoolFull:
            self.lanes = [entry for entry in self.lanes if entry[0] not in prompt.lanes]
            return False
        self.prompts.append(prompt)
        return True

    def run(self) -> None:
        for _ in range(3000):
            if not self.scheduler.busy:
                break
            assert self.step(), "nothing moves"
        assert not self.scheduler.busy
        for stage in (self.prefill, *self.decode):
            assert stage.pool.free_pages + len(stage.cache) == stage.pool.n_pages
        assert [self.ended[lane] for lane, _, _ in self.lanes] == [1] * len(self.lanes)

    def step(self) -> bool:
        moved = False
        for stage, lanes in self.scheduler.next_lanes().items():
            assert 0 < len(lanes) <= self.scheduler.max_batch
            for lane in lanes:
                stage.pool.write(lane.sequence, [lane.feed[lane.fed]])
                lane.fed += 1
                moved = True
            for lane in lanes:
                _, _, tokens = self.entry(lane)
                if lane.fed == len(lane.feed):
                    if len(tokens) > lane.fed:
                        lane.feed.append(tokens[lane.fed])
                    else:
                        self.ended[lane] += 1
                        self.scheduler.end(lane)
            self.check()
        for stage, pieces in self.scheduler.next_pieces().items():
            assert 0 < sum(len(piece.tokens) for piece in pieces) <= self.scheduler.chunk
            for piece in pieces:
                stage.pool.write(piece.sequence, piece.tokens)
                self.computed += len(piece.tokens)
                self.check_contents(stage.pool, piece.sequence, [*piece.prompt.ids, *getattr(piece.of, "tokens", [])])
                moved = True
            for piece in pieces:
                self.scheduler.computed(piece)
            self.check()
        for prompt in self.scheduler.complete():
            for lane in prompt.lanes:
                pool, cache = lane.stage.pool, lane.stage.cache
                pool.free(lane.sequence)
                lane.sequence = cache.take(prompt.ids, len(prompt.ids), prompt.stage.key)
                pool.write(lane.sequence, prompt.ids[lane.sequence.length :])
                cache.put(prompt.ids, lane.sequence, prompt.stage.key)
            self.scheduler.start(prompt)
            moved = True
            self.check()
        return moved

    def entry(self, lane: Lane):
        return next(entry for entry in self.lanes if entry[0] is lane)

    def check_contents(self, pool: TokenPages, sequence: Sequence, tokens) -> None:
        assert pool.read(sequence) == list(tokens[: sequence.length])

    def check(self) -> None:
        """free + held = all; a page in two hands is full and shared; what is held is what was computed."""
        hands: dict[FakeStage, list[Sequence]] = {stage: [] for stage in (self.prefill, *self.decode)}
        for prompt in [*self.scheduler._active, *self.scheduler._waiting]:
            hands[self.prefill].append(prompt.sequence)
            self.check_contents(self.prefill.pool, prompt.sequence, prompt.ids)
            hands[self.prefill] += [tail.sequence for tail in prompt.tails if tail.sequence is not None]
            for lane in prompt.lanes:
                hands[lane.stage].append(lane.sequence)
        for lanes in self.scheduler._lanes.values():
            for lane in lanes:
                _, prompt, tokens = self.entry(lane)
                hands[lane.stage].append(lane.sequence)
                self.check_contents(lane.stage.pool, lane.sequence, [*prompt, *tokens])
        for stage, sequences in hands.items():
            stage.pool.check()
            holders = Counter(page for sequence in sequences for page in sequence.pages)
            for sequence in sequences:
                assert len(sequence.pages) == pages_for(sequence.length)
                for index, page in enumerate(sequence.pages):
                    assert holders[page] <= stage.pool.references(page)
                    assert holders[page] == 1 or (index + 1) * PAGE <= sequence.length


tokens = st.lists(st.integers(0, 1), max_size=60)
shared = st.sampled_from([[], [7] * 15, [7] * 16, [7] * 17, [7] * 40])
prompts = st.builds(lambda head, tail: head + tail, shared, tokens)
answers = st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(2, 5), min_size=1, max_size=50)), max_size=3)
requests = st.one_of(
    st.builds(lambda p, a: Asked(p, answers=a), prompts, answers.filter(len)),
    st.builds(
        lambda p, t: Asked([*p, 9], tails=t), prompts, st.lists(st.lists(st.integers(2, 5), min_size=1), max_size=4)
    ),
)


# The second owes itself the pages of a long tail.
OWING = [
    Asked([7] * PAGE, answers=[(0, [2])]),
    Asked([9], tails=[[3], [3] * 48, [3]]),
    Asked([*[7] * PAGE, 9], tails=[[3] * 64, [3]]),
]
# What the third finds in the cache is idle, and no room for the rest of it.
IDLE = [
    Asked([7] * 40, answers=[(0, [2])]),
    Asked([0, 9], tails=[[3] * 63, [3]]),
    Asked([*[7] * 40, 9], tails=[[3]]),
]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(requests, max_size=14),
    st.one_of(st.integers(3, 14), st.just(64)),
    st.one_of(st.integers(3, 12), st.just(25)),
    st.integers(1, 5),
    st.sampled_from([1, 3, 7, 16, 17, 40]),
)
@example([Asked([7] * 16, answers=[(0, [2, 3, 2])]), Asked([7] * 15, answers=[(0, [2, 3, 2])])], 3, 3, 2, 1)
@example(OWING, 11, 3, 2, 3)
@example(IDLE, 8, 3, 2, 3)
def test_every_request_ends_once_and_every_page_is_accounted_for(asked, prefill, decode, max_batch, chunk):
    """In pools of so many pages, the second half with what the first one left in the caches."""
    world = World(prefill * PAGE, [decode * PAGE, (decode + 2) * PAGE], max_batch, chunk)
    for half in (asked[: len(asked) // 2], asked[len(asked) // 2 :]):
        for one in half:
            world.submit(one)
        world.run()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(requests, min_size=2, max_size=8),
    st.lists(st.integers(0, 40), max_size=6),
    st.randoms(),
    st.tuples(st.integers(4, 20), st.integers(3, 12)),
)
def test_what_is_removed_at_any_moment_leaves_nothing_behind(asked, moments, random, pools):
    world = World(pools[0] * PAGE, [pools[1] * PAGE, pools[1] * PAGE + 32])
    accepted = [one for one in asked if world.submit(one)]
    for step in range(3000):
        if not world.scheduler.busy:
            break
        for _ in range(moments.count(step)):
            victim = random.choice([*(lane for lane, _, _ in world.lanes), *accepted] or [None])
            if isinstance(victim, Lane):
                world.scheduler.remove(victim.owner)
                world.ended[victim] = 1
            elif victim is not None:
                world.scheduler.remove(victim)
            world.check()
        if world.scheduler.busy:
            assert world.step()
    world.run()


def test_what_can_never_fit_is_refused_and_leaves_the_rest_alone():
    world = World(64, [64])
    assert not world.submit(Asked([1] * 65))
    assert not world.submit(Asked([1] * 40, tails=[[2] * 25]))
    assert not world.submit(Asked([1] * 60, answers=[(0, [2] * 5)]))
    assert world.submit(Asked([1] * 60, answers=[(0, [2] * 4)]))
    world.run()


def test_what_fills_a_pool_to_the_last_token_is_computed():
    """A window of a rolling text is one token of context and a tail as long as the pool."""
    world = World(64, [64])
    assert world.submit(Asked([1], tails=[[2] * 63]))
    assert world.submit(Asked([1] * 20, tails=[[2] * 44]))
    assert world.submit(Asked([1] * 64))
    assert not world.submit(Asked([1] * 20, tails=[[2] * 45]))
    world.run()


def test_tails_that_fit_only_without_a_copy_of_the_prompts_last_page_run_one_after_the_other():
    world = World(64, [64])
    assert world.submit(Asked([1] * 20, tails=[[2] * 44, [3] * 40, [4]]))
    world.run()


def test_a_short_tail_leaves_the_pages_that_a_longer_one_waits_for():
    """Each of two prompts took the pages of the other's long tail while its own short one ran: both stood still."""
    world = World(6 * PAGE, [16], chunk=PAGE + 1)
    world.submit(Asked([1] * PAGE, tails=[[5] * 3, [6] * (5 * PAGE)]))
    world.submit(Asked([2] * PAGE, tails=[[5] * 3, [6] * (2 * PAGE + 1)]))
    world.run()


def test_a_lane_that_finds_no_page_preempts_who_came_last():
    world = World(512, [80], max_batch=8)
    for first in (1, 2, 3):
        world.submit(Asked([first] * 16, answers=[(0, [first * 100 + n for n in range(48)])]))
    world.run()
    assert world.scheduler.preemptions > 0
    first = world.lanes[0][0]
    assert first.prompt is world.prompts[0]  # the oldest was never sent back


def test_more_answers_than_fit_side_by_side_run_one_after_the_other():
    world = World(512, [96], max_batch=2)
    assert world.submit(Asked([1] * 20, answers=[(0, [n] * 40) for n in range(2, 7)]))
    world.run()


def test_decode_goes_on_while_a_long_prompt_is_computed():
    world = World(2048, [512], chunk=16)
    world.submit(Asked([1], answers=[(0, [2] * 40)]))
    world.step()
    world.submit(Asked([3] * 400))
    lane = world.lanes[0][0]
    for _ in range(10):
        before = lane.fed
        world.step()
        assert lane.fed == before + 1
    world.run()


def test_a_prompt_waits_for_pages_that_another_is_computing():
    world = World(2048, [512], max_batch=8, chunk=32)
    prefix = list(range(100, 180))
    for n in range(6):
        world.submit(Asked([*prefix, n, n]))
    world.submit(Asked([5] * 10))
    world.run()
    assert world.computed == len(prefix) + 2 * 6 + 10


def test_first_come_first_served_when_pages_are_short():
    world = World(64, [64])
    order = []
    for n in (60, 20, 4):
        world.submit(Asked([n] * n))
    while world.scheduler.busy:
        world.step()
        order += [p.ids[0] for p in world.prompts if p.ready and p.ids[0] not in order]
    assert order == [60, 20, 4]


@pytest.mark.parametrize("field", ["max_batch", "chunk", "logit_rows"])
def test_a_scheduler_without_room_is_refused(field):
    with pytest.raises(ValueError, match="at least one"):
        Scheduler(**({"max_batch": 1, "chunk": 1, "logit_rows": 1} | {field: 0}))
