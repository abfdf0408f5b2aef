"""Shared prefixes: found by their exact tokens, and given back."""

from evalsvc.engine.kv.pool import KVPool, Sequence
from evalsvc.engine.kv.prefix import PrefixStore
from evalsvc.engine.precision import KVFormat


def stored():
    pool = KVPool(KVFormat("bf16"), 1, 1, 4, 64)
    store, sequence = PrefixStore(pool), Sequence()
    pool.extend(sequence, 20)
    store.put((1, 2, 3), sequence)
    return pool, store, sequence


def test_only_the_exact_tokens_are_a_hit():
    _, store, sequence = stored()
    assert store.get((1, 2, 3)) is sequence
    assert store.get((1, 2)) is None and store.get((1, 2, 3, 4)) is None and store.get((3, 2, 1)) is None
    assert (store.hits, store.misses) == (1, 3)


def test_dropping_gives_pages_back_but_not_those_of_a_fork():
    pool, store, sequence = stored()
    child = pool.fork(sequence)
    assert store.drop_all() == 1
    assert pool.free_pages == pool.n_pages - 2
    pool.free(child)
    pool.check()
    assert pool.free_pages == pool.n_pages
    assert store.get((1, 2, 3)) is None
    assert store.drop_all() == 0


def test_a_prefix_is_computed_once_and_another_stages_is_never_used(serve):
    """The cache is the stage's own: an arm of other weights cannot meet this one's pages."""
    from evalsvc.engine.requests import GenerateRequest

    engine = serve(plans={"a": "w=bf16", "b": "w=int4:g32:sym", "c": "w=bf16 > kv=fp8"}, plan=None)
    request = GenerateRequest(prompt="the end of it, then", shared_prefix="the end of it", max_tokens=2)
    for arm in ("a", "b", "a", "c"):
        list(engine.generate([request, request], arm))
    a, b, c = (engine.arm(name).prefill for name in "abc")
    assert a is c and a is not b
    assert (a.prefixes.misses, a.prefixes.hits) == (1, 5)
    assert (b.prefixes.misses, b.prefixes.hits) == (1, 1)
    prompt, shared = len(engine.text.encode(request.prompt)), len(engine.text.encode(request.shared_prefix))
    assert a.work.tokens == shared + 6 * (prompt - shared)
