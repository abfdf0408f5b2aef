"""Kernels written in Triton: made ready when first launched, for a GPU or for Triton's interpreter.

Triton decides where a function is decorated whether it is compiled or interpreted. Here that is decided at each launch,
by TRITON_INTERPRET, so that a process can do both: compile for a GPU, and run the same source on a CPU.

Triton need not be installed to import a kernel's file: its torch twin works without.
"""

import dis
import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy

from evalsvc.errors import CapabilityError

try:
    import triton
    import triton.language as tl
except ImportError:  # no wheel for this platform, or the core install
    triton: Any = None
    tl: Any = None


class _Known(Any):
    """What stands for Triton's own where that is not installed, and where types are checked."""

    def __new__(cls, value: Any = None) -> Self:
        """Any's own takes no value."""
        return super().__new__(cls)

    def __init__(self, value: Any = None):
        self.value = value


constexpr = _Known
if not TYPE_CHECKING and triton is not None:
    constexpr = tl.constexpr
"""Annotates an argument, or makes a global, that is known when a kernel is compiled."""
INTERPRETED: Any = None
"""In a kernel: whether it runs in the interpreter."""


def missing() -> str | None:
    """Why no kernel can run, in words; None where Triton is installed."""
    return "triton is not installed (Linux: pip install 'evalsvc[engine]')" if triton is None else None


def interpreting() -> bool:
    """Whether kernels run on the CPU, operation by operation, as TRITON_INTERPRET=1 asks."""
    return triton is not None and bool(triton.knobs.runtime.interpret)


class Kernel:
    """A function in Triton's language.

    It may call other kernels that are global names of its file, and read the global INTERPRETED.
    """

    def __init__(self, function: Callable[..., None]):
        self.function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @functools.cached_property
    def compiled(self) -> Any:
        """For a GPU: what `triton.jit` gives, whatever TRITON_INTERPRET says.

        Raises:
            CapabilityError: Triton is not installed.
        """
        if (reason := missing()) is not None:
            raise CapabilityError(f"kernel {self.__name__}: {reason}")
        return triton.runtime.jit.JITFunction(self._with_callees("compiled"))

    @functools.cached_property
    def interpreted(self) -> Any:
        """For Triton's interpreter."""
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction(self._with_callees("interpreted"))

    def _with_callees(self, form: str) -> types.FunctionType:
        """The function in a namespace where the kernels it calls are in this form."""
        names = self.function.__globals__
        read = {i.argval for i in dis.get_instructions(self.function) if i.opname == "LOAD_GLOBAL"}
        forms = {name: getattr(names[name], form) for name in read if isinstance(names.get(name), Kernel)}
        own = {"range": _range} if form == "interpreted" else {}
        return _copy(self.function, {**names, **forms, **own, "INTERPRETED": constexpr(form == "interpreted")})

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Launches the kernel over a grid: `kernel[grid](arguments)`."""
        if interpreting():
            return functools.partial(self._interpret, grid)
        return functools.partial(self.compiled[grid], enable_fp_fusion=True)

    def _interpret(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        with _interpretable_library():
            self.interpreted[grid](*args, **options)


# Python lays frames into pieces of 16 KB, and a function that is the first in a piece makes and drops it at each call:
# up to half of the time, as the depth will have it. Below a frame that is wider there is one piece for all.
Kernel._interpret.__code__ = Kernel._interpret.__code__.replace(co_stacksize=2**15)


def jit(function: Callable[..., Any]) -> Any:
    """Declares a kernel, or a function that kernels call."""
    return Kernel(function)


@jit
def dot(a, b, acc):
    """`a b + acc`, products exact and sums in fp32, of two tiles of bf16 or of fp32."""
    if INTERPRETED:  # bf16 it multiplies as whole numbers; in fp32 a row's place in a tile may choose its bits
        return tl.dot(a.to(tl.float64), b.to(tl.float64), acc.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@jit
def to_bf16(x):
    """fp32 to the nearest bf16, ties to even."""
    if INTERPRETED:  # the interpreter cuts bits off
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(tl.bfloat16)


def _range(*bounds: Any) -> range:
    """`range` in the interpreter, which holds a kernel's scalars as arrays of one number.

    Triton 3.6 makes an index of such an array in a way that numpy has refused since 2.4.
    """
    return range(*(bound.handle.data.item() if isinstance(bound, tl.core.tensor) else bound for bound in bounds))


def _copy(function: Any, names: dict[str, Any]) -> types.FunctionType:
    """The function in another namespace."""
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    for name in ("__annotations__", "__kwdefaults__", "__module__", "__qualname__"):
        setattr(made, name, getattr(function, name))
    return made


@contextmanager
def _interpretable_library() -> Iterator[None]:
    """Triton's own functions in Triton (`tl.sum`, `tl.max`, ...) interpreted inside the block.

    Behind it the library is as it was: the interpreter leaves some of what it replaces in place, and nothing could be
    compiled any more. Inside it replaces each part once, and not at each call of a function in Triton: a third of the
    time.
    """
    from triton.runtime import interpreter

    core = tl.core
    parts = [tl, tl.math, core, core.tensor, core.dtype, core.condition, core.tensor_descriptor_base, interpreter]
    held = [(part, dict(vars(part))) for part in parts]
    replace, replaced = interpreter._patch_lang, {}

    def replace_once(function: Any) -> Any:
        seen = frozenset(id(value) for value in function.__globals__.values() if value is tl or value is core)
        if seen not in replaced:
            replaced[seen] = replace(function)
        return replaced[seen]

    try:
        interpreter._patch_lang = replace_once
        for name, value in held[0][1].items():
            if isinstance(value, triton.runtime.jit.JITFunction):
                setattr(tl, name, _interpreted(value))
        with numpy.errstate(all="ignore"):  # what is not finite is no mistake of the interpreter's
            yield
    finally:
        for part, names in held:
            for name, value in list(vars(part).items()):
                if name not in names:
                    delattr(part, name)
                elif names[name] is not value:
                    setattr(part, name, names[name])


@functools.cache
def _interpreted(function: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(_copy(function.fn, dict(function.fn.__globals__)))
