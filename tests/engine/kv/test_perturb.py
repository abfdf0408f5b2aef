"""On the page layer: every planted fault that a mode claims is found where it is, and nothing else is."""

import pytest

from evalsvc.engine.kv.perturb import BY_CONTENT, BY_TAGS, KINDS
from tests.benchmarks.integrity_pages import Counts, World

FORMATS = ("bf16", "fp8", "fp8:tensor:uncalibrated", "int8", "fp32")


@pytest.mark.parametrize("mode", ["tags", "content", "content:first"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_fault_that_is_claimed_is_caught_and_none_is_seen_where_none_is(fmt, mode):
    world = World(fmt, mode, seed=hash_of(fmt, mode))
    counts = {kind: world.campaign(kind, 12) for kind in KINDS if world.has(kind)}
    for kind in BY_TAGS:
        assert counts[kind] == Counts(12, 12, 0), kind
    for kind in counts.keys() & set(BY_CONTENT):
        caught = {"tags": 0, "content": 12}.get(mode, counts[kind].caught)
        assert counts[kind] == Counts(12, caught, 0), kind
    assert world.checked > 3_000


def hash_of(fmt: str, mode: str) -> int:
    return sum(map(ord, fmt + mode))


def test_what_the_first_bytes_do_not_show_is_missed_by_content_first():
    world = World("bf16", "content:first", seed=5, head_dim=64)
    counts = world.campaign("flipped_sign", 80)
    assert 0 < counts.caught < 30 and counts.false_alarms == 0  # 8 of 64 numbers are looked at
    assert world.campaign("forged", 20) == Counts(20, 20, 0)


def test_a_latent_pool_is_guarded_alike():
    for mode in ("tags", "content"):
        world = World("latent", mode, seed=3)
        for kind in KINDS if mode == "content" else BY_TAGS:
            assert world.campaign(kind, 12) == Counts(12, 12, 0), kind
