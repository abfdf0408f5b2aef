"""The keyed hash of a token's slot."""

import pytest
import torch

from evalsvc.kernels.content import HEADER, content_hash, first_bytes

KEYS = torch.randint(-(2**63), 2**63 - 1, (64,), generator=torch.Generator().manual_seed(3), dtype=torch.long)
STAMPS = torch.tensor([[5, 0], [5, 1], [2**31 - 1, 70_000]], dtype=torch.int32)


def parts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (3, 2, 5), generator=generator, dtype=torch.uint8)
    return [codes, torch.randn(3, 2, 5, generator=generator).bfloat16(), torch.rand(3, 2, generator=generator)]


def by_hand(held, shared, stamp, layer) -> int:
    """The formula in Python's whole numbers."""
    keys = [int(key) for key in KEYS]
    total = keys[0] + keys[1] * layer + keys[2] * int(stamp[0]) + keys[3] * int(stamp[1])
    at = HEADER
    for part in [*shared, *held]:
        raw = bytes(part.contiguous().view(-1).view(torch.uint8).tolist())
        for start in range(0, len(raw), 4):
            total += keys[at] * int.from_bytes(raw[start : start + 4].ljust(4, b"\0"), "little", signed=True)
            at += 1
    high = (total % 2**64) >> 32
    return high - 2**32 if high >= 2**31 else high


def test_the_hash_is_that_of_its_formula():
    shared = [torch.tensor(0.25), torch.tensor([1.0, 3.0])]
    found = content_hash(parts(), shared, STAMPS, 7, KEYS)
    assert found.dtype == torch.int32
    for i in range(3):
        assert int(found[i]) == by_hand([part[i] for part in parts()], shared, STAMPS[i], 7)


def test_hashes_do_not_hang_on_how_many_tokens_are_hashed_together():
    many = [part.repeat(400, *[1] * (part.ndim - 1)) for part in parts()]
    whole = content_hash(many, [], STAMPS.repeat(400, 1), 0, KEYS)
    assert torch.equal(whole.view(400, 3), content_hash(parts(), [], STAMPS, 0, KEYS).expand(400, 3))


@pytest.mark.parametrize("part", range(3))
def test_every_bit_counts(part):
    before = content_hash(parts(), [], STAMPS, 0, KEYS)
    raw = parts()[part][1].contiguous().view(-1).view(torch.uint8)
    for bit in range(8 * len(raw)):
        held = parts()
        held[part][1].view(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        after = content_hash(held, [], STAMPS, 0, KEYS)
        assert (after != before).tolist() == [False, True, False]


def test_flips_that_cancel_in_a_plain_sum_do_not_cancel():
    """The signs of two words: 2^31 (k_1 + k_2) is 0 mod 2^32 for odd keys."""
    words = torch.tensor([[1, 2, 3, 4]], dtype=torch.int32)
    signs = words.clone()
    signs[0, 1:3] ^= -(2**31)
    assert content_hash([words], [], STAMPS[:1], 0, KEYS) != content_hash([signs], [], STAMPS[:1], 0, KEYS)


def test_tag_position_layer_and_shared_scales_count():
    def hashed(tag=5, position=1, layer=2, scale=1.5):
        stamps = torch.tensor([[tag, position]], dtype=torch.int32)
        return int(content_hash([p[:1] for p in parts()], [torch.tensor(scale)], stamps, layer, KEYS))

    assert len({hashed(), hashed(tag=6), hashed(position=2), hashed(layer=3), hashed(scale=1.25)}) == 5


def test_the_first_bytes_are_sixteen_of_each_row():
    assert first_bytes(torch.zeros(2, 3, 64, dtype=torch.bfloat16)).shape == (2, 3, 8)
    assert first_bytes(torch.zeros(2, 3, 64, dtype=torch.uint8)).shape == (2, 3, 16)
    assert first_bytes(torch.zeros(2, 3, 4)).shape == (2, 3, 4)
