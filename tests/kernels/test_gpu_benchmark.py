"""What is measured on a GPU works without one: every part runs, tiny, in Triton's interpreter, and gives no figure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import gpu_replays
from tests.benchmarks.gpu_clock import Bench

ROOT = Path(__file__).parents[2]
AGAIN = gpu_replays._again


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_runs_dry_and_gives_no_figures():
    command = ["bash", str(ROOT / "tests" / "benchmarks" / "gpu.sh"), "--dry", sys.executable]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    titles = ("replayed decode steps", "decode attention", "packed weights", "latent attention", "one decode step")
    titles += ("integrity of pages", "four plans")
    assert all(title in ran.stdout for title in titles)
    figures = [line for line in ran.stdout.splitlines() if line.startswith("  ") and not line.startswith("  (")]
    assert len(figures) > 10 and all("dry: not measured" in line for line in figures)
    assert ran.stdout.endswith("everything ran (dry: no figures)\n")


@pytest.mark.slow
def test_a_part_that_fails_takes_no_other_with_it(tmp_path):
    """A stand-in for Python that fails, hangs or misses an aim, part by part."""
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/bash
case "$*" in
  *"only replays"*) exit 1 ;;
  *"only latent"*) echo "latents measured" ;;
  *"only attention"*) echo "attention measured"; exit 1 ;;
  *"only linear"*) echo "linear broke"; exit 2 ;;
  *"only steps"*) kill -SEGV $$ ;;
  *"only integrity"*) echo "integrity measured" ;;
  *"only plans"*) sleep 600 ;;
  *gpu_tests*) exit 1 ;;
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
    assert "replays: logits are not those of eager steps" in said and "latent" not in said
    assert "linear: exit code 2" in said and "steps: exit code 139" in said
    assert "integrity" not in said and "plans: stopped after 5 s" in said
    assert "integrity measured" in (tmp_path / "gpu.txt").read_text(encoding="utf-8")


class Figures(Bench):
    """A dry run that judges its figures."""

    def row(self, *given, **asked):
        return Bench(self.device, False, self.bandwidth).row(*given, **asked)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_replays_that_are_no_eager_steps_miss_their_aims(monkeypatch, wrong):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")
    monkeypatch.setattr(gpu_replays, "PLANS", ("w=bf16,kv=fp8",))
    if wrong:
        monkeypatch.setattr(gpu_replays, "_again", graph_of_other_tokens)
    rows = list(gpu_replays.replays(Figures("cpu", True, 1.0)))
    assert len(rows) == 6 and {row.reached for row in rows} == {not wrong}


def graph_of_other_tokens(forward, buffers):
    """Its replays read each token's neighbour."""
    again = AGAIN(forward, buffers)

    def run() -> None:
        buffers.token_ids.add_(1)
        again.run()
        buffers.token_ids.sub_(1)

    return again._replace(run=run)


def test_a_part_that_is_not_there_is_named():
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--only", "linear,speed"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2 and "--only: speed is no part" in ran.stderr


@pytest.mark.slow
def test_test_files_run_side_by_side_and_each_says_what_failed(tmp_path):
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    (tmp_path / "test_bad.py").write_text("def test_bad():\n    assert not 'this is wrong'\n")
    ran = run_files(tmp_path, "300", "test_bad.py", "test_good.py")
    assert ran.returncode == 1
    bad, good = ran.stdout.index("test_bad.py: exit code 1"), ran.stdout.index("test_good.py\n")
    assert bad < ran.stdout.index("this is wrong") < good < ran.stdout.index("1 passed")


@pytest.mark.slow
def test_a_test_file_that_does_not_end_is_stopped(tmp_path):
    (tmp_path / "test_long.py").write_text("import time\n\n\ndef test_long():\n    time.sleep(600)\n")
    ran = run_files(tmp_path, "0", "test_long.py")
    assert ran.returncode == 2 and "test_long.py: exit code 124" in ran.stdout


def run_files(folder: Path, seconds: str, *files: str) -> subprocess.CompletedProcess[str]:
    """What `gpu_tests` says of files."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu_tests", "--seconds", seconds]
    paths = [str(folder / file) for file in files]
    return subprocess.run([*command, *paths], capture_output=True, text=True, cwd=ROOT)
