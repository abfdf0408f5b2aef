"""An answer in the making has one outcome, whatever happens to it."""

from dataclasses import dataclass
from math import inf, nan

import pytest

from evalsvc.engine.jobs import Job, Ticket, deadline_problem, refuse, whole
from evalsvc.engine.requests import GenerateRequest, RequestFailure, ScoreRequest


@dataclass(eq=False)
class FakeArm:
    name: str = "a"


def job(ticket: Ticket, arm: str = "a", sample: int = 0, **fields) -> Job:
    request = GenerateRequest(**({"prompt": [5], "max_tokens": 3, "id": "x"} | fields))
    return Job(request, FakeArm(arm), ticket, sample)  # pyright: ignore[reportArgumentType]


def test_a_job_is_its_tickets_until_it_has_an_outcome():
    ticket = Ticket()
    first, second = job(ticket), job(ticket, sample=1)
    assert list(ticket.jobs) == [first, second]
    first.fail("pool", "no room")
    assert list(ticket.jobs) == [second] and first.done and not second.done
    (failure,) = ticket.outcomes
    assert isinstance(failure, RequestFailure)
    assert (failure.id, failure.arm, failure.sample, failure.error) == ("x", "a", 0, "pool")
    assert (failure.message, failure.finish_reason, failure.token_ids) == ("no room", "error", ())


def test_the_first_outcome_stays():
    ticket = Ticket()
    one = job(ticket)
    one.fail("deadline", "late", "abort")
    one.fail("cancelled", "again", "abort")
    assert [(o.error, o.finish_reason) for o in ticket.outcomes if isinstance(o, RequestFailure)] == [
        ("deadline", "abort")
    ]
    with pytest.raises(AssertionError):
        one.finish(ticket.outcomes[0])  # pyright: ignore[reportArgumentType]


def test_who_looks_at_any_moment_finds_the_job_or_its_outcome():
    """Another thread asks `jobs or outcomes`; a moment with neither would end its answers one too early."""

    class Watched(dict):
        def __delitem__(self, key):
            assert ticket.outcomes
            super().__delitem__(key)

    ticket = Ticket(jobs=Watched())
    job(ticket).fail("pool", "no room")
    assert not ticket.jobs


@pytest.mark.parametrize("deadline", [None, 0.5])
def test_a_deadline_counts_from_the_asking(deadline):
    one = job(Ticket(), deadline_s=deadline)
    assert not one.overdue(one.submitted + 0.4)
    assert one.overdue(one.submitted + 0.6) == (deadline is not None)


def test_a_refused_request_gets_one_failure_for_each_answer_that_was_asked():
    arms = [FakeArm("a"), FakeArm("b")]
    for request, samples in (
        (GenerateRequest(prompt=[5], max_tokens=3, n=3), 3),
        (GenerateRequest(prompt=[5], max_tokens=3, n=0), 1),
        (GenerateRequest(prompt=[5], max_tokens=3, n="3"), 1),  # pyright: ignore[reportArgumentType]
        (ScoreRequest(context=[5], continuations=([6],)), 1),
    ):
        ticket = Ticket()
        refuse(ticket, request, arms, "bad_request", "why")  # pyright: ignore[reportArgumentType]
        found = [(o.arm, o.sample) for o in ticket.outcomes if isinstance(o, RequestFailure)]
        assert found == [(arm.name, sample) for arm in arms for sample in range(samples)]
        assert not ticket.jobs


@pytest.mark.parametrize(
    ("value", "fine"), [(1, True), (5, True), (0, False), (6, False), (1.0, False), (True, False), ("1", False)]
)
def test_a_whole_number_is_an_int_within_its_bounds(value, fine):
    assert whole(value, 1, 5) == fine


@pytest.mark.parametrize(
    ("value", "fine"), [(None, True), (0, True), (2.5, True), (inf, True), (-1, False), (nan, False), ("1", False)]
)
def test_a_deadline_is_a_number_from_0(value, fine):
    assert (deadline_problem(value) is None) == fine
