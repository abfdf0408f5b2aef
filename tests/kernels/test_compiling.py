"""What kernels take on GPUs that are not here: read from machine code, and no default configuration spills."""

import dataclasses

import pytest
import triton
import triton.language as tl

from evalsvc.errors import CapabilityError
from evalsvc.kernels.compiling import ARCHITECTURES, Signature, compile_for, every_signature


@triton.jit
def _sums(x, out, rows, SIZE: tl.constexpr):
    block = tl.load(x + tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :])
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for row in range(rows):
        total += block * row + tl.trans(block)  # all of the block stays in registers
    tl.store(out + tl.arange(0, SIZE), tl.sum(total, 1))


@triton.jit
def _e4m3(x, out):
    tl.store(out, tl.load(x).to(tl.float8e4nv).to(tl.float32))


SUMS = Signature("sums", _sums, {"x": "*fp32", "out": "*fp32", "rows": "i32"}, {"SIZE": 16}, aligned=("x", "out"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_small_kernel_fits(architecture):
    found = compile_for(SUMS, architecture)
    assert found.fits and found.spilled_bytes == 0 and 8 <= found.registers < 64
    assert (found.name, found.architecture) == ("sums", architecture)


def test_what_does_not_fit_registers_is_seen():
    found = compile_for(dataclasses.replace(SUMS, constants={"SIZE": 128}, num_warps=1), 90)
    assert found.spilled_bytes > 0 and not found.fits


def test_shared_memory_beyond_the_hardware_does_not_fit():
    found = compile_for(SUMS, 90)
    assert not dataclasses.replace(found, shared_bytes=2**18).fits


def test_a_kernel_that_needs_fp8_is_refused_where_there_is_none():
    signature = Signature("e4m3", _e4m3, {"x": "*fp32", "out": "*fp32"}, needs_fp8=True)
    with pytest.raises(CapabilityError, match="e4m3 computes in fp8, which sm_80 does not have"):
        compile_for(signature, 80)
    assert compile_for(signature, 90).fits


def test_a_signature_that_is_not_its_kernels_is_refused():
    with pytest.raises(CapabilityError, match="sums: its signature and its kernel differ in SIZE"):
        compile_for(dataclasses.replace(SUMS, constants={}), 90)


def test_every_kernels_configurations_have_names_of_their_own():
    names = [signature.name for signature in every_signature()]
    assert len(names) >= 20 and len(names) == len(set(names))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "every"), [(80, 4), (90, 2), (100, 4)])
def test_no_default_configuration_spills(architecture, every):
    """Some of them; the table of `python -m tests.benchmarks.kernels --compile-only` has all."""
    served = [s for s in every_signature() if s.runs_on(architecture)]
    found = [compile_for(signature, architecture) for signature in served[::every]]
    assert found and [kernel for kernel in found if not kernel.fits] == []
