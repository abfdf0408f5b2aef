"""What is measured on a GPU works without one: every part runs, tiny, in Triton's interpreter, and gives no figure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_runs_dry_and_gives_no_figures():
    command = ["bash", str(ROOT / "tests" / "benchmarks" / "gpu.sh"), "--dry", sys.executable]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    titles = ("decode attention", "packed weights", "decode step", "integrity of pages", "four plans")
    assert all(title in ran.stdout for title in titles)
    figures = [line for line in ran.stdout.splitlines() if line.startswith("│ ") and line[2:4].strip()]
    assert len(figures) > 10 and all("dry: not measured" in line for line in figures)


def test_a_part_that_is_not_there_is_named():
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--only", "linear,speed"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2 and "--only: speed is no part" in ran.stderr
