"""Cached pages: found by hash and by tokens, shared, copied where they differ, given back least recently used first."""

from evalsvc.engine.kv.pages import PAGE, Pages, PoolFull, Sequence
from evalsvc.engine.kv.prefix import PrefixCache

PROMPT = list(range(100, 100 + 3 * PAGE))


class Copies(Pages):
    def __init__(self, tokens):
        super().__init__(tokens)
        self.copied = []

    def copy_slots(self, source, target):
        self.copied.append((source, target))


def filled(pages: Pages, cache: PrefixCache, ids, source: str = "") -> list[int]:
    """Computes a prompt, keeps it in the cache, lets go of it, and returns its pages."""
    sequence = Sequence()
    pages.extend(sequence, len(ids))
    held = list(sequence.pages)
    cache.put(ids, sequence, source)
    pages.free(sequence)
    pages.check()
    return held


def test_full_pages_are_found_and_the_rest_is_not():
    pages = Pages(320)
    cache = PrefixCache(pages)
    held = filled(pages, cache, [*PROMPT, 1, 2])
    assert len(cache) == pages.idle == 3
    found = cache.take([*PROMPT, 1, 2, 3], len(PROMPT) + 2)
    assert (found.pages, found.length) == (held[:3], 3 * PAGE)
    assert pages.idle == 0
    pages.free(found)
    assert pages.idle == 3
    assert (cache.hit_tokens, cache.missed_tokens) == (3 * PAGE, 2)


def test_a_limit_leaves_tokens_to_compute():
    """A prompt of exactly n pages would be served whole; who wants logits asks one token less."""
    pages = Pages(320)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    assert cache.take(PROMPT, len(PROMPT) - 1).length == 2 * PAGE
    assert cache.take(PROMPT, 0).length == 0


def test_a_page_under_the_same_hash_is_not_served_for_other_tokens():
    pages = Pages(320)
    cache = PrefixCache(pages, chain=lambda block: 7)
    filled(pages, cache, PROMPT)
    assert len(cache) == 1  # the second block has the first one's key
    other = [5] * len(PROMPT)
    assert cache.take(other, len(other)).length == 0
    filled(pages, cache, other)
    assert cache.take(other, len(other)).length == 0
    assert cache.take(PROMPT, len(PROMPT)).length == PAGE


def test_equal_tokens_after_other_ones_are_another_block():
    """With a hash of a block's own tokens alone, its keys and values would be served at a wrong position or context."""
    pages = Pages(640)
    cache = PrefixCache(pages, chain=lambda block: hash(block[1]))
    filled(pages, cache, [1] * PAGE + [2] * PAGE)
    assert cache.take([2] * PAGE, PAGE).length == 0
    assert cache.take([3] * PAGE + [2] * PAGE, 2 * PAGE).length == 0


def test_pages_of_one_source_are_not_served_to_another():
    pages = Pages(320)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT, "one")
    assert cache.take(PROMPT, len(PROMPT), "two").length == 0
    assert cache.take(PROMPT, len(PROMPT), "one").length == len(PROMPT)


def test_a_page_that_begins_alike_is_copied_as_far_as_it_is_equal():
    pages = Copies(320)
    cache = PrefixCache(pages)
    held = filled(pages, cache, PROMPT)
    ids = [*PROMPT[: 2 * PAGE + 5], 1, 2, 3]
    found = cache.take(ids, len(ids) - 1, partly=True)
    assert found.length == 2 * PAGE + 5
    assert found.pages[:2] == held[:2] and found.pages[2] != held[2]
    (copied,) = pages.copied
    assert copied == ([held[2] * PAGE + i for i in range(5)], [found.pages[2] * PAGE + i for i in range(5)])
    pages.free(found)
    pages.check()


def test_the_longest_beginning_is_copied():
    pages = Copies(640)
    cache = PrefixCache(pages)
    for last in ([9] * PAGE, [8] * 5 + [9] * 11, [8] * 3 + [7] * 13):
        filled(pages, cache, PROMPT[:PAGE] + last)
    found = cache.take(PROMPT[:PAGE] + [8] * 4 + [1] * 9, PAGE + 12, partly=True)
    assert found.length == PAGE + 4


def test_nothing_is_copied_when_that_would_cost_the_page_itself():
    pages = Copies(3 * PAGE)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    found = cache.take([*PROMPT[: 2 * PAGE + 5], 1], 2 * PAGE + 5, partly=True)
    assert (found.length, pages.copied) == (2 * PAGE, [])
    pages.check()


def test_the_least_recently_used_goes_first_and_never_before_what_follows_it():
    pages = Pages(6 * PAGE)
    cache = PrefixCache(pages)
    old, new = [1] * (2 * PAGE), [2] * (2 * PAGE)
    filled(pages, cache, old)
    filled(pages, cache, new)
    pages.free(cache.take(old, 2 * PAGE))  # used again
    sequence = Sequence()
    pages.extend(sequence, 3 * PAGE)  # two are free, one is taken back
    assert cache.peek(new, 2 * PAGE) == (1, 1)
    assert cache.peek(old, 2 * PAGE) == (2, 2)
    pages.extend(sequence, 3 * PAGE)
    assert len(cache) == 0
    pages.check()


def test_a_page_in_use_is_never_taken_back():
    pages = Pages(4 * PAGE)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    held = cache.take(PROMPT, 2 * PAGE)
    sequence = Sequence()
    pages.extend(sequence, 2 * PAGE)
    assert cache.peek(PROMPT, len(PROMPT)) == (2, 0)
    try:
        pages.extend(sequence, PAGE)
    except PoolFull:
        pages.free(held)
    pages.extend(sequence, PAGE)
    pages.check()


def test_computing_the_same_twice_keeps_one():
    pages = Pages(640)
    cache = PrefixCache(pages)
    first = filled(pages, cache, PROMPT)
    filled(pages, cache, PROMPT)
    assert len(cache) == 3
    assert cache.take(PROMPT, len(PROMPT)).pages == first


def test_forgetting_a_prompt_forgets_all_that_begins_like_it():
    pages = Pages(640)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    filled(pages, cache, [*PROMPT[:PAGE], *[5] * PAGE])
    filled(pages, cache, [6] * PAGE)
    cache.forget(PROMPT)
    assert len(cache) == 1
    assert cache.take([6] * PAGE, PAGE).length == PAGE
    pages.check()


def test_dropping_all_leaves_held_pages_to_their_holders():
    pages = Pages(640)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    held = cache.take(PROMPT, len(PROMPT))
    assert cache.drop_all() == 3
    pages.check()
    pages.free(held)
    assert pages.free_pages == pages.n_pages


def test_a_page_goes_though_somebody_holds_a_later_page_that_he_computed_on_his_own():
    pages = Pages(4 * PAGE)
    cache = PrefixCache(pages)
    ids, held = PROMPT[: 2 * PAGE], Sequence()
    pages.extend(held, len(ids))
    cache.put(ids, held)
    cache.forget(ids)
    filled(pages, cache, ids[:PAGE])
    cache.put(ids, held)  # follows a first page that is not his
    assert (len(cache), pages.idle) == (2, 1)
    other = Sequence()
    pages.extend(other, 2 * PAGE)
    assert len(cache) == 0
    pages.check()
    pages.free(held)
    pages.free(other)
    assert pages.free_pages == pages.n_pages


def test_looking_ahead_is_not_counted():
    pages = Pages(320)
    cache = PrefixCache(pages)
    filled(pages, cache, PROMPT)
    pages.free(cache.take(PROMPT, len(PROMPT), counted=False))
    assert (cache.hit_tokens, cache.missed_tokens) == (0, 0)
