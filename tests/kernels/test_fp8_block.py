"""fp8 with scales per block against its formula in float64, inputs that do not fill a block among them."""

import pytest
import torch

from evalsvc.kernels.fp8 import dequantize_e4m3, quantize_e4m3
from evalsvc.kernels.fp8_block import block_product, round_groups

SIZES = [(96, 64), (96, 128), (200, 256), (130, 576), (64, 1)]


def codes(rows: int, columns: int, seed: int) -> torch.Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 30
    return dequantize_e4m3(quantize_e4m3(x, 1.0)).bfloat16()


def scales(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) + 0.1


def case(out: int, inputs: int, tokens: int = 5) -> tuple[torch.Tensor, ...]:
    across, down = -(-inputs // 128), -(-out // 128)
    return codes(tokens, inputs, 0), scales(tokens, across, 1), codes(out, inputs, 2), scales(down, across, 3)


@pytest.mark.parametrize(("out", "inputs"), SIZES)
def test_the_product_is_the_formulas(out, inputs):
    """fp32 sums of at most 128 terms, each group's rounded to bf16 once."""
    x, t, w, s = case(out, inputs)
    exact_x = x.double() * torch.stack([t[:, k // 128] for k in range(inputs)], 1).double()
    exact_w = w.double() * torch.tensor([[s[n // 128, k // 128] for k in range(inputs)] for n in range(out)]).double()
    got = block_product(x, t, w.T.contiguous(), s)
    allowed = exact_x.abs() @ exact_w.abs().T * (2.0**-9 + 256 * 2.0**-24)
    assert bool(((got - exact_x @ exact_w.T).abs() <= allowed).all())


@pytest.mark.parametrize(("side", "block"), [("x", 0), ("x", -1), ("w", 0), ("w", -1)])
def test_every_scale_of_both_sides_reaches_the_product(side, block):
    x, t, w, s = case(130, 576)
    once = block_product(x, t, w.T.contiguous(), s)
    (t if side == "x" else s)[:, block] *= 2
    twice = block_product(x, t, w.T.contiguous(), s)
    assert bool((twice != once).float().mean() > 0.9)
    if side == "w":
        assert torch.equal(twice, block_product(x, t, w.T.contiguous(), s))
        s[-1, block] *= 2  # only the outputs of the last block of rows
        last = block_product(x, t, w.T.contiguous(), s)
        assert torch.equal(last[:, :128], twice[:, :128]) and not torch.equal(last[:, 128:], twice[:, 128:])


def test_a_long_sum_is_held_in_fp32():
    """4096 inputs of one sign: a sum held in bf16 would stop growing at 2^8 steps of its last bit."""
    x, w = torch.full((2, 4096), 1.125).bfloat16(), torch.full((64, 4096), 1.125).bfloat16()
    got = block_product(x, torch.full((2, 32), 1.01), w.T.contiguous(), torch.ones(1, 32))
    assert torch.allclose(got, torch.full((2, 64), 4096 * 1.125**2 * 1.01), rtol=2**-20)


@pytest.mark.parametrize("inputs", [64, 128, 576])
def test_each_group_of_a_token_has_its_own_scale_and_the_last_one_what_is_left(inputs):
    x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[1] *= 1000
    values, scale = round_groups(x)
    for token in range(3):
        for group, part in enumerate(x[token].float().split(128)):
            assert scale[token, group] == part.abs().max() / 448
            expected = dequantize_e4m3(quantize_e4m3(part, scale[token, group]))
            assert torch.equal(values[token].float().split(128)[group], expected)
    assert scale.shape == (3, -(-inputs // 128))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_in_its_own_token_alone(value):
    x, _, w, s = case(96, 256)
    x[1, 200] = value
    rounded, scale = round_groups(x)
    y = block_product(rounded, scale, w.T.contiguous(), s)
    assert not bool(y[1].isfinite().any()) and bool(y[[0, 2, 3, 4]].isfinite().all())


@pytest.mark.parametrize(("out", "inputs"), SIZES)
def test_each_row_has_the_bits_that_it_has_in_any_company_of_two_and_more(out, inputs):
    x, t, w, s = case(out, inputs, 40)
    whole = block_product(x, t, w.T.contiguous(), s)
    for rows in (2, 3, 16, 33):
        assert torch.equal(block_product(x[:rows], t[:rows], w.T.contiguous(), s), whole[:rows]), rows
