"""Which form of a kernel runs, and which one ran, counted for the proof.

On a GPU kernels run as Triton, on a CPU as torch. EVALSVC_KERNELS=triton or torch forces one form of every kernel that
has both; a form that cannot run is refused, never replaced.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from evalsvc.errors import CapabilityError, ConfigError

VARIABLE = "EVALSVC_KERNELS"
Form = Literal["triton", "torch"]

_counter: ContextVar[Counter[str] | None] = ContextVar("evalsvc_kernel_counter", default=None)


@contextmanager
def counting(counter: Counter[str]) -> Iterator[None]:
    """Counts the kernels that run inside the block into `counter`, as `name.form`."""
    token = _counter.set(counter)
    try:
        yield
    finally:
        _counter.reset(token)


def ran(kernel: str) -> None:
    """Notes one run of `name.form`."""
    counter = _counter.get()
    if counter is not None:
        counter[kernel] += 1


def form(device: str) -> Form:
    """Which form kernels take.

    Args:
        device: Type of the tensors' device: `cpu` or `cuda`.

    Raises:
        ConfigError: EVALSVC_KERNELS is neither triton nor torch.
        CapabilityError: Triton cannot run there.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "triton", "torch"):
        raise ConfigError(f"{VARIABLE} is {asked!r}; it must be triton, torch, or not set")
    if asked == "torch" or (not asked and device != "cuda"):
        return "torch"
    from . import jit

    if (reason := jit.missing()) is not None:
        raise CapabilityError(f"kernels cannot run as Triton: {reason}; {VARIABLE}=torch runs their torch forms")
    if device != "cuda" and not jit.interpreting():
        raise CapabilityError(
            f"{VARIABLE}=triton needs a GPU; TRITON_INTERPRET=1 beside it runs them on a CPU, a thousand times slower"
        )
    return "triton"


def described(device: str) -> str:
    """`form`, with a word more where Triton's interpreter runs it: that sums in another order than a GPU."""
    chosen = form(device)
    if chosen == "torch":
        return chosen
    from . import jit

    return "triton:interpreted" if jit.interpreting() else chosen
