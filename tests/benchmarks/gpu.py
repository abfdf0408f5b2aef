"""Speed on a GPU: `python -m tests.benchmarks.gpu` from the repository's root, once `tests/kernels` has passed there.

Kernels against their limits and against torch, and an 8B-shaped model of random numbers under four plans. `--only
attention,linear` picks parts. `--dry` runs every part on a processor with tiny sizes and Triton's interpreter: it says
that the measurements work, and gives no figures. Exit code 0 when all aims are reached, 1 when one is missed, 2 when a
part could not be measured: its error is printed, and the next part begins.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

PARTS = ("attention", "linear", "steps", "integrity", "plans")
TITLES = {
    "attention": "decode attention over pages",
    "linear": "products with packed weights",
    "steps": "one decode step: host and device",
    "integrity": "integrity of pages: on against off",
    "plans": "four plans, end to end",
}


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, by commas: {', '.join(PARTS)}")
    parser.add_argument("--dry", action="store_true", help="tiny, on a processor: no figures")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s that a copy reaches on this GPU")
    parser.add_argument("--save", type=Path, help="also write what is printed to this file")
    parsed = parser.parse_args(argv)
    parsed.only = [part for part in parsed.only.split(",") if part]
    unknown = [part for part in parsed.only if part not in PARTS]
    if unknown or not parsed.only:
        parser.error(f"--only: {', '.join(unknown) or 'nothing'} is no part; there are {', '.join(PARTS)}")
    return parsed


def main(argv: list[str]) -> int:
    """Measures the parts asked and prints a table of each."""
    asked = arguments(argv)
    if asked.dry:
        os.environ.update(TRITON_INTERPRET="1", EVALSVC_KERNELS="triton", OMP_NUM_THREADS="1")
    import torch
    from rich.console import Console

    from . import gpu_engine, gpu_kernels
    from .common import Row, table
    from .gpu_clock import Bench

    console = Console(record=True, width=None if sys.stdout.isatty() else 120)
    if not asked.dry and not torch.cuda.is_available():
        console.print("error: torch sees no GPU: nothing was measured; --dry tries the measurements", markup=False)
        return 2
    bench = Bench("cpu" if asked.dry else "cuda", asked.dry, asked.bandwidth)
    console.print("dry: tiny sizes on a processor, no figures" if asked.dry else torch.cuda.get_device_name())
    runs: dict[str, Callable[[Bench], list[Row]]] = {
        "attention": gpu_kernels.attention,
        "linear": gpu_kernels.linear,
        "steps": gpu_engine.steps,
        "integrity": gpu_engine.integrity,
        "plans": gpu_engine.plans,
    }
    missed, failed = 0, 0
    for part in asked.only:
        start = time.monotonic()
        try:
            rows = runs[part](bench)
        except (Exception, SystemExit):
            failed += 1
            console.print(f"\n{TITLES[part]}: not measured", markup=False)
            console.print(traceback.format_exc(), markup=False, highlight=False)
            continue
        missed += sum(row.reached is False for row in rows)
        console.print()
        console.print(table(f"{TITLES[part]} ({time.monotonic() - start:.0f} s)", rows), highlight=False)
    if asked.save:
        asked.save.write_text(console.export_text(), encoding="utf-8")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
