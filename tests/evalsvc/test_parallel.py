"""Jobs in processes of their own: their news, their errors, and their end."""

import os
import signal
import threading
from multiprocessing.context import SpawnProcess

import pytest

from evalsvc.errors import ConfigError, EvalsvcError
from evalsvc.parallel import run_parallel


class Heard:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.counts: list[tuple[str, int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, label: str):
        return lambda done, total: self.counts.append((label, done, total))


# What the processes run has to be importable there, and test files are not: they read this text.
JOBS = """
import os, signal, sys, time
from pathlib import Path
from evalsvc.errors import ConfigError

def tell(number, report):
    report.progress(f"arm{number}")(number, 9)
    report.note(f"{number} in {os.getpid()}")

def tell_group(names, report):
    counters = [report.progress(name) for name in names]
    for done in range(3):
        for counter in counters:
            counter(done, 2)

def refuse(number, report):
    raise ConfigError("a file\\nis missing")

def break_(number, report):
    if number == 1:
        raise ValueError("odd")
    wait(os.environ["PYTHONPATH"], report)

def die(number, report):
    os.kill(os.getpid(), signal.SIGKILL)

def wait(folder, report):
    Path(folder, f"{os.getpid()}.pid").touch()
    while True:  # until it is ended
        time.sleep(0.05)
        report.progress("arm")(1, 600)
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """The functions of JOBS, from a module that new processes can import too."""
    import importlib
    import sys

    (tmp_path / "parallel_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield importlib.import_module("parallel_jobs")
    del sys.modules["parallel_jobs"]


def test_every_job_runs_once_in_a_process_of_its_own(jobs):
    heard = Heard()
    run_parallel(jobs.tell, [(number,) for number in range(3)], 2, heard)
    assert sorted(heard.counts) == [(f"arm{n}", n, 9) for n in range(3)]
    pids = {note.split(" in ")[1] for note in heard.notes}
    assert len(pids) == 3 and str(os.getpid()) not in pids


def test_arms_of_one_job_are_counted_apart(jobs):
    heard = Heard()
    run_parallel(jobs.tell_group, [(("a", "b"),), (("c",),)], 2, heard)
    for name in "abc":
        assert [count for label, *count in heard.counts if label == name] == [[0, 2], [1, 2], [2, 2]]


def test_an_error_keeps_its_kind_and_its_sentence(jobs):
    with pytest.raises(ConfigError, match="a file\nis missing"):
        run_parallel(jobs.refuse, [(1,)], 2, Heard())


def test_an_unexpected_error_is_named_and_ends_the_others(jobs, capfd):
    with pytest.raises(EvalsvcError, match="unexpected ValueError in a working process: odd") as error:
        run_parallel(jobs.break_, [(1,), (2,)], 2, Heard())
    assert "Traceback" in str(error.value.__cause__)  # shown by --debug
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_was_killed_is_an_error(jobs):
    with pytest.raises(EvalsvcError, match="ended with code -9"):
        run_parallel(jobs.die, [(1,)], 2, Heard())


def test_an_interrupt_ends_every_process_in_order(jobs, tmp_path, capfd):
    folder = tmp_path / "pids"
    folder.mkdir()

    class Interrupting(Heard):
        def progress(self, label: str):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(jobs.wait, [(str(folder),)] * 2, 2, Interrupting())
    for name in folder.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(name.stem), 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("another", [False, True], ids=["here", "another-thread"])
def test_a_signal_while_a_process_starts_leaves_none_behind(jobs, tmp_path, monkeypatch, number, another):
    """Of the whole process it may come to any thread, and the main one runs its handler."""
    start, started = SpawnProcess.start, []

    def interrupted(process: SpawnProcess) -> None:
        start(process)
        started.append(process)
        if another:
            sender = threading.Thread(target=lambda: (unblock(number), signal.raise_signal(number)))
            sender.start()
            sender.join()
        else:
            signal.raise_signal(number)

    def unblock(number: int) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    before, masked = signal.signal(number, signal.default_int_handler), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(KeyboardInterrupt):
            run_parallel(jobs.wait, [(str(tmp_path),)], 1, Heard())
        assert signal.getsignal(number) == signal.default_int_handler
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == masked
    finally:
        signal.signal(number, before)
    (process,) = started
    assert not process.is_alive() and not list(tmp_path.glob("*.pid"))
