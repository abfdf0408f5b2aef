"""Compiling Triton kernels for GPUs that are not here, and what the machine code takes.

Triton assembles for any architecture it knows; registers, local memory and shared memory then stand in the cubin and in
what Triton says of it, so a configuration that would spill is found without a device.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evalsvc.errors import CapabilityError

ARCHITECTURES = (80, 90, 100)
FP8_ARCHITECTURE = 89
SHARED_BYTES = {80: 166_912, 90: 232_448, 100: 232_448}  # most that a block may ask: CUDA's programming guide, table 27
WARP = 32


@dataclass(frozen=True)
class Signature:
    """A kernel in one configuration.

    Attributes:
        name: Of the configuration, unique among all: what the table and the tests call it.
        fn: What `kernels.jit.jit` or `triton.jit` made.
        types: Argument to Triton's type (`*bf16`, `i32`), for every argument that is no constant.
        constants: Every `tl.constexpr` argument.
        num_warps: Warps of a block.
        num_stages: Depth of the pipeline of loads.
        needs_fp8: It is chosen only where hardware computes with e4m3, which sm_80 does not have.
        lacks_fp8: It is chosen only where hardware does not.
        aligned: Arguments that are multiples of 16 (addresses and sizes), as Triton finds out by itself when it
            launches: loads are of whole vectors then.
    """

    name: str
    fn: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    needs_fp8: bool = False
    lacks_fp8: bool = False
    aligned: tuple[str, ...] = ()

    def runs_on(self, architecture: int) -> bool:
        """Whether it is chosen there."""
        return not (self.lacks_fp8 if architecture >= FP8_ARCHITECTURE else self.needs_fp8)

    @property
    def family(self) -> str:
        """Its name without its options, which stand behind a semicolon."""
        return self.name.partition("; ")[0]


@dataclass(frozen=True)
class Compiled:
    """What the machine code takes.

    Attributes:
        name: As in `Signature`.
        architecture: 90 for sm_90.
        registers: Of a thread.
        spilled_bytes: Local memory of a thread: what its registers did not hold.
        shared_bytes: Of a block.
    """

    name: str
    architecture: int
    registers: int
    spilled_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        """Whether nothing is spilled, and the block's shared memory exists."""
        return self.spilled_bytes == 0 and self.shared_bytes <= SHARED_BYTES[self.architecture]


def compile_for(signature: Signature, architecture: int) -> Compiled:
    """Compiles one configuration.

    Args:
        signature: What to compile.
        architecture: One of ARCHITECTURES.

    Raises:
        CapabilityError: It is not for this architecture, or the signature is not the kernel's.
    """
    if not signature.runs_on(architecture):
        reason = "computes in fp8, which sm_{} does not have" if signature.needs_fp8 else "is for GPUs before sm_{}"
        raise CapabilityError(f"{signature.name} {reason.format(architecture)}")
    fn = getattr(signature.fn, "compiled", signature.fn)
    types = dict(signature.types) | dict.fromkeys(signature.constants, "constexpr")
    names = fn.arg_names
    unknown = sorted(set(names) ^ set(types))
    if unknown:
        raise CapabilityError(f"{signature.name}: its signature and its kernel differ in {', '.join(unknown)}")
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in signature.aligned}
    ordered = {name: types[name] for name in names}
    source = ASTSource(fn, ordered, dict(signature.constants), attrs=attributes)
    options = {"num_warps": signature.num_warps, "num_stages": signature.num_stages, "enable_fp_fusion": True}
    compiled: Any = triton.compile(source, target=GPUTarget("cuda", architecture, WARP), options=options)
    registers, local = _usage(compiled.asm["cubin"])
    return Compiled(signature.name, architecture, registers, local, int(compiled.metadata.shared))


def every_signature() -> list[Signature]:
    """The default configurations of all kernels: what each module of this package names in `signatures()`."""
    package = import_module(__package__ or "")
    found: list[Signature] = []
    for module in sorted(info.name for info in iter_modules(package.__path__)):
        named = getattr(import_module(f"{package.__name__}.{module}"), "signatures", None)
        found += named() if named is not None else []
    return found


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread, as NVIDIA's cuobjdump reads them from machine code."""
    with tempfile.TemporaryDirectory(prefix="evalsvc-cubin-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    if found is None:
        raise CapabilityError(f"{command[0]} says nothing of registers; it said: {' '.join(said.split())}")
    return int(found[1]), int(found[2]) + int(found[3])
