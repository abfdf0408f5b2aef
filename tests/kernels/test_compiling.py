"""What kernels take on GPUs that are not here: read from machine code, and no default configuration spills."""

import dataclasses
import re

import pytest
import torch
import triton
import triton.language as tl

from evalsvc.errors import CapabilityError
from evalsvc.kernels import paged_prefill
from evalsvc.kernels.compiling import ARCHITECTURES, Signature, compile_for, every_signature
from evalsvc.kernels.paged_cases import cases
from evalsvc.kernels.paged_launch import constants_of, switches


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


def test_a_kernel_that_is_chosen_where_there_is_no_fp8_is_refused_where_there_is():
    before = dataclasses.replace(SUMS, lacks_fp8=True)
    assert [before.runs_on(architecture) for architecture in ARCHITECTURES] == [True, False, False]
    with pytest.raises(CapabilityError, match="sums is for GPUs before sm_90"):
        compile_for(before, 90)


def test_a_signature_that_is_not_its_kernels_is_refused():
    with pytest.raises(CapabilityError, match="sums: its signature and its kernel differ in SIZE"):
        compile_for(dataclasses.replace(SUMS, constants={}), 90)


def test_every_configuration_has_a_name_of_its_own_and_its_kernels_arguments():
    every = every_signature()
    assert len({signature.name for signature in every}) == len(every)
    for signature in every:
        names = getattr(signature.fn, "compiled", signature.fn).arg_names
        assert sorted(names) == sorted([*signature.types, *signature.constants]), signature.name
        assert set(signature.aligned) <= set(signature.types)


HEADS = ("head 64", "head 80", "head 128", "heads 192 and 128", "head 256")
CODED = [f"{held}, scale of a {whose}" for held in ("e4m3", "e4m3 as bytes", "int8", "int8 without fp8")
         for whose in ("head", "token and head")]  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", ["paged_decode", "paged_prefill"])
def test_attention_over_pages_is_compiled_for_all_that_a_gpu_can_be_asked(kernel, architecture):
    there = {s.family.removeprefix(f"{kernel} ") for s in every_signature() if s.runs_on(architecture)}
    old = architecture < 89
    held = ["bf16", "fp32", *(name for name in CODED if ("as bytes" in name or "without" in name) == old)]
    assert {f"{name}, {head}" for name in held for head in HEADS} <= there


def test_what_the_table_compiles_is_what_is_launched():
    """The cases' constants are worked out without tensors; those of a launch with them."""
    q, pages = torch.zeros(2, 8, 256, dtype=torch.bfloat16), torch.zeros(16, 2, 256, dtype=torch.int8)
    launched = constants_of(q, pages, pages, torch.ones(16, 2), paged_prefill.sizes) | switches(None, None, None, None)
    case = next(c for c in cases(False) if c.name == "int8, scale of a token and head, head 256; tags")
    assert case.constants(paged_prefill.sizes) == launched | {"GUARDED": True, "blocks": 1}


_CODES = r"(e4m3|e4m3 as bytes|int8|int8 without fp8)"
HARD = re.compile(
    rf"paged_decode ({_CODES}, scale of a token and head, head 256; all options"
    r"|e4m3, scale of a head, head 256; tags"
    r"|(e4m3|int8), scale of a head, head 80; tags)"
    rf"|paged_prefill ({_CODES}, scale of a token and head, head 256; all options"
    r"|e4m3, scale of a token and head, head 128; all options"
    r"|e4m3 as bytes, scale of a token and head, head 64; all options"
    r"|int8, scale of a head, head 128; tags"
    r"|int8, scale of a token and head, heads 192 and 128; tags"
    r"|int8( without fp8)?, scale of a token and head, head 64; all options"
    r"|int8 without fp8, scale of a head, head (80|128); all options"
    r"|fp32, head (64|128); tags"
    r"|fp32, queries in bf16, head 128; all options"
    r"|fp32(, queries in bf16)?, head 256; all options)"
    r"|linear_(nvfp4|int4:g128:sym):few_rows; whole"
)
"""Those that spilled with other tiles, warps or stages."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_hard_configuration_spills(architecture):
    """By name; the table of `python -m tests.benchmarks.kernels --compile-only` has all."""
    hard = [s for s in every_signature() if s.runs_on(architecture) and HARD.fullmatch(s.name)]
    found = [compile_for(signature, architecture) for signature in hard]
    assert len(found) == (15 if architecture < 89 else 18) and [kernel for kernel in found if not kernel.fits] == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_configuration_of_each_kernel_spills_nothing(architecture):
    """The first that each kernel names."""
    kernels = {s.fn: s for s in reversed(every_signature()) if s.runs_on(architecture)}
    found = [compile_for(signature, architecture) for signature in kernels.values()]
    assert len(found) >= 10 and [kernel for kernel in found if not kernel.fits] == []
