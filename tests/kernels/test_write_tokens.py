"""The kernel that stores keys, values and stamps (on a CPU in Triton's interpreter) against torch: to the bit."""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels.int8 import INT8_NAN
from evalsvc.kernels.kv_write import write_tokens, write_tokens_torch

from .paging import DEVICE, there

pytest.importorskip("triton")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
SLOTS, HEADS = 48, 3


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def pages(kind: str, dim: int) -> torch.Tensor:
    return torch.full((SLOTS, HEADS, dim), INT8_NAN if kind == "int8" else torch.nan).to(DTYPES[kind])


def scales(per: str) -> torch.Tensor | None:
    if not per:
        return None
    shape = {"tensor": (), "head": (HEADS,), "token-head": (SLOTS, HEADS)}[per]
    return torch.full(shape, torch.nan) if per == "token-head" else 0.01 + torch.rand(shape) * 0 + 0.003


def both(kind: str, per: str, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> list[list[torch.Tensor]]:
    """What each form leaves behind: pages, scales and stamps, as bytes."""
    found = []
    for write in (there(write_tokens), write_tokens_torch):
        held = pages(kind, k.shape[2]), pages(kind, v.shape[2]), scales(per), scales(per)
        stamps = torch.full((SLOTS, 2), -9, dtype=torch.int32)
        new = torch.stack([torch.arange(len(k)) + 100, torch.arange(len(k))], 1).int()
        write(*held, slots, k, v, stamps, new)
        found.append([*(t for t in held if t is not None), stamps])
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, one NaN being as good as another."""
    if a.dtype == torch.float8_e4m3fn:
        a, b = a.float(), b.float()
    return bool(((a == b) | ((a != a) & (b != b))).all())


CASES = [
    ("fp32", ""),
    ("bf16", ""),
    *((kind, per) for kind in ("fp8", "int8") for per in ("tensor", "head", "token-head")),
]


@pytest.mark.parametrize("dims", [(64, 64), (80, 80), (192, 128)])
@pytest.mark.parametrize(("kind", "per"), CASES)
def test_what_is_stored_is_what_torch_stores(kind, per, dims):
    """Over many magnitudes, beside ties of every code, in slots out of order and heads apart in memory."""
    g = torch.Generator().manual_seed(1)
    slots = torch.tensor([5, 0, 47, 31, 16])
    ties = torch.tensor([0.0, -0.0, 2**-10, 3 * 2**-10, 17.0, 18.0, 19.0, 0.5, 1.5, 2.5, 464.0, 448.0, 1e9]) * 0.013
    rows = []
    for dim in dims:
        x = torch.randn(HEADS, 5, dim, generator=g) * torch.exp2(torch.randint(-12, 6, (HEADS, 5, dim), generator=g))
        x[0, 0, : len(ties)] = ties
        x[1, 1] = 0
        rows.append((x if kind == "fp32" or per == "head" else x.bfloat16()).transpose(0, 1))
    kernel, torchs = both(kind, per, *rows, slots)
    assert all(same(a, b) for a, b in zip(kernel, torchs, strict=True))
    assert kernel[-1][47].tolist() == [102, 2] and kernel[-1][1].tolist() == [-9, -9]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("kind", "per"), CASES)
def test_what_is_not_finite_is_stored_as_torch_stores_it(kind, per, value):
    x = torch.ones(2, HEADS, 16)
    x[0, 1, 4] = value
    kernel, torchs = both(kind, per, x, x, torch.tensor([3, 7]))
    assert all(same(a, b) for a, b in zip(kernel, torchs, strict=True))


REFUSED = {
    "fp8 pages without scales": "torch.float8_e4m3fn pages need scales of keys and of values",
    "another width": r"k has shape \(2, 3, 8\), not \(2, 3, 16\)",
    "fp16": "k is torch.float16 and v torch.float32; served",
    "numbers apart": "the numbers of a head of v do not lie side by side",
    "slots of int32": "slots are torch.int32, not torch.int64",
    "stamps alone": "stamps and what is new of them belong together",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused_by_name(what):
    x, fixed = torch.ones(2, HEADS, 16), torch.tensor(1.0)
    given: dict = {"k_pages": pages("fp8", 16), "v_pages": pages("fp8", 16), "k_scale": fixed, "v_scale": fixed}
    given |= {"slots": torch.tensor([1, 2]), "k": x, "v": x}
    given |= {
        "fp8 pages without scales": {"k_scale": None},
        "another width": {"k": x[:, :, :8].contiguous()},
        "fp16": {"k": x.half()},
        "numbers apart": {"v": x.transpose(1, 2).contiguous().transpose(1, 2)},
        "slots of int32": {"slots": torch.tensor([1, 2], dtype=torch.int32)},
        "stamps alone": {"stamps": torch.zeros(SLOTS, 2, dtype=torch.int32)},
    }[what]
    for write in (write_tokens, write_tokens_torch):
        with pytest.raises(CapabilityError, match=f"kernel kv_write: {REFUSED[what]}"):
            write(**given)
