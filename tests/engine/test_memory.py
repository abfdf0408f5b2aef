"""What the allocator maps, and so gives back at once, while weights are read: asked of fresh processes.

An allocator that has freed much serves from that first, whatever its thresholds.
"""

import os
import subprocess
import sys

import pytest

from evalsvc.engine.memory import LARGEST_MAPPED_BYTES, MAPPED_BYTES

PROBE = """
import ctypes
from evalsvc.engine.memory import LARGEST_MAPPED_BYTES, MAPPED_BYTES, returning

class Info(ctypes.Structure):  # mallinfo(3)
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def mapped(n_bytes):
    before = libc.mallinfo2().field4  # hblkhd: bytes of pieces that are mapped
    piece = libc.malloc(n_bytes)
    print(int(libc.mallinfo2().field4 - before >= n_bytes))
    libc.free(piece)

with returning():
    mapped(LARGEST_MAPPED_BYTES // 2)
    mapped(MAPPED_BYTES // 4)
mapped(LARGEST_MAPPED_BYTES // 2)
mapped(2 * LARGEST_MAPPED_BYTES)
try:
    with returning():
        raise EOFError
except EOFError:
    mapped(LARGEST_MAPPED_BYTES // 2)
"""


def mapped(**said: str) -> list[bool]:
    """Of the probe's pieces, which are mapped when the environment says this of the allocator."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment | said, capture_output=True, text=True, check=False
    )
    if "mallinfo2" in done.stderr:
        pytest.skip("the allocator is not glibc 2.33 or later")
    assert done.returncode == 0, done.stderr
    return [line == "1" for line in done.stdout.split()]


def test_large_pieces_are_mapped_only_while_weights_are_read():
    assert MAPPED_BYTES < LARGEST_MAPPED_BYTES // 2
    assert mapped() == [True, False, False, True, False]


@pytest.mark.parametrize(
    "said",
    [
        {"MALLOC_MMAP_THRESHOLD_": "33554432"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432"},
    ],
)
def test_what_the_environment_says_of_the_allocator_stays(said):
    assert mapped(**said) == [False, False, False, True, False]
