"""What the allocator maps, and so gives back at once, while weights are read."""

import ctypes
import sys

import pytest
import torch

from evalsvc.engine.memory import LARGEST_MAPPED_BYTES, MAPPED_BYTES, returning

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Malloc(ctypes.Structure):
    """mallinfo(3): `hblkhd` are the bytes in pieces that are mapped."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]


@pytest.fixture
def mapped_by():
    """The bytes more that are mapped while a tensor of so many lives."""
    libc = ctypes.CDLL(None)
    if sys.platform != "linux" or not hasattr(libc, "mallinfo2"):
        pytest.skip("the allocator is not glibc 2.33 or later")
    libc.mallinfo2.restype = Malloc

    def measure(n_bytes: int) -> int:
        before = libc.mallinfo2().hblkhd
        held = torch.empty(n_bytes, dtype=torch.uint8)
        found = libc.mallinfo2().hblkhd - before
        del held
        assert libc.mallinfo2().hblkhd == before
        return found

    return measure


@pytest.fixture
def unsaid(monkeypatch):
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


def test_large_pieces_are_mapped_only_while_weights_are_read(mapped_by, unsaid):
    with returning():
        assert mapped_by(4 * MAPPED_BYTES) >= 4 * MAPPED_BYTES
        assert mapped_by(MAPPED_BYTES // 4) == 0
    assert mapped_by(4 * MAPPED_BYTES) == 0
    assert mapped_by(2 * LARGEST_MAPPED_BYTES) >= 2 * LARGEST_MAPPED_BYTES


def test_a_load_that_fails_maps_no_longer_either(mapped_by, unsaid):
    with pytest.raises(ValueError, match="truncated"), returning():
        raise ValueError("truncated")
    assert mapped_by(4 * MAPPED_BYTES) == 0


@pytest.mark.parametrize(("name", "value"), [("MALLOC_MMAP_THRESHOLD_", "1"), ("GLIBC_TUNABLES", "glibc.malloc.x=1")])
def test_what_the_environment_says_of_the_allocator_stays(mapped_by, unsaid, monkeypatch, name, value):
    with returning():
        pass
    monkeypatch.setenv(name, value)
    with returning():
        assert mapped_by(4 * MAPPED_BYTES) == 0
