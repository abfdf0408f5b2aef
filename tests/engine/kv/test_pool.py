"""Pages: who holds them, and that a fork, a cut or a full pool never touches another's tokens."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evalsvc.engine.kv.pool import PAGE, KVPool, PoolFull, Scales, Sequence
from evalsvc.engine.precision import KVFormat
from evalsvc.errors import EngineError

TOKEN_HEAD = KVFormat("fp8", "token-head")


def pool_of(fmt: KVFormat = KVFormat("fp32"), tokens: int = 8 * PAGE, **options) -> KVPool:
    return KVPool(fmt, 2, 2, 4, tokens, poison=True, **options)


class PoolLife(RuleBasedStateMachine):
    """Random extends, cuts, forks and frees. Every token's number is written where the pool says, and read back."""

    def __init__(self):
        super().__init__()
        self.pool = pool_of(tokens=6 * PAGE)
        self.held: list[tuple[Sequence, list[int]]] = []
        self.clock = 0

    @rule(tokens=st.integers(1, 40))
    def start(self, tokens):
        self._extend(Sequence(), [], tokens)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(1, 20))
    def extend(self, data, tokens):
        self._extend(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))), tokens)

    def _extend(self, sequence, numbers, tokens):
        before = (list(sequence.pages), sequence.length)
        try:
            slots = self.pool.extend(sequence, tokens)
        except PoolFull:
            assert (sequence.pages, sequence.length) == before
            if numbers:
                self.held.append((sequence, numbers))
            return
        new = list(range(self.clock, self.clock + tokens))
        self.clock += tokens
        values = torch.tensor(new, dtype=torch.float32)[:, None, None].expand(-1, 2, 4)
        self.pool.write(1, torch.tensor(slots), values, -values)
        self.held.append((sequence, numbers + new))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data):
        sequence, numbers = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        free = self.pool.free_pages
        try:
            self.held.append((self.pool.fork(sequence), list(numbers)))
        except PoolFull:
            assert self.pool.free_pages == free

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cut(self, data):
        at = data.draw(st.integers(0, len(self.held) - 1))
        sequence, numbers = self.held[at]
        # Only above full pages that a fork may share: the engine cuts back what it has just added.
        length = data.draw(st.integers(sequence.length // PAGE * PAGE, sequence.length))
        self.pool.truncate(sequence, length)
        self.held[at] = (sequence, numbers[:length])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))[0])

    @invariant()
    def every_token_is_where_it_was_written(self):
        self.pool.check()
        for sequence, numbers in self.held:
            assert sequence.length == len(numbers)
            assert len(sequence.pages) == -(-len(numbers) // PAGE)
            key, value = self.pool.read(1, sequence.slots(0, sequence.length))
            assert key[:, 1, 3].tolist() == numbers
            assert (-value[:, 0, 0]).tolist() == numbers
        distinct = {page for sequence, _ in self.held for page in sequence.pages}
        assert self.pool.free_pages == self.pool.n_pages - len(distinct)


TestPoolLife = PoolLife.TestCase
TestPoolLife.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("tokens", [1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1])
def test_no_surplus_page_at_a_border(tokens):
    pool, sequence = pool_of(), Sequence()
    pool.extend(sequence, tokens)
    assert len(sequence.pages) == -(-tokens // PAGE)
    assert len(set(sequence.slots(0, tokens))) == tokens


def test_a_fork_copies_scales_with_the_partly_filled_page():
    pool, sequence = pool_of(TOKEN_HEAD), Sequence()
    slots = torch.tensor(pool.extend(sequence, PAGE + 3))
    x = torch.randn(2, PAGE + 3, 2, 4, generator=torch.Generator().manual_seed(0))
    for layer in (0, 1):
        pool.write(layer, slots, x[0], x[1])
    child = pool.fork(sequence)
    assert child.pages[0] == sequence.pages[0] and child.pages[1] != sequence.pages[1]
    for layer in (0, 1):
        mine, theirs = (pool.read(layer, s.slots(0, PAGE + 3)) for s in (child, sequence))
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
        assert not mine[0].isnan().any()


@pytest.mark.parametrize(
    ("fmt", "dtype", "per_token"),
    [
        (KVFormat("fp32"), torch.float32, 2 * 2 * 2 * 4 * 4),
        (KVFormat("bf16"), torch.bfloat16, 2 * 2 * 2 * 4 * 2),
        (KVFormat("fp8", "tensor:uncalibrated"), torch.float8_e4m3fn, 2 * 2 * 2 * 4),
        (TOKEN_HEAD, torch.float8_e4m3fn, 2 * 2 * 2 * (4 + 4)),
    ],
)
def test_pages_really_are_of_their_type_and_size(fmt, dtype, per_token):
    pool = pool_of(fmt)
    assert pool.k.dtype == pool.v.dtype == dtype
    assert pool.bytes_per_token() == per_token
    assert pool.resident_bytes() >= per_token * 8 * PAGE
    assert pool.k.float().isnan().all()


@pytest.mark.parametrize("fmt", [KVFormat("fp8", "tensor:calibrated"), KVFormat("bf16")])
def test_scales_are_given_exactly_when_the_format_is_calibrated(fmt):
    given = None if fmt.calibrated else Scales(torch.ones(2), torch.ones(2))
    with pytest.raises(EngineError, match="scales"):
        KVPool(fmt, 2, 2, 4, 64, given)


def test_an_injected_factor_of_one_leaves_the_scale_itself_and_another_changes_only_the_read_of_k():
    scales = Scales(torch.tensor([0.5, 0.25]), torch.tensor([2.0, 3.0]))
    for factor in (1.0, 0.25):
        pool = KVPool(KVFormat("fp8", "tensor:calibrated"), 2, 2, 4, 64, scales, factor)
        assert pool.write_scale("k", 1) == 0.25 and pool.read_scale("k", 1) == 0.25 * factor
        assert pool.write_scale("v", 1) == pool.read_scale("v", 1) == 3.0
