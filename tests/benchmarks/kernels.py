"""Triton kernels: `python -m tests.benchmarks.kernels --compile-only` from the repository's root needs no GPU.

It compiles every default configuration for every architecture and prints what the machine code takes. Exit code 0 when
all fit, 1 when one spills registers or asks more shared memory than there is, 2 when nothing could be compiled.
"""

import argparse
import sys
import time


def arguments(argv: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--compile-only", action="store_true", required=True, help="compile; run nothing")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Compiles what was asked and prints one table."""
    asked = arguments(argv)
    from rich.console import Console
    from rich.table import Table

    from evalsvc.kernels.compiling import ARCHITECTURES, compile_for, every_signature

    signatures = [s for s in every_signature() if asked.only in s.name]
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not signatures:
        console.print(f"error: no kernel is called like {asked.only!r}", markup=False)
        return 2
    table = Table(
        title="registers a thread / bytes spilled a thread / KiB of shared memory a block", title_justify="left"
    )
    for column in ("kernel", "warps", "stages", *(f"sm_{architecture}" for architecture in ARCHITECTURES)):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    start, unfit = time.monotonic(), 0
    for signature in signatures:
        cells = []
        for architecture in ARCHITECTURES:
            if not signature.runs_on(architecture):
                cells.append("no fp8 there")
                continue
            found = compile_for(signature, architecture)
            unfit += not found.fits
            text = f"{found.registers} / {found.spilled_bytes} / {found.shared_bytes / 1024:.1f}"
            cells.append(text if found.fits else f"[red]{text}")
        table.add_row(signature.name, str(signature.num_warps), str(signature.num_stages), *cells)
    console.print(table, highlight=False)
    console.print(f"{len(signatures)} kernels, {time.monotonic() - start:.0f} s, {unfit} that do not fit", markup=False)
    return 1 if unfit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
