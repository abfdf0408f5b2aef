"""Products with packed weights: each Triton kernel equals its twin, each twin the formula in float64.

On a CPU the kernels run in Triton's interpreter. Sums of K products in fp32 err by at most K * 2^-24 of the sum of
their magnitudes, whatever their order; that is the only tolerance here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsvc.errors import CapabilityError
from evalsvc.kernels import linear_fp8 as fp8_file
from evalsvc.kernels.fp8 import dequantize_e4m3, quantize_e4m3
from evalsvc.kernels.launch import add_parts, shape_for, tiles_of
from evalsvc.kernels.linear_fp8 import linear_fp8, linear_fp8_torch, linear_fp8_w8a16, linear_fp8_w8a16_torch
from evalsvc.kernels.linear_int4 import linear_int4, linear_int4_torch
from evalsvc.kernels.linear_int8 import linear_int8, linear_int8_torch
from evalsvc.kernels.linear_nvfp4 import (
    linear_nvfp4,
    linear_nvfp4_torch,
    linear_nvfp4_w4a4,
    linear_nvfp4_w4a4_torch,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def randoms(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Case:
    """A product: its kernel, its twin, what both take after x, and the matrix that these stand for, in float64."""

    kernel: Callable[..., Tensor]
    twin: Callable[..., Tensor]
    held: tuple[Any, ...]
    matrix: Tensor

    def on_device(self) -> tuple[Any, ...]:
        return tuple(h.to(DEVICE) if isinstance(h, Tensor) else h for h in self.held)


def int4(out: int, inputs: int, group: int, symmetric: bool, seed: int = 0) -> Case:
    codes = torch.randint(0, 16, (out, inputs), generator=randoms(seed))
    words = torch.zeros(out, inputs // 8, dtype=torch.int64)
    for i in range(8):
        words |= codes[:, i::8] << (4 * i)
    packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    scale = (torch.rand(out, inputs // group, generator=randoms(seed + 1)) + 0.1).bfloat16()
    least = None if symmetric else torch.randn(out, inputs // group, generator=randoms(seed + 2)).bfloat16()
    wide = scale.double().repeat_interleave(group, 1)
    shift = -8 * wide if least is None else least.double().repeat_interleave(group, 1)
    matrix = (codes * wide + shift).float().bfloat16().double()
    return Case(linear_int4, linear_int4_torch, (packed, scale, least), matrix)


def int4_zeros(out: int, inputs: int, group: int, seed: int = 0) -> Case:
    """Zero points, and scales in fp16 (GPTQ, AWQ)."""
    packed, scale, _ = int4(out, inputs, group, True, seed).held
    scale = scale.half()
    zero = torch.randint(0, 17, scale.shape, generator=randoms(seed + 3), dtype=torch.int16)
    codes = torch.stack([(packed >> (4 * i)) & 0xF for i in range(8)], dim=-1).flatten(1)
    wide, shift = (t.double().repeat_interleave(group, 1) for t in (scale, zero))
    matrix = ((codes - shift) * wide).float().bfloat16().double()
    return Case(linear_int4, linear_int4_torch, (packed, scale, zero), matrix)


def nvfp4(out: int, inputs: int, seed: int = 0) -> Case:
    codes = torch.randint(0, 16, (out, inputs), generator=randoms(seed))
    scale = quantize_e4m3(torch.rand(out, inputs // 16, generator=randoms(seed + 1)) * 400, 1.0)
    divisor = torch.tensor([37.0])
    matrix = E2M1[codes] * dequantize_e4m3(scale).double().repeat_interleave(16, 1) / divisor
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return Case(linear_nvfp4, linear_nvfp4_torch, (packed, scale, divisor), matrix)


def fp8(out: int, inputs: int, per: str, skipped: int = 0, seed: int = 0) -> Case:
    codes = quantize_e4m3(torch.randn(out, inputs, generator=randoms(seed)) * 100, 1.0)
    shape = {"tensor": (1,), "channel": (out, 1), "block": (-(-(out + skipped) // 128), -(-inputs // 128))}[per]
    scale = torch.rand(shape, generator=randoms(seed + 1)) + 0.1
    wide = scale.double()
    if per == "block":
        n, k = (torch.arange(out) + skipped) // 128, torch.arange(inputs) // 128
        wide = wide[n][:, k]
    held = (codes, scale, per, skipped)
    return Case(linear_fp8, linear_fp8_torch, held, dequantize_e4m3(codes).double() * wide)


def w8a16(out: int, inputs: int, per: str) -> Case:
    wide = fp8(out, inputs, per)
    matrix = wide.matrix.float().bfloat16().double()
    return Case(linear_fp8_w8a16, linear_fp8_w8a16_torch, wide.held[:3], matrix)


def int8(out: int, inputs: int, seed: int = 0) -> Case:
    codes = torch.randint(-128, 128, (out, inputs), generator=randoms(seed)).to(torch.int8)
    scale = torch.rand(out, 1, generator=randoms(seed + 1)) + 0.1
    return Case(linear_int8, linear_int8_torch, (codes, scale), codes.double() * scale.double())


def activations(rows: int, inputs: int, seed: int = 9) -> Tensor:
    return torch.randn(rows, inputs, generator=randoms(seed)).bfloat16()


def close(mine: Tensor, theirs: Tensor, x: Tensor, matrix: Tensor, native: bool = False) -> bool:
    """Whether two results differ by rounding alone; fp8 hardware holds about 13 bits of a sum of 128 products."""
    magnitudes = x.double().abs().cpu() @ matrix.abs().T
    allowed = magnitudes * (2 * x.shape[1] * 2.0**-24 + (2.0**-12 if native else 0))
    return bool(((mine.double().cpu() - theirs.double().cpu()).abs() <= allowed).all())


CASES = {
    "int4 g32": (int4(70, 1184, 32, True), (1, 17)),
    "int4 g64 asym": (int4(64, 576, 64, False), (3, 16, 64)),
    "int4 g128 asym, parts": (int4(33, 2304, 128, False), (1, 15, 17)),
    "int4 g40": (int4(8, 40, 40, True), (1,)),
    "int4 g32 zeros": (int4_zeros(40, 224, 32), (3, 16)),
    "nvfp4": (nvfp4(70, 1168), (1, 15, 64)),
    "nvfp4 small": (nvfp4(130, 48), (3, 17)),
    "fp8 tensor": (fp8(70, 576, "tensor"), (1, 17)),
    "fp8 channel": (fp8(65, 1160, "channel"), (3, 16, 64)),
    "fp8 block": (fp8(200, 576, "block"), (1, 17)),
    "fp8 block, first rows elsewhere": (fp8(100, 330, "block", 40), (15, 64)),
    "fp8 w8a16": (w8a16(70, 1100, "channel"), (1, 64)),
    "fp8 w8a16 tensor": (w8a16(20, 130, "tensor"), (3,)),
    "int8": (int8(70, 1100), (1, 16, 64)),
}
EACH = [pytest.param(case, rows, id=f"{name}-{rows}") for name, (case, some) in CASES.items() for rows in some]


def rounded(case: Case, x: Tensor) -> Tensor:
    """Activations as the case's product reads them, float64."""
    if case.kernel is linear_fp8:
        groups = x.double().split(128, 1) if case.held[2] == "block" else [x.double()]
        return torch.cat([_one_scale(g, 448.0, lambda r: dequantize_e4m3(quantize_e4m3(r, 1.0))) for g in groups], 1)
    if case.kernel is linear_int8:
        return _one_scale(x.double(), 127.0, torch.round)
    return x.double()


def _one_scale(x: Tensor, largest: float, nearest: Callable[[Tensor], Tensor]) -> Tensor:
    scale = (x.abs().amax(1, keepdim=True).float() / largest).double()
    return nearest(x.float() / scale.float()).double() * scale


@pytest.mark.parametrize(("case", "rows"), EACH)
def test_each_kernel_equals_its_twin_and_the_twin_its_formula(case, rows):
    x = activations(rows, case.matrix.shape[1])
    exact = rounded(case, x)
    twin = case.twin(x, *case.held)
    assert twin.dtype == torch.float32 and twin.shape == (rows, len(case.matrix))
    assert close(twin, exact @ case.matrix.T, exact, case.matrix)
    got = case.kernel(x.to(DEVICE), *case.on_device())
    assert got.dtype == torch.float32
    assert close(got, twin, exact, case.matrix, native=DEVICE == "cuda" and case.kernel is linear_fp8)


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_hang_on_its_neighbours(name):
    """Few rows and many have other tiles; the order of sums is the matrix's alone."""
    case, _ = CASES[name]
    x = activations(17, case.matrix.shape[1]).to(DEVICE)
    held = case.on_device()
    many = case.kernel(x, *held)
    for some in (x[:1], x[:5]):
        assert close(case.kernel(some, *held), many[: len(some)], some.cpu(), case.matrix)
    if DEVICE == "cpu":  # numpy's product, too, sums each number of a tile in an order of its own
        return
    assert torch.equal(case.kernel(x[:5], *held), many[:5])


@pytest.mark.parametrize("name", CASES)
def test_twice_the_activations_are_twice_the_result_and_half_the_scale_undoes_it(name):
    """Exact: powers of two move no bit of a mantissa. A scale that one side forgets is seen."""
    case, _ = CASES[name]
    x = activations(3, case.matrix.shape[1]).to(DEVICE)
    codes, scale, *rest = case.on_device()
    once, twice = case.kernel(x, codes, scale, *rest), case.kernel(2 * x, codes, scale, *rest)
    assert torch.equal(twice, 2 * once) and not torch.equal(twice, once)
    if case.kernel is linear_int4 and rest[0] is not None and rest[0].is_floating_point():
        rest = [rest[0] / 2]
    if case.kernel is linear_nvfp4:  # its block scales are e4m3: the global is the scale that can be halved freely
        assert torch.equal(case.kernel(2 * x, codes, scale, 2 * rest[0]), once)
    else:
        assert torch.equal(case.kernel(2 * x, codes, scale / 2, *rest), once)


@pytest.mark.parametrize("counts", [(5, 0, 20, 1), (0, 0, 0, 33), (16, 16, 17, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("kind", ["int4", "nvfp4", "fp8", "int8"])
def test_experts_multiply_their_own_rows(kind, counts):
    made = {
        "int4": lambda e: int4(70, 96, 32, False, seed=10 * e),
        "nvfp4": lambda e: nvfp4(70, 96, seed=10 * e),
        "fp8": lambda e: fp8(70, 200, "block", seed=10 * e),
        "int8": lambda e: int8(70, 96, seed=10 * e),
    }
    cases = [made[kind](expert) for expert in range(4)]
    parts = [
        torch.stack(part) if isinstance(part[0], Tensor) else part[0]
        for part in zip(*(c.held for c in cases), strict=True)
    ]
    x = activations(sum(counts), cases[0].matrix.shape[1])
    number = torch.tensor(counts, dtype=torch.int32)
    one = cases[0]
    twin = one.twin(x, *parts, counts=number)
    on_device = [part.to(DEVICE) if isinstance(part, Tensor) else part for part in parts]
    got = one.kernel(x.to(DEVICE), *on_device, counts=number.to(DEVICE))
    assert got.shape == twin.shape == (len(x), 70)
    start = 0
    for case, count in zip(cases, counts, strict=True):
        own = slice(start, start + count)
        exact = rounded(case, x[own]) if count else x[own].double()
        assert close(twin[own], exact @ case.matrix.T, exact, case.matrix)
        assert close(got[own], twin[own], exact, case.matrix, native=DEVICE == "cuda")
        start += count


def test_both_sides_in_nvfp4_are_the_twins():
    case = nvfp4(70, 96)
    x = activations(5, 96)
    twin = linear_nvfp4_w4a4_torch(x, *case.held)
    got = linear_nvfp4_w4a4(x.to(DEVICE), *case.on_device())
    assert close(got, twin, x, case.matrix)
    assert not close(got, linear_nvfp4_torch(x, *case.held), x, case.matrix)  # rounding is not for nothing


@pytest.mark.parametrize("per", ["channel", "block"])
def test_codes_multiplied_as_fp8_are_the_twins(per, monkeypatch):
    """The form for hardware with fp8; the interpreter has it, too."""
    monkeypatch.setattr(fp8_file, "native", lambda device: True)
    case = fp8(70, 576, per)
    x = activations(5, 576)
    assert close(linear_fp8(x.to(DEVICE), *case.on_device()), linear_fp8_torch(x, *case.held), x, case.matrix, True)


def test_tiles_cover_every_row_once_and_only_its_own_experts():
    counts = torch.tensor([5, 0, 40, 16, 1], dtype=torch.int32)
    tiles = tiles_of(counts, 62, 16)
    seen = []
    for expert, first, end in zip(*(t.tolist() for t in (tiles.expert, tiles.first, tiles.end)), strict=True):
        rows = range(first, min(first + 16, end))
        start = int(counts[:expert].sum())
        assert all(start <= row < start + int(counts[expert]) for row in rows)
        seen += rows
    assert sorted(seen) == list(range(62))


def test_parts_hang_on_the_matrix_alone_and_are_added_in_order():
    assert {shape_for(rows, 4096, 4096).parts for rows in (1, 16, 17, 512)} == {4}
    assert shape_for(1, 128256, 4096).parts == 1 and shape_for(1, 64, 256).parts == 1
    parts = torch.tensor([1.0, 2.0**24, -(2.0**24)])[:, None, None].expand(3, 2, 5).contiguous().to(DEVICE)
    assert torch.equal(add_parts(parts).cpu(), torch.zeros(2, 5))  # 1 is lost in 2^24; in another order it is not


def test_what_a_kernel_does_not_take_is_refused_by_name():
    case = int4(64, 576, 64, False)
    x = activations(2, 576)
    packed, scale, least = case.held
    for form in (linear_int4, linear_int4_torch):
        with pytest.raises(CapabilityError, match=r"linear_int4: x is torch\.float16; it takes bf16"):
            form(x.half(), packed, scale, least)
        with pytest.raises(CapabilityError, match=r"linear_int4: packed has shape \(64, 72\); it takes \('out', 64\)"):
            form(x[:, :512].contiguous(), packed, scale, least)
        with pytest.raises(CapabilityError, match="linear_int4: x is not contiguous"):
            form(x.repeat(1, 2)[:, :576], packed, scale, least)
        with pytest.raises(CapabilityError, match="7 groups do not cut 576 inputs into multiples of 8"):
            form(x, packed, scale[:, :7].contiguous(), least[:, :7].contiguous())
        with pytest.raises(CapabilityError, match=r"counts add up to 3, x has 2 rows"):
            form(x, packed[None], scale[None], least[None], counts=torch.tensor([3], dtype=torch.int32))
        with pytest.raises(CapabilityError, match=r"it takes int32 of shape \(1,\)"):
            form(x, packed[None], scale[None], least[None], counts=torch.tensor([2]))
    block = fp8(64, 576, "block")
    with pytest.raises(CapabilityError, match="scales per block are not among those that this product takes"):
        linear_fp8_w8a16(x, *block.held[:3])
    with pytest.raises(CapabilityError, match="128 rows skipped; only blocks skip rows, and fewer than 128"):
        linear_fp8(x, *block.held[:3], 128)
    with pytest.raises(CapabilityError, match="linear_nvfp4: x has 24 inputs; blocks of 16 do not fill them"):
        linear_nvfp4(activations(2, 24), torch.zeros(8, 12, dtype=torch.uint8), quantize_e4m3(torch.ones(8, 1), 1.0), x)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["fp8 channel", "fp8 block", "int8", "int4 g32", "nvfp4 small"])
def test_what_is_not_finite_is_seen_in_its_own_row_alone(name, value):
    case, _ = CASES[name]
    x = activations(4, case.matrix.shape[1])
    x[2, 5] = value
    finite = case.kernel(x.to(DEVICE), *case.on_device()).isfinite().cpu()
    assert not bool(finite[2].any()) and bool(finite[[0, 1, 3]].all())
