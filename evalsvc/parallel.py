"""Jobs of one run in several processes, each with its own engine; their news and errors come back here.

Results do not travel: every process stores its own samples, whose keys are unique. A process ends itself within a
second when this one is gone, so that nothing answers on after a kill.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from traceback import format_exc
from typing import Any, Protocol

from evalsvc import errors
from evalsvc.errors import EvalsvcError

Counter = Callable[..., None]  # (done, total, doing: `tally.Doing`)
INTERRUPTED = 130  # a shell's code for a process that Ctrl-C ended
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Reporter(Protocol):
    """Who is told how a run goes on."""

    def note(self, text: str) -> None:
        """One line of news."""

    def progress(self, label: str) -> Counter:
        """A counter for one arm: called with samples stored and samples in all, and with what it is doing."""
        ...


class _Forwarding:
    """A reporter in a working process: puts everything on the queue, and ends the work there once it was interrupted.

    A KeyboardInterrupt raised wherever a signal comes can be lost in a callback or disturb a transaction; news is told
    when samples were stored.
    """

    def __init__(self, news: Any) -> None:
        self._news = news
        self._interrupted = False

    def interrupt(self, *_: Any) -> None:
        """A signal handler."""
        self._interrupted = True

    def note(self, text: str) -> None:
        self._tell("note", text)

    def progress(self, label: str) -> Counter:
        return lambda *told: self._tell("progress", label, *told)

    def check(self) -> None:
        """Ends the work where it was interrupted."""
        if self._interrupted:
            raise KeyboardInterrupt

    def _tell(self, *message: Any) -> None:
        self._news.put(message)
        self.check()


def run_parallel(work: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int, report: Reporter) -> None:
    """Runs `work(*job, reporter)` for each job, at most `workers` at a time, in the order of the jobs.

    Args:
        work: A function that a new process can import.
        jobs: Arguments, plain data.
        workers: Processes at a time.
        report: Told here what the processes tell.

    Raises:
        EvalsvcError: The first error of a job, once the other processes were stopped; what they stored stays.
        KeyboardInterrupt: As it comes; the processes get it too.
    """
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    waiting = deque(jobs)
    running: list[Any] = []
    counters: dict[str, Counter] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                process = context.Process(target=_worker, args=(work, waiting.popleft(), news, os.getpid()))
                with _signals_held():  # a process that is still starting would answer Ctrl-C with a traceback
                    process.start()
                    running.append(process)
            with contextlib.suppress(queue.Empty):
                _tell(news.get(timeout=0.2), report, counters)
            for process in [p for p in running if not p.is_alive()]:
                running.remove(process)
                if process.exitcode:
                    _drain(news, report, counters)
                    if process.exitcode == INTERRUPTED:
                        raise KeyboardInterrupt
                    raise EvalsvcError(f"a working process ended with code {process.exitcode}; run again to go on")
        _drain(news, report, counters)
    finally:
        _stop(running)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Signals that end a run wait until the block ends; a process started inside holds them until it lets them in.

    The mask is this thread's, and the new process's. Python runs a handler in the main thread whichever thread the
    signal came to, such as one that draws progress, so that handlers wait as well.
    """
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # one that is ignored stays so in the new process
        handlers = {number: handler for number in _ENDING if callable(handler := signal.getsignal(number))}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        for number in came:
            signal.raise_signal(number)


def _worker(work: Callable[..., None], job: tuple[Any, ...], news: Any, parent: int) -> None:
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    reporter = _Forwarding(news)
    signal.signal(signal.SIGTERM, reporter.interrupt)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored where a shell started the command in the background
        signal.signal(signal.SIGINT, reporter.interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        reporter.check()
        work(*job, reporter)
    except EvalsvcError as error:
        news.put(("error", type(error).__name__, str(error)))
    except KeyboardInterrupt:  # leaves in order, so that what libraries hold (semaphores) is given back
        news.cancel_join_thread()
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        traceback = format_exc()
        news.put(
            ("error", "EvalsvcError", f"unexpected {type(error).__name__} in a working process: {error}", traceback)
        )


def end_with(parent: int) -> None:
    """Ends this process when its parent is another one than it was: it was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _tell(message: tuple[Any, ...], report: Reporter, counters: dict[str, Counter]) -> None:
    kind, *rest = message
    if kind == "error":
        raise getattr(errors, rest[0], EvalsvcError)(rest[1]) from (RuntimeError(rest[2]) if rest[2:] else None)
    if kind == "note":
        report.note(rest[0])
        return
    label, *told = rest
    if label not in counters:
        counters[label] = report.progress(label)
    counters[label](*told)


def _drain(news: Any, report: Reporter, counters: dict[str, Counter]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            _tell(news.get(timeout=0.2), report, counters)


def _stop(running: Sequence[Any], grace_s: float = 10.0) -> None:
    """Ends what still runs: asked to, a process stores what it has; then it is killed."""
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in running:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
