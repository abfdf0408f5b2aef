"""Test files side by side, each in a process of its own: `python -m tests.benchmarks.gpu_tests --seconds 180 FILES`.

Kernels are compiled as tests first launch them, file beside file: on one core alone that takes minutes. What breaks the
device takes no other file with it, and a file that is stopped says what had failed until then. Exit code 0 when all
passed, 1 when a test failed, 2 when a file was stopped or could not be run.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PYTEST = ("-W", "ignore", "-m", "pytest", "-q", "-rs", "--tb=short", "-m", "not slow", "-p", "no:cacheprovider")
GRACE_SECONDS = 8  # for a file's last words once it is interrupted


@dataclass(frozen=True)
class Running:
    """A file's process, and where it prints."""

    file: Path
    process: subprocess.Popen[bytes]
    log: Path

    def end(self, deadline: float) -> int:
        """Its exit code; 124 if it had to be stopped."""
        try:
            return self.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(max(deadline + GRACE_SECONDS - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return 124

    def said(self) -> str:
        """All that it printed, without the lines of dots."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line for line in lines if line.strip(" .s") and not line.endswith("%]"))


def begin(file: Path, log: Path) -> Running:
    """Starts a file."""
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, *PYTEST, str(file)], stdout=out, stderr=subprocess.STDOUT)
    return Running(file, process, log)


def main(argv: list[str]) -> int:
    """Runs files and prints what each said, in their order."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu_tests", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, required=True, help="until what still runs is interrupted")
    parser.add_argument("files", nargs="+", type=Path, help="test files")
    asked = parser.parse_args(argv)
    deadline = time.monotonic() + asked.seconds
    worst = 0
    with tempfile.TemporaryDirectory(prefix="evalsvc-tests-") as folder:
        begun = [begin(file, Path(folder) / str(i)) for i, file in enumerate(asked.files)]
        for running in begun:
            code = running.end(deadline)
            print(f"-- {running.file}{f': exit code {code}' if code else ''}\n{running.said()}", flush=True)
            worst = max(worst, code if code in (0, 1) else 2)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
