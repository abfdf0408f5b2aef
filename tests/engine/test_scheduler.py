"""Invariants of admission, over random lives of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.engine.scheduler import Scheduler

lives = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), max_size=40)  # (pages, steps to live)


@given(lives, st.integers(1, 12), st.integers(1, 8))
def test_every_request_that_can_fit_runs_exactly_once_and_pages_are_never_over_reserved(requests, capacity, places):
    scheduler = Scheduler(capacity, places)
    accepted = {key: (pages, steps) for key, (pages, steps) in enumerate(requests) if scheduler.submit(key, pages)}
    assert set(accepted) == {key for key, (pages, _) in enumerate(requests) if pages <= capacity}
    left = {key: steps for key, (_, steps) in accepted.items()}
    admitted: list[int] = []
    for _ in range(1000):
        if not scheduler.busy:
            break
        new = scheduler.admit()
        admitted += new
        running = scheduler.running
        assert new == running[len(running) - len(new) :]
        assert sum(accepted[key][0] for key in running) <= capacity
        assert 1 <= len(running) <= places  # something always runs while anything waits
        if new:
            continue
        for key in running:
            left[key] -= 1
            if left[key] == 0:
                scheduler.finish(key)
    assert not scheduler.busy
    assert admitted == sorted(accepted)  # first come, first served, each once
    assert not any(left.values())


def test_a_request_of_the_whole_pool_waits_for_it_and_is_not_overtaken():
    scheduler = Scheduler(10, 4)
    assert all(scheduler.submit(key, pages) for key, pages in enumerate([6, 10, 1]))
    assert scheduler.admit() == [0]
    assert scheduler.admit() == []
    scheduler.finish(0)
    assert scheduler.admit() == [1]


def test_admission_waits_for_a_quarter_of_the_places():
    scheduler = Scheduler(100, 8)
    for key in range(20):
        scheduler.submit(key, 1)
    assert len(scheduler.admit()) == 8
    scheduler.finish(0)
    assert scheduler.admit() == []
    scheduler.finish(1)
    assert scheduler.admit() == [8, 9]


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_a_scheduler_without_room_is_refused(sizes):
    with pytest.raises(ValueError, match="at least"):
        Scheduler(*sizes)
