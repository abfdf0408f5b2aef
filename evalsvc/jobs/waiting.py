"""Waiting that ends early: when a child process ends, or when this one is asked to end."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


def utc_clock() -> datetime:
    """Now."""
    return datetime.now(UTC)


class Waiter:
    """Set up by `waiter`.

    Attributes:
        asked: How often this process was asked to end (SIGTERM, SIGINT).
        last: The signal that asked last; 0 while none did.
    """

    def __init__(self, reader: int) -> None:
        self.asked = self.last = 0
        self._reader = reader

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, or as soon as a signal came since the last wait."""
        if select.select([self._reader], [], [], max(0.0, seconds))[0]:
            os.read(self._reader, 4096)

    def note(self, number: int, _frame: object) -> None:
        """A signal handler."""
        if number != signal.SIGCHLD:
            self.asked, self.last = self.asked + 1, number


@contextmanager
def waiter() -> Iterator[Waiter]:
    """Takes SIGTERM, SIGINT and SIGCHLD over until the block ends; main thread only."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    found = Waiter(reader)
    old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    old = {number: signal.signal(number, found.note) for number in numbers}
    try:
        yield found
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(reader)
        os.close(writer)
