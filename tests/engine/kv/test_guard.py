"""Stamps and hashes of pools: what is written, copied and handed over can be told from what was not."""

import pytest
import torch

from evalsvc.engine.kv.guard import Check, stamps_in
from evalsvc.engine.kv.handoff import HandoffFault, handoff
from evalsvc.engine.kv.pages import PAGE, Sequence
from evalsvc.engine.kv.pool import KVPool, Scales
from evalsvc.engine.precision import KVFormat
from evalsvc.errors import EngineError

LAYERS, HEADS, DIM = 3, 2, 32
FORMATS = {
    "fp32": KVFormat("fp32"),
    "bf16": KVFormat("bf16"),
    "fp8": KVFormat("fp8", "token-head"),
    "fixed": KVFormat("fp8", "head:calibrated"),
    "int8": KVFormat("int8", "token-head"),
}


def pool_of(name: str, mode: str = "tags", tokens: int = 160) -> KVPool:
    scales = Scales(torch.full((LAYERS, HEADS), 0.5), torch.full((LAYERS, HEADS), 0.25))
    given = scales if FORMATS[name].calibrated else None
    return KVPool(FORMATS[name], LAYERS, HEADS, DIM, tokens, given, poison=True, integrity=mode)


def write(pool: KVPool, sequence: Sequence, tokens: int, seed: int = 0) -> None:
    start = sequence.length
    slots = torch.tensor(pool.extend(sequence, tokens))
    stamps = stamps_in(sequence, start, sequence.length)
    for layer in range(LAYERS):
        key, value = torch.randn(2, tokens, HEADS, DIM, generator=torch.Generator().manual_seed(seed + layer))
        pool.write(layer, slots, key, value, stamps)


def unsound(pool: KVPool, sequence: Sequence) -> set[tuple[int, int]]:
    """(layer, position) of what is not sound for a sequence."""
    assert pool.guard is not None
    slots, wanted = torch.tensor(sequence.slots(0, sequence.length)), stamps_in(sequence, 0, sequence.length)
    return {
        (layer, position)
        for layer in range(LAYERS)
        for position in (~pool.guard.sound(layer, slots, wanted)).nonzero().view(-1).tolist()
    }


@pytest.mark.parametrize("mode", ["tags", "content", "content:first"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_forked_and_handed_over_is_sound(name, mode):
    pool, sequence = pool_of(name, mode), Sequence()
    write(pool, sequence, 20)
    write(pool, sequence, 5, seed=9)
    child = pool.fork(sequence)
    write(pool, child, 3, seed=17)
    assert unsound(pool, sequence) == unsound(pool, child) == set()
    for other in FORMATS:
        target = pool_of(other, mode)
        assert unsound(target, handoff(pool, child, target)) == set()


def test_a_slot_that_nobody_wrote_is_not_sound():
    pool, sequence = pool_of("bf16"), Sequence()
    pool.extend(sequence, 17)
    assert unsound(pool, sequence) == {(layer, position) for layer in range(LAYERS) for position in range(17)}


def test_a_copy_of_what_is_not_sound_is_not_sound_and_its_page_goes_into_quarantine():
    pool, sequence = pool_of("bf16"), Sequence()
    write(pool, sequence, 20)
    slot = sequence.slots(18, 19)[0]
    pool.guard.stamps[1, slot, 0] -= 1
    child = pool.fork(sequence)
    assert unsound(pool, child) == {(1, 18)} and pool.quarantined == {sequence.pages[1]}
    write(pool, child, 2)
    assert unsound(pool, child) == {(1, 18)}


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_what_is_not_sound_is_not_handed_over(name):
    pool, sequence, target = pool_of("bf16"), Sequence(), pool_of(name)
    write(pool, sequence, 20)
    pool.guard.stamps[2, sequence.slots(7, 8)[0], 1] = 8
    with pytest.raises(HandoffFault, match=r"layer 2 is not sound$") as caught:
        handoff(pool, sequence, target)
    assert not caught.value.arrived and caught.value.bad.expected == (sequence.tags[0], 7)


@pytest.mark.parametrize("mode", ["tags", "content", "content:first"])
@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_a_byte_that_changes_on_the_way_is_seen_at_arrival(name, mode, monkeypatch):
    pool, sequence, target = pool_of("bf16", mode), Sequence(), pool_of(name, mode)
    write(pool, sequence, 20)
    store = target.store

    def damaged(layer, slots, rows, stamps):
        store(layer, slots, rows, stamps)
        if layer == 1:
            target.stored()[1][layer, slots[4]].view(torch.uint8)[-1, -1] ^= 1

    monkeypatch.setattr(target, "store", damaged)
    with pytest.raises(HandoffFault, match="layer 1 is not sound at arrival") as caught:
        handoff(pool, sequence, target)
    assert caught.value.arrived and caught.value.bad.content


def test_a_layer_whose_slots_are_not_compared_is_an_error():
    pool, sequence = pool_of("bf16"), Sequence()
    write(pool, sequence, 20)
    check = Check(pool.guard, torch.tensor(sequence.slots(0, 20)), stamps_in(sequence, 0, 20))
    for layer in (0, 2):
        check.layer(layer)
    with pytest.raises(EngineError, match="layer 1 read 20 slots and compared 0"):
        check.found()
    check.layer(1)
    assert check.found() == [] and check.sound.tolist() == [20, 20, 20]


def test_what_is_found_comes_by_layer_and_position():
    pool, sequence = pool_of("bf16"), Sequence()
    write(pool, sequence, 20)
    for layer, position in ((2, 3), (1, 17), (1, 4)):
        pool.guard.stamps[layer, sequence.slots(position, position + 1)[0]] = 0
    check = Check(pool.guard, torch.tensor(sequence.slots(0, 20)), stamps_in(sequence, 0, 20))
    for layer in range(LAYERS):
        check.layer(layer)
    found = [(bad.layer, bad.expected[1], bad.found, bad.slot // PAGE) for _, bad in check.found()]
    pages = sequence.pages
    assert found == [(1, 4, (0, 0), pages[0]), (1, 17, (0, 0), pages[1]), (2, 3, (0, 0), pages[0])]


def test_a_new_turn_of_tags_leaves_out_those_that_stand_in_slots():
    pool, sequence = pool_of("bf16"), Sequence()
    write(pool, sequence, 20)
    old = set(sequence.tags)
    pool.free(sequence)
    pool.extend(sequence, 20)
    assert old <= pool.held_tags() and set(sequence.tags) <= pool.held_tags()
