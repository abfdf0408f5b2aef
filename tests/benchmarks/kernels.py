"""Triton kernels: `python -m tests.benchmarks.kernels --compile-only` from the repository's root needs no GPU.

It compiles every configuration that can be chosen for every architecture on which it can, and prints what the machine
code takes: one line for configurations that differ in options alone, with the most that any of them takes. Exit code 0
when all fit, 1 when one spills registers or asks more shared memory than there is, 2 when nothing could be compiled.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache

from evalsvc.kernels.compiling import ARCHITECTURES, Compiled, Signature, compile_for, every_signature


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--compile-only", action="store_true", required=True, help="compile; run nothing")
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: as many as processors")
    return parser.parse_args(argv)


@cache
def by_name() -> dict[str, Signature]:
    """Every configuration."""
    return {signature.name: signature for signature in every_signature()}


def compiled(task: tuple[str, int]) -> Compiled:
    """A configuration, by its name, for an architecture."""
    name, architecture = task
    return compile_for(by_name()[name], architecture)


def rows(found: Sequence[Compiled]) -> list[tuple[str, ...]]:
    """Lines of the table: name, warps and stages, and a cell for each architecture."""
    families: dict[tuple[str, int, int], dict[int, list[Compiled]]] = {}
    for kernel in found:
        signature = by_name()[kernel.name]
        family = families.setdefault((signature.family, signature.num_warps, signature.num_stages), {})
        family.setdefault(kernel.architecture, []).append(kernel)
    return [
        (name, str(warps), str(stages), *(cell(family, architecture) for architecture in ARCHITECTURES))
        for (name, warps, stages), family in families.items()
    ]


def cell(family: Mapping[int, Sequence[Compiled]], architecture: int) -> str:
    """The most that configurations of a family take."""
    some = family.get(architecture)
    if some is None:
        return "not chosen there"
    registers, spilled = max(k.registers for k in some), max(k.spilled_bytes for k in some)
    text = f"{registers} / {spilled} / {max(k.shared_bytes for k in some) / 1024:.1f}"
    return text if all(k.fits for k in some) else f"[red]{text}"


def main(argv: list[str]) -> int:
    """Compiles what was asked and prints one table."""
    asked = arguments(argv)
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = [s for s in by_name().values() if asked.only in s.name]
    if not chosen:
        console.print(f"error: no kernel is called like {asked.only!r}", markup=False)
        return 2
    tasks = [(s.name, a) for s in chosen for a in ARCHITECTURES if s.runs_on(a)]
    start = time.monotonic()
    with ProcessPoolExecutor(asked.processes) as pool:
        found = list(pool.map(compiled, tasks))
    table = Table(
        title="registers a thread / bytes spilled a thread / KiB of shared memory a block", title_justify="left"
    )
    for column in ("kernel", "warps", "stages", *(f"sm_{architecture}" for architecture in ARCHITECTURES)):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for row in rows(found):
        table.add_row(*row)
    console.print(table, highlight=False)
    unfit = [kernel for kernel in found if not kernel.fits]
    for kernel in unfit:
        console.print(f"does not fit: {kernel}", markup=False)
    said = f"{len(chosen)} configurations, {len(found)} compilations, {time.monotonic() - start:.0f} s"
    console.print(f"{said}, {len(unfit)} that do not fit", markup=False)
    return 1 if unfit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
