"""The int8 product is the integer product, at its extremes too."""

import pytest
import torch

from evalsvc.kernels import int8_product as module
from evalsvc.kernels.int8_product import int8_product


def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.long() @ w.long().T


@pytest.mark.parametrize(("rows", "inputs", "out"), [(1, 1, 1), (2, 64, 96), (3, 577, 33), (40, 1536, 64)])
@pytest.mark.parametrize("library", [True, False])
def test_it_equals_the_product_in_64_bits(rows, inputs, out, library, monkeypatch):
    monkeypatch.setattr(module, "_library_is_exact", lambda: library)
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-128, 128, (n, inputs), generator=g, dtype=torch.int8) for n in (rows, out))
    got = int8_product(x, w)
    assert got.dtype == torch.int32 and torch.equal(got.long(), exact(x, w))


@pytest.mark.parametrize("library", [True, False])
def test_sums_beyond_16_bits_and_beyond_fp32s_24_do_not_saturate(library, monkeypatch):
    if not library:
        monkeypatch.setattr(module, "_library_is_exact", lambda: False)
    x = torch.tensor([[-128] * 4097, [127] * 4097], dtype=torch.int8)
    assert torch.equal(int8_product(x, x).long(), exact(x, x))
    assert int(exact(x, x).max()) > 2**26


def test_sums_that_32_bits_may_not_hold_are_refused():
    with pytest.raises(ValueError, match="may not fit int32"):
        int8_product(torch.zeros(1, 2**17, dtype=torch.int8), torch.zeros(1, 2**17, dtype=torch.int8))
