"""What is measured on a GPU works without one: every part runs, tiny, in Triton's interpreter, and gives no figure."""

import os
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
    assert ran.stdout.endswith("everything ran (dry: no figures)\n")


@pytest.mark.slow
def test_a_part_that_fails_takes_no_other_with_it(tmp_path):
    """A stand-in for Python that fails, hangs or misses an aim, part by part."""
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/bash
case "$*" in
  *"only attention"*) echo "attention measured"; exit 1 ;;
  *"only linear"*) echo "linear broke"; exit 2 ;;
  *"only steps"*) kill -SEGV $$ ;;
  *"only integrity"*) echo "integrity measured" ;;
  *"only plans"*) sleep 600 ;;
  *pytest*) exit 1 ;;
  *) cat > /dev/null; echo "a device" ;;
esac
"""
    )
    python.chmod(0o755)
    command = ["bash", str(ROOT / "tests" / "benchmarks" / "gpu.sh"), str(python)]
    environment = {**os.environ, "BENCH_PART_SECONDS": "5", "OUT": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert ran.returncode == 2
    said = ran.stdout.partition("== in short")[2]
    assert "attention: measured, an aim was missed" in said
    assert "kernels: not all equal their twins" in said
    assert "linear: exit code 2" in said and "steps: exit code 139" in said
    assert "integrity" not in said and "plans: stopped after 5 s" in said
    assert "integrity measured" in (tmp_path / "gpu.txt").read_text(encoding="utf-8")


def test_a_part_that_is_not_there_is_named():
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--only", "linear,speed"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2 and "--only: speed is no part" in ran.stderr
