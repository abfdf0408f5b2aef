"""From one pool to another: bytes where formats are equal, one honest rounding where they are not."""

import pytest
import torch

from evalsvc.engine.kv.handoff import handoff, same_storage
from evalsvc.engine.kv.pool import KVPool, PoolFull, Scales, Sequence
from evalsvc.engine.precision import KVFormat

LAYERS, HEADS, DIM = 3, 2, 8
FORMATS = {
    "fp32": KVFormat("fp32"),
    "bf16": KVFormat("bf16"),
    "token-head": KVFormat("fp8", "token-head"),
    "calibrated": KVFormat("fp8", "tensor:calibrated"),
    "uncalibrated": KVFormat("fp8", "tensor:uncalibrated"),
}


def pool_of(name: str, scale: float = 0.01, tokens: int = 128) -> KVPool:
    fmt = FORMATS[name]
    scales = Scales(torch.full((LAYERS,), scale), torch.full((LAYERS,), scale * 2)) if fmt.calibrated else None
    return KVPool(fmt, LAYERS, HEADS, DIM, tokens, scales, poison=True)


def written(pool: KVPool, tokens: int) -> Sequence:
    pool.extend(Sequence(), 20)  # so that page numbers differ between the pools
    sequence, g = Sequence(), torch.Generator().manual_seed(0)
    slots = torch.tensor(pool.extend(sequence, tokens))
    for layer in range(LAYERS):
        pool.write(layer, slots, *torch.randn(2, tokens, HEADS, DIM, generator=g))
    return sequence


def contents(pool: KVPool, sequence: Sequence):
    reads = [pool.read(layer, sequence.slots(0, sequence.length)) for layer in range(LAYERS)]
    return torch.stack([torch.stack(read) for read in reads])


@pytest.mark.parametrize("tokens", [1, 16, 17, 33])
@pytest.mark.parametrize("name", FORMATS)
def test_equal_formats_copy_every_byte(name, tokens):
    source, target = pool_of(name), pool_of(name)
    sequence = written(source, tokens)
    copy = handoff(source, sequence, target)
    for mine, theirs in zip(source.stored(), target.stored(), strict=True):
        a, b = mine[:, sequence.slots(0, tokens)], theirs[:, copy.slots(0, tokens)]
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    assert len(copy.pages) == -(-tokens // 16)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("origin", FORMATS)
def test_unequal_formats_err_by_the_targets_rounding_alone(origin, to):
    source, target = pool_of(origin), pool_of(to, scale=0.02)
    sequence = written(source, 33)
    before, after = contents(source, sequence), contents(target, handoff(source, sequence, target))
    step = {"fp32": 2.0**-24, "bf16": 2.0**-8}.get(to, 2.0**-4)
    # The smallest steps of e4m3: 2^-10 of the scale (at most 0.04 here).
    floor = 0.04 * 2**-10 if to in ("token-head", "calibrated") else 2.0**-10 * (to == "uncalibrated")
    assert bool(((after - before).abs() <= before.abs() * step * (1 + 1e-5) + floor).all())


def test_pages_go_as_bytes_only_when_the_scales_agree_too():
    assert same_storage(pool_of("calibrated", 0.01), pool_of("calibrated", 0.01))
    assert not same_storage(pool_of("calibrated", 0.01), pool_of("calibrated", 0.02))
    assert not same_storage(pool_of("calibrated"), pool_of("uncalibrated"))


def test_the_source_keeps_its_pages_and_a_full_target_keeps_none():
    source, target = pool_of("bf16"), pool_of("token-head", tokens=32)
    sequence = written(source, 33)
    free = source.free_pages
    with pytest.raises(PoolFull, match="raise `kv_tokens`"):
        handoff(source, sequence, target)
    assert source.free_pages == free and target.free_pages == target.n_pages
    target.check()
