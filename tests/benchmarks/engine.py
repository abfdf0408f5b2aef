"""The engine beside lm-eval's hf: `python -m tests.benchmarks.engine` from the repository's root.

Ratios of one run: same weights, type, items and threads; what is compared runs in turn. `--only mc,gen` picks parts,
`--quick` asks few items, `--full` asks lm-eval's hf every item (some minutes become half an hour).
Exit code 0 when all targets are reached, 1 when one is missed, 2 when something cannot be measured.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("mc", "gen", "arms", "decode", "memory", "exact")
TITLES = {
    "mc": "(a) multiple choice: a whole subject of MMLU, 5 shots",
    "gen": "(b) generation: GSM8K's form, 5 shots",
    "arms": "(c) four decode arms over one prefill",
    "decode": "(d) decode throughput",
    "memory": "(e) memory",
    "exact": "(f) fp32: equal to lm-eval's hf",
}


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.engine", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, by commas: {', '.join(PARTS)}")
    parser.add_argument("--model", type=Path, help="directory of the model; the small real model when left out")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--device",
        default="auto",
        help="of both sides; auto: the engine's choice, hf on the processor",
    )
    parser.add_argument("--quick", action="store_true", help="few items: a trial of the measurements")
    parser.add_argument("--full", action="store_true", help="lm-eval's hf on every item, too")
    parser.add_argument("--save", type=Path, help="also write what is printed to this file")
    parsed = parser.parse_args(argv)
    parsed.only = [part for part in parsed.only.split(",") if part]
    unknown = [part for part in parsed.only if part not in PARTS]
    if unknown or not parsed.only:
        parser.error(f"--only: {', '.join(unknown) or 'nothing'} is no part; there are {', '.join(PARTS)}")
    if parsed.threads < 1:
        parser.error("--threads is at least 1")
    return parsed


def main(argv: list[str]) -> int:
    """Measures the parts asked and prints a table of each."""
    asked = arguments(argv)
    os.environ.setdefault("OMP_NUM_THREADS", str(asked.threads))  # read once, when torch is imported
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from rich.console import Console

    from evalsvc.errors import EvalsvcError

    from . import memory, parts
    from .common import Row, Settings, machine, table

    runs: dict[str, Callable[[Settings], list[Row]]] = {
        "mc": parts.multiple_choice,
        "gen": parts.generation,
        "arms": parts.arms,
        "decode": parts.decode,
        "memory": memory.memory,
        "exact": parts.exactness,
    }
    console = Console(record=True, width=None if sys.stdout.isatty() else 120)
    torch.set_num_threads(asked.threads)
    missed = failed = 0
    try:
        model = asked.model or _small_model()
    except EvalsvcError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    for name, fact in machine(asked.threads).items():
        console.print(f"{name:10} {fact}", markup=False, highlight=False)
    console.print(f"{'model':10} {model.name}", markup=False, highlight=False)
    for part in asked.only:
        with tempfile.TemporaryDirectory(prefix="evalsvc-bench-") as work:
            settings = Settings(model, asked.data, Path(work), asked.threads, asked.device, asked.quick, asked.full)
            start = time.monotonic()
            try:
                rows = runs[part](settings)
            except EvalsvcError as error:
                console.print(f"\n{TITLES[part]}: not measured: {error}", markup=False, highlight=False)
                failed += 1
                continue
        missed += sum(row.reached is False for row in rows)
        console.print()
        console.print(table(f"{TITLES[part]} ({time.monotonic() - start:.0f} s)", rows), highlight=False)
    if asked.save:
        asked.save.write_text(console.export_text(), encoding="utf-8")
    return 2 if failed else 1 if missed else 0


def _small_model() -> Path:
    from evalsvc.engine.checkpoint.small_model import prepare
    from evalsvc.paths import cache_dir

    return prepare(cache_dir())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
