"""What loading frees goes back to the system while it goes on: glibc keeps it otherwise, a hundred MB and more.

Between two allocations that stay glibc keeps what was freed, and it takes mapped memory only for ever larger pieces as
such are freed. So loading pins the size above which a piece is mapped, and given back when it is freed: then what
loading holds does not depend on where the heap's holes happen to lie.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STEP_BYTES = 2**21  # read between two times that memory is given back: about one expert of a small mixture
MAPPED_BYTES = 2**20  # above which a piece is mapped while loading; a block of rows on its way stays below
LARGEST_MAPPED_BYTES = 2**25  # where glibc's own adaptation ends on 64 bits (`DEFAULT_MMAP_THRESHOLD_MAX`)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


class Returns:
    """Gives memory back each time that so many bytes were read.

    Measured on a mixture of 300 MB in bf16, loaded as fp8, one expert of 6 MB: without it the peak was 144 MB over what
    stays, giving back every 16 MB left 12 to 43 MB and every 2 MB 12 to 20 MB in the same time.
    """

    def __init__(self) -> None:
        self._read = 0

    def note(self, n_bytes: int) -> None:
        """Counts what was read, and is done with but for what stays."""
        self._read += n_bytes
        if self._read >= STEP_BYTES:
            self._read = 0
            _trim()


@contextmanager
def returning() -> Iterator[Returns]:
    """While weights are read: large pieces are mapped, and what is free at the end is given back.

    Measured on a mixture packed in int4, 12 files of 16.5 MB, loaded in five formats by six processes each: peaks of 2
    to 16 MB over what stays. Afterwards the allocator is as one that has freed a piece of `LARGEST_MAPPED_BYTES`.
    """
    _pin(MAPPED_BYTES)
    try:
        yield Returns()
    finally:
        _pin(LARGEST_MAPPED_BYTES)
        gc.collect()
        _trim()


def _pin(n_bytes: int) -> None:
    """Pieces of so many bytes and more are mapped, and the heap's end is given back from twice as many, as in glibc.

    Not where the environment has a word of its own about either.
    """
    said = any(f"MALLOC_{name}_THRESHOLD_" in os.environ for name in ("MMAP", "TRIM"))
    if not (said or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")) and (libc := _glibc()) is not None:
        libc.mallopt(M_MMAP_THRESHOLD, n_bytes)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * n_bytes)


def _trim() -> None:
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None
