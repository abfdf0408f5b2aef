"""Which waiting requests enter the batch. Pure Python, no torch.

A request reserves the pages of its whole life (prompt and longest answer) when it is admitted, so that a running
request never meets a full pool.
"""

from collections import deque


class Scheduler:
    """First come, first served, by free pages.

    Invariant: reserved pages <= capacity; every submitted key is waiting, running, or finished once.
    """

    def __init__(self, capacity_pages: int, max_running: int):
        """Args: `max_running` is the most requests in one batch; both at least 1."""
        if capacity_pages < 1 or max_running < 1:
            raise ValueError("a scheduler needs at least one page and one running request")
        self.capacity_pages, self.max_running = capacity_pages, max_running
        self._waiting: deque[tuple[int, int]] = deque()
        self._running: dict[int, int] = {}

    def submit(self, key: int, pages: int) -> bool:
        """Queues a request; False when it could never fit."""
        if pages > self.capacity_pages:
            return False
        self._waiting.append((key, pages))
        return True

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> list[int]:
        """Running keys, in order of admission."""
        return list(self._running)

    def admit(self) -> list[int]:
        """Moves waiting requests into the batch and returns them.

        Waits until a quarter of the places is free, since a prefill of one short prompt costs as much as one of many.
        """
        free_places = self.max_running - len(self._running)
        if self._running and free_places * 4 < self.max_running:
            return []
        admitted: list[int] = []
        reserved = sum(self._running.values())
        while self._waiting and len(self._running) < self.max_running:
            key, pages = self._waiting[0]
            if reserved + pages > self.capacity_pages:
                break
            self._waiting.popleft()
            self._running[key] = pages
            reserved += pages
            admitted.append(key)
        return admitted

    def finish(self, key: int) -> None:
        """Gives a running request's place and pages back."""
        del self._running[key]
