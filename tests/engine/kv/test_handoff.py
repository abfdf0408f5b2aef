"""From one pool to another: bytes where formats are equal, one honest rounding where they are not."""

import pytest
import torch

from evalsvc.engine.kv.handoff import convert, handoff, same_storage
from evalsvc.engine.kv.pool import KVPool, PoolFull, Scales, Sequence
from evalsvc.engine.precision import parse_plan

LAYERS, HEADS, DIM = 3, 2, 8
NAMES = {
    "fp32": "fp32",
    "bf16": "bf16",
    "token-head": "fp8",
    "calibrated": "fp8:calibrated",
    "per head": "fp8:head:given",
    "uncalibrated": "fp8:uncalibrated",
    "int8 token-head": "int8",
    "int8 calibrated": "int8:calibrated",
    "int8 per head": "int8:head:calibrated",
}
FORMATS = {name: parse_plan(f"kv={text}").decode.kv for name, text in NAMES.items()}


def pool_of(name: str, scale: float = 0.01, tokens: int = 128) -> KVPool:
    """Every layer, head, key and value has a scale of its own, between `scale` and 3 times that."""
    fmt = FORMATS[name]
    scales = None
    if fmt.calibrated or fmt.given:
        k = scale * (1 + torch.arange(LAYERS * HEADS).view(LAYERS, HEADS) / 10)
        k = k[:, 0] if fmt.per == "tensor" else k
        scales = Scales(k, k * 2)
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


def rounding(pool: KVPool, values: torch.Tensor) -> torch.Tensor:
    """Half a step of the format at each value. Shape: (layers, 2, tokens, heads, head_dim)."""
    fmt = pool.fmt
    if fmt.kind in ("fp32", "bf16"):
        return values.abs() * {"fp32": 2.0**-24, "bf16": 2.0**-8}[fmt.kind]
    if fmt.per == "token-head":
        scale = values.abs().amax(-1, keepdim=True) / {"fp8": 448, "int8": 127}[fmt.kind]
    else:
        assert pool.k_scale is not None and pool.v_scale is not None
        both = torch.stack([pool.k_scale, pool.v_scale], dim=1)  # (layers, 2[, heads])
        scale = both.view(LAYERS, 2, 1, -1, 1)
    if fmt.kind == "int8":
        return scale * (0.5 + 2**-10)
    return torch.maximum(values.abs() * 2.0**-4, scale * 2.0**-10)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("origin", FORMATS)
def test_unequal_formats_err_by_the_targets_rounding_alone(origin, to):
    """Scales of 0.04 keep values of at most 5 inside int8's range."""
    source, target = pool_of(origin, scale=0.04), pool_of(to, scale=0.05)
    sequence = written(source, 33)
    before, after = contents(source, sequence), contents(target, handoff(source, sequence, target))
    assert before.abs().max() < 0.04 * 127 and after.isfinite().all()
    assert bool(((after - before).abs() <= rounding(target, before) * (1 + 1e-5)).all())


def test_pages_go_as_bytes_only_when_the_scales_agree_too():
    for name in ("calibrated", "per head", "int8 calibrated", "int8 per head"):
        assert same_storage(pool_of(name, 0.01), pool_of(name, 0.01))
        assert not same_storage(pool_of(name, 0.01), pool_of(name, 0.02))
        other = pool_of(name, 0.01)
        assert other.v_scale is not None
        other.v_scale.view(-1)[-1] *= 2  # one scale of values alone
        assert not same_storage(pool_of(name, 0.01), other)
    for one, other in (("calibrated", "uncalibrated"), ("calibrated", "per head"), ("per head", "int8 per head")):
        assert not same_storage(pool_of(one), pool_of(other))
    assert not same_storage(pool_of("token-head"), pool_of("int8 token-head"))


def test_equal_scales_of_another_origin_mean_the_same_bytes():
    calibrated, given = pool_of("calibrated"), pool_of("calibrated")
    given.fmt = parse_plan("kv=fp8:given").decode.kv
    assert same_storage(calibrated, given)


@pytest.mark.parametrize(("origin", "to"), [("token-head", "int8 token-head"), ("bf16", "int8 per head")])
def test_what_is_not_finite_stays_so_on_the_way(origin, to):
    source, target = pool_of(origin), pool_of(to)
    sequence = written(source, 3)
    slots = torch.tensor(sequence.slots(0, 3))
    bad = torch.ones(3, HEADS, DIM)
    bad[1, 0, 2] = torch.inf
    source.write(1, slots, bad, bad)
    after = contents(target, handoff(source, sequence, target))
    assert after[1, :, 1, 0, 2].isnan().all()
    assert after[:, :, [0, 2]].isfinite().all() and after[0].isfinite().all()


def test_tokens_go_to_the_slots_named_and_to_no_other():
    source, target = pool_of("bf16"), pool_of("int8 token-head")
    sequence = written(source, 20)
    origin = sequence.slots(0, 20)[3:9]
    convert(source, origin, target, [40, 2, 17, 99, 16, 5])
    for layer in range(LAYERS):
        wanted, got = source.read(layer, origin), target.read(layer, [40, 2, 17, 99, 16, 5])
        assert all(torch.allclose(a, b, atol=0.02) for a, b in zip(wanted, got, strict=True))
        everything = target.read(layer, list(range(128)))[0]
        assert int(everything.isnan().all(dim=(1, 2)).sum()) == 128 - 6


def test_the_source_keeps_its_pages_and_a_full_target_keeps_none():
    source, target = pool_of("bf16"), pool_of("token-head", tokens=32)
    sequence = written(source, 33)
    free = source.free_pages
    with pytest.raises(PoolFull, match="raise `kv_tokens`"):
        handoff(source, sequence, target)
    assert source.free_pages == free and target.free_pages == target.n_pages
    target.check()
