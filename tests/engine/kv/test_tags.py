"""Tags of pages, the wrap-around of their counter, and quarantine."""

from itertools import pairwise

import pytest

from evalsvc.engine.kv.pages import PAGE, Pages, PoolFull, Sequence
from evalsvc.engine.kv.prefix import PrefixCache
from evalsvc.engine.kv.tags import TAGS, Issuer, check_mode
from evalsvc.errors import ConfigError


def test_every_allocation_has_a_tag_of_its_own_and_the_sequence_knows_it():
    pool, first, second = Pages(64), Sequence(), Sequence()
    pool.extend(first, 20)
    pool.extend(second, 1)
    assert len({*first.tags, *second.tags}) == 3 and 0 not in first.tags
    assert [pool.tags[page] for page in first.pages] == first.tags
    old = first.tags
    pool.free(first)
    pool.extend(first, 20)
    assert not set(first.tags) & set(old)


def test_two_pools_share_the_process_wide_counter():
    one, other, a, b = Pages(16), Pages(16), Sequence(), Sequence()
    one.extend(a, 1)
    other.extend(b, 1)
    assert b.tags[0] == a.tags[0] + 1 and TAGS.issue() == b.tags[0] + 1


def test_shared_full_pages_keep_their_tag_and_a_copied_one_has_its_own():
    pool, parent = Pages(64), Sequence()
    pool.extend(parent, PAGE + 3)
    child = pool.fork(parent)
    assert child.tags[0] == parent.tags[0] and child.tags[1] != parent.tags[1]
    cache, ids = PrefixCache(pool), list(range(PAGE + 3))
    cache.put(ids, parent)
    assert cache.take(ids, PAGE + 2).tags == parent.tags[:1]


def test_after_a_turn_no_tag_that_is_still_held_comes_again():
    issuer = Issuer(last=9)
    pool, kept = Pages(64, issuer), Sequence()
    pool.extend(kept, 2 * PAGE)  # tags 1 and 2
    issued = []
    for _ in range(30):
        passing = Sequence()
        pool.extend(passing, 1)
        issued.append(passing.tags[0])
        pool.free(passing)
    assert not {0, *kept.tags} & set(issued) and max(issued) == 9
    assert all(issued[i] != issued[i + 1] for i in range(29))
    turns = "".join("|" if b < a else "." for a, b in pairwise(issued))
    assert turns.count("|") >= 3


def test_a_counter_without_a_free_tag_says_so():
    issuer = Issuer(last=2)
    pool, kept = Pages(64, issuer), Sequence()
    pool.extend(kept, 2 * PAGE)
    with pytest.raises(RuntimeError, match="all 2 tags are held"):
        pool.extend(kept, 1)


def test_a_page_in_quarantine_is_never_allocated_again():
    pool, held = Pages(4 * PAGE), Sequence()
    pool.extend(held, PAGE)
    bad = held.pages[0]
    pool.quarantine(bad)
    pool.quarantine(bad)
    pool.check()
    pool.free(held)
    pool.check()
    free = next(page for page in range(4) if page != bad)
    pool.quarantine(free)
    pool.check()
    taken = Sequence()
    with pytest.raises(PoolFull):
        pool.extend(taken, 3 * PAGE)
    pool.extend(taken, 2 * PAGE)
    assert not {bad, free} & set(taken.pages) and pool.usable_pages == 2


def test_a_page_in_quarantine_leaves_the_cache_with_what_follows_it():
    pool, sequence, ids = Pages(6 * PAGE), Sequence(), list(range(3 * PAGE))
    cache = PrefixCache(pool)
    pool.extend(sequence, 3 * PAGE)
    cache.put(ids, sequence)
    pages = list(sequence.pages)
    pool.free(sequence)
    assert pool.idle == 3
    pool.quarantine(pages[1])
    pool.check()
    assert cache.take(ids, 3 * PAGE).pages == pages[:1] and len(cache) == 1


def test_a_page_in_quarantine_is_not_brought_back_to_the_cache_by_who_still_holds_it():
    pool, sequence, ids = Pages(6 * PAGE), Sequence(), list(range(3 * PAGE))
    cache = PrefixCache(pool)
    pool.extend(sequence, 3 * PAGE)
    cache.put(ids, sequence)
    pool.quarantine(sequence.pages[1])
    cache.put(ids, sequence)
    assert len(cache) == 1
    pool.free(sequence)
    pool.check()
    assert pool.available == pool.usable_pages == 5


def test_wrong_page_numbers_give_back_what_the_tags_hold():
    """Whoever runs on another's page must not give that one's page back."""
    pool, victim, other = Pages(8 * PAGE), Sequence(), Sequence()
    pool.extend(victim, 2 * PAGE)
    pool.extend(other, 2 * PAGE)
    victim.pages[0], other.pages[1] = other.pages[1], victim.pages[0]
    child = pool.fork(victim)
    pool.free(victim)
    pool.free(child)
    assert [pool.references(page) for page in (other.pages[0], victim_page(pool, other, 1))] == [1, 1]
    pool.free(other)
    pool.check()
    assert pool.free_pages == 8


def victim_page(pool: Pages, sequence: Sequence, index: int) -> int:
    return pool.tags.index(sequence.tags[index])


def test_a_mode_that_does_not_exist_names_those_that_do():
    with pytest.raises(ConfigError, match="integrity is 'yes'; it must be one of tags, off, content, content:first"):
        check_mode("yes")
