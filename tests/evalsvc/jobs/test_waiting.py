"""A process that waits is asked to end by signals, and remembers by which."""

import signal

from evalsvc.jobs.waiting import waiter

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def test_signals_end_a_wait_and_the_last_that_asked_is_known():
    before = [signal.getsignal(number) for number in NUMBERS]
    with waiter() as waiting:
        signal.raise_signal(signal.SIGCHLD)
        waiting.wait(60)
        assert (waiting.asked, waiting.last) == (0, 0), "a child that ended asks nothing"
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        waiting.wait(60)
        assert (waiting.asked, waiting.last) == (2, signal.SIGTERM)
    assert [signal.getsignal(number) for number in NUMBERS] == before
