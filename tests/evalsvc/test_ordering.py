"""The order of items and its blocks."""

from hypothesis import given
from hypothesis import strategies as st

from evalsvc.ordering import Placed, in_order, plan_looks

ITEMS = [Placed("a", "f", f"c{n // 3}" if n < 12 else "", f"i{n}") for n in range(40)]
ITEMS += [Placed("b", "g", "", f"i{n}") for n in range(30)]


def test_the_order_hangs_on_the_seed_and_the_items_alone():
    order = in_order(ITEMS, 3)
    assert order == in_order(reversed([*ITEMS, *ITEMS]), 3)
    assert order != in_order(ITEMS, 4)
    assert set(order) == set(ITEMS) and len(order) == len(ITEMS)


def test_files_sorted_by_suite_are_mixed():
    first = [item.suite for item in in_order(ITEMS, 0)][:20]
    assert 4 <= first.count("b") <= 16


@given(st.integers(0, 50), st.integers(1, 100))
def test_clusters_stay_whole_and_blocks_hold_at_least_their_size(seed, size):
    looks = plan_looks(ITEMS, seed, size)
    units: dict[str, list[int]] = {}
    for item in ITEMS:
        units.setdefault(item.unit, []).append(looks.position[item.place])
    for positions in units.values():
        assert max(positions) - min(positions) == len(positions) - 1
        assert len({sum(p >= end for end in looks.ends) for p in positions}) == 1, "no block ends inside a cluster"
    steps = [b - a for a, b in zip((0, *looks.ends), looks.ends, strict=False)]
    assert all(size <= step < size + 3 for step in steps[:-1]) and steps[-1] >= 1
    assert looks.complete and looks.planned == len(ITEMS)
    assert looks.largest == {"a": 3, "b": 1}


def test_fewer_looks_are_not_complete():
    looks = plan_looks(ITEMS, 0, 20)
    assert not looks.first(50).complete and looks.first(50).planned == 70
    assert looks.first(3).ends == () and not looks.first(3).complete


def test_items_of_one_name_in_two_suites_are_two():
    looks = plan_looks([Placed("a", "f", "", "x"), Placed("b", "f", "", "x")], 0, 1)
    assert looks.planned == 2 and looks.ends == (1, 2)
