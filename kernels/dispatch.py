"""Which form of a kernel ran, counted for the proof.

On CPU every kernel has its torch form; a form for GPUs registers its runs under its own name.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
