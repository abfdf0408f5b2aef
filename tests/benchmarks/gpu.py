"""Speed on a GPU: `python -m tests.benchmarks.gpu` from the repository's root, once `tests/kernels` has passed there.

Kernels against their limits and against torch, and an 8B-shaped model of random numbers under four plans. `--only
attention,linear` picks parts. `--dry` runs every part on a processor with tiny sizes and Triton's interpreter: it says
that the measurements work, and gives no figures. Exit code 0 when all aims are reached, 1 when one is missed, 2 when a
part could not be measured: its error is printed, and the next part begins. Each figure is printed when it is measured.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .common import Row

PARTS = ("replays", "attention", "linear", "latent", "steps", "integrity", "plans")
TITLES = {
    "replays": "logits of replayed decode steps beside eager ones",
    "attention": "decode attention over pages",
    "linear": "products with packed weights",
    "latent": "latent attention, and the choice of keys",
    "steps": "one decode step: host and device",
    "integrity": "integrity of pages: on against off",
    "plans": "four plans, end to end",
}


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
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


def line(row: "Row") -> str:
    """A figure, its aim and whether it is reached, and its note, in one line."""
    word = {None: "", True: ", reached", False: ", missed"}[row.reached]
    aim = f" ({row.target}{word})" if row.target else ""
    return f"  {row.what}: {row.value}{aim}{'; ' if row.note else ''}{row.note}"


def main(argv: list[str]) -> int:
    """Measures the parts asked and prints a line for each figure."""
    asked = arguments(argv)
    if asked.dry:
        os.environ.update(TRITON_INTERPRET="1", EVALSVC_KERNELS="triton", OMP_NUM_THREADS="1")
    import torch
    from rich.console import Console

    from . import gpu_engine, gpu_kernels, gpu_latents, gpu_replays
    from .gpu_clock import Bench

    console = Console(record=True, soft_wrap=True, highlight=False, markup=False)
    if not asked.dry and not torch.cuda.is_available():
        console.print("error: torch sees no GPU: nothing was measured; --dry tries the measurements")
        return 2
    bench = Bench("cpu" if asked.dry else "cuda", asked.dry, asked.bandwidth)
    console.print("dry: tiny sizes on a processor, no figures" if asked.dry else torch.cuda.get_device_name())
    runs: dict[str, Callable[[Bench], Iterator[Row]]] = {
        "replays": gpu_replays.replays,
        "attention": gpu_kernels.attention,
        "linear": gpu_kernels.linear,
        "latent": gpu_latents.latents,
        "steps": gpu_engine.steps,
        "integrity": gpu_engine.integrity,
        "plans": gpu_engine.plans,
    }
    missed, failed = 0, 0
    for part in asked.only:
        start = time.monotonic()
        console.print(f"\n{TITLES[part]}")
        try:
            for row in runs[part](bench):
                missed += row.reached is False
                console.print(line(row))
        except (Exception, SystemExit):
            failed += 1
            console.print(f"{traceback.format_exc()}{TITLES[part]}: not measured to the end")
            continue
        console.print(f"  ({time.monotonic() - start:.0f} s)")
    if asked.save:
        asked.save.write_text(console.export_text(), encoding="utf-8")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
