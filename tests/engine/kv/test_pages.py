"""Pages are counted: what is held is held by somebody, what is free by nobody, and full pages alone are shared."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc.engine.kv.pages import PAGE, Pages, PoolFull, Sequence, pages_for


class Copies(Pages):
    """Pages that note what was copied."""

    def __init__(self, tokens: int):
        super().__init__(tokens)
        self.copied: list[tuple[list[int], list[int]]] = []

    def copy_slots(self, source, target):
        self.copied.append((source, target))


class Contents(Pages):
    """Pages whose slots hold a number; 0 where nobody wrote."""

    def __init__(self, tokens: int):
        super().__init__(tokens)
        self.held = [0] * (self.n_pages * PAGE)

    def copy_slots(self, source, target):
        for mine, theirs in zip(source, target, strict=True):
            self.held[theirs] = self.held[mine]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_tokens_take_whole_pages_and_no_page_more(tokens, pages):
    """A surplus page at a multiple of the page size would be read as if it had been written."""
    assert pages_for(tokens) == pages
    pool, sequence = Pages(64), Sequence()
    pool.extend(sequence, tokens)
    assert len(sequence.pages) == pages == pool.n_pages - pool.free_pages


def test_a_capacity_is_rounded_up_to_whole_pages():
    assert [Pages(tokens).n_pages for tokens in (1, 16, 17)] == [1, 1, 2]


@pytest.mark.parametrize("pieces", [[40], [16, 24], [1] * 40, [15, 1, 1, 23]])
def test_slots_follow_the_positions_however_a_sequence_grew(pieces):
    pool, other, sequence = Pages(320), Sequence(), Sequence()
    slots = []
    for piece in pieces:
        pool.extend(other, 4)  # somebody else's pages lie between
        slots += pool.extend(sequence, piece)
    assert slots == sequence.slots(0, 40) == [sequence.pages[i // PAGE] * PAGE + i % PAGE for i in range(40)]
    assert sequence.slots(17, 33) == slots[17:33]
    assert not set(slots) & set(other.slots(0, other.length))


def test_a_pool_without_room_changes_nothing():
    pool, sequence = Pages(3 * PAGE), Sequence()
    pool.extend(sequence, 20)
    pages = list(sequence.pages)
    with pytest.raises(PoolFull, match=r"48 tokens is full; raise `kv_tokens`"):
        pool.extend(sequence, 29)
    assert (sequence.pages, sequence.length, pool.free_pages) == (pages, 20, 1)
    pool.extend(sequence, 28)
    assert pool.free_pages == 0
    pool.check()


def test_the_last_page_is_filled_before_another_is_taken():
    pool, sequence = Pages(PAGE), Sequence()
    pool.extend(sequence, 5)
    pool.extend(sequence, 11)
    assert sequence.length == PAGE
    with pytest.raises(PoolFull):
        pool.extend(sequence, 1)


@pytest.mark.parametrize("length", [0, 5, 15, 16, 17, 32])
def test_forgetting_tokens_gives_back_the_pages_that_held_nothing_else(length):
    pool, sequence = Pages(64), Sequence()
    pool.extend(sequence, 40)
    kept = sequence.pages[: pages_for(length)]
    pool.truncate(sequence, length)
    assert (sequence.pages, sequence.length) == (kept, length)
    assert pool.free_pages == 4 - len(kept)
    pool.check()


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 32, 40])
def test_a_fork_shares_full_pages_and_copies_the_last_one(length):
    pool, sequence = Copies(160), Sequence()
    pool.extend(sequence, length)
    child = pool.fork(sequence)
    full, rest = divmod(length, PAGE)
    assert child.length == length and child.pages[:full] == sequence.pages[:full]
    assert [pool.references(page) for page in sequence.pages] == [2] * full + [1] * bool(rest)
    assert pool.copied == [(sequence.slots(full * PAGE, length), child.slots(full * PAGE, length))] * bool(rest)
    assert not rest or child.pages[full] != sequence.pages[full]
    pool.free(sequence)
    pool.check()
    assert pool.n_pages - pool.free_pages == pages_for(length)  # the child's
    pool.free(child)
    assert pool.free_pages == pool.n_pages


def test_a_fork_without_room_for_its_copy_holds_nothing():
    pool, sequence = Copies(2 * PAGE), Sequence()
    pool.extend(sequence, 20)
    with pytest.raises(PoolFull):
        pool.fork(sequence)
    assert [pool.references(page) for page in sequence.pages] == [1, 1]
    assert pool.copied == []
    pool.check()


def test_freeing_twice_frees_once():
    pool, sequence = Pages(64), Sequence()
    pool.extend(sequence, 20)
    pool.free(sequence)
    pool.free(sequence)
    assert (pool.free_pages, sequence.length) == (4, 0)
    pool.check()


def test_idle_pages_are_available_and_taken_back_only_when_no_page_is_free():
    pool, cached, other = Pages(4 * PAGE), Sequence(), Sequence()
    pool.extend(cached, 2 * PAGE)
    kept = list(cached.pages)
    for page in kept:
        pool.cache(page)
    assert (pool.idle, pool.available) == (0, 2)
    pool.free(cached)
    assert (pool.idle, pool.available, pool.free_pages) == (2, 4, 2)
    reclaimed = []

    def reclaim():
        reclaimed.append(kept[len(reclaimed)])
        pool.uncache(reclaimed[-1])

    pool.reclaim = reclaim
    pool.extend(other, 2 * PAGE)
    assert reclaimed == []
    pool.extend(other, PAGE)
    assert reclaimed == kept[:1] and pool.idle == 1
    pool.check()


def test_a_cached_page_is_idle_exactly_while_nobody_else_holds_it():
    pool, sequence = Pages(2 * PAGE), Sequence()
    pool.extend(sequence, PAGE)
    (page,) = sequence.pages
    pool.cache(page)
    pool.retain([page])
    pool.free(sequence)
    assert pool.idle == 0
    pool.release([page])
    assert pool.idle == 1
    pool.retain([page])
    assert pool.idle == 0
    pool.uncache(page)
    assert (pool.references(page), pool.free_pages) == (1, 1)
    pool.release([page])
    assert pool.free_pages == 2
    pool.check()


def test_the_peak_counts_what_somebody_held_and_not_what_lay_idle():
    pool, sequence = Pages(8 * PAGE), Sequence()
    pool.extend(sequence, 3 * PAGE)
    for page in sequence.pages:
        pool.cache(page)
    pool.free(sequence)
    pool.extend(Sequence(), PAGE)
    assert pool.peak == 3


def test_a_check_sees_a_page_that_is_lost_or_held_twice():
    for damage in ("lost", "twice", "idle"):
        pool, sequence = Pages(64), Sequence()
        pool.extend(sequence, 20)
        if damage == "lost":
            pool._free.pop()
        elif damage == "twice":
            pool._free.append(sequence.pages[0])
        else:
            pool.idle += 1
        with pytest.raises(AssertionError):
            pool.check()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["extend", "fork", "truncate", "free"]), st.integers(0, 50)), max_size=40))
def test_whatever_happens_every_page_is_accounted_for(steps):
    """Tokens are written into slots: no sequence may ever see another's."""
    pool = Contents(12 * PAGE)
    sequences: list[tuple[Sequence, list[int]]] = [(Sequence(), [])]
    written = 0
    for step, number in steps:
        sequence, tokens = sequences[number % len(sequences)]
        try:
            if step == "extend":
                for slot in pool.extend(sequence, number):
                    written += 1
                    pool.held[slot] = written
                    tokens.append(written)
            elif step == "fork":
                sequences.append((pool.fork(sequence), list(tokens)))
            elif step == "truncate" and sequence.length % PAGE == 0:  # a page in two hands is full in both
                pool.truncate(sequence, number // PAGE * PAGE if number < sequence.length else sequence.length)
                del tokens[sequence.length :]
            elif step == "free":
                pool.free(sequence)
                tokens.clear()
        except PoolFull:
            pass
        pool.check()
        for one, expected in sequences:
            assert [pool.held[slot] for slot in one.slots(0, one.length)] == expected
            assert len(one.pages) == pages_for(one.length)
