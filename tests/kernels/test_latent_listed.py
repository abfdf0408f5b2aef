"""Absorbed latent attention over lists of positions: Triton's against its twin and float64."""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import latent_decode as module
from evalsvc.kernels import paged_decode as decoding
from evalsvc.kernels.latent_attention import read_rows
from evalsvc.kernels.latent_decode import latent_decode_torch
from evalsvc.kernels.page_table import Guarding

from .latents import latents
from .paging import DEVICE, there

pytest.importorskip("triton")
latent_decode = there(module.latent_decode)
SWEEP = [  # rank, rope, heads, pages, whose scale, queries, most, lengths, queries of each
    (512, 64, 16, "bf16", "", "bf16", 20, [1, 15, 16, 17, 33], None),
    (256, 64, 20, "fp8", "tile", "bf16", 70, [130, 3], None),
    (64, 16, 3, "fp8", "one", "bf16", 16, [64, 65], [3, 1]),
    (64, 32, 5, "fp32", "", "fp32", 33, [40, 33, 2], [2, 33, 2]),
    (32, 16, 1, "bf16", "", "bf16", 1, [1, 2, 16, 31, 33, 48, 49, 64, 7], None),
]


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Splits of 64 keys, so that some are merged."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for place in (module, decoding):
        monkeypatch.setattr(place, "SPLIT", 64)


def lists(table, most, generator):
    """Of each query random positions that it sees, ascending; behind them what nobody may read."""
    chosen = torch.full((len(table.lengths), most), 2**31 - 1, dtype=torch.int32)
    for i, length in enumerate(table.lengths.tolist()):
        some = torch.randperm(length, generator=generator)[:most].sort().values
        chosen[i, : len(some)] = some
    return chosen


def made(rank, rope, heads, kind, per, queries, most, lengths, counts):
    """Arguments before `guarding`, lists, and what the pages are."""
    held = latents(rank, rope, kind, per, lengths, counts)
    table = held.table.by_query
    q = held.random(len(table.lengths), heads, rank + rope, dtype=queries)
    pages = q[..., :rank].contiguous(), q[..., rank:].contiguous(), *held.pages
    return (*pages, table, (rank + rope) ** -0.5), lists(table, most, held.generator), held


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row[:7])))
def test_it_equals_its_twin_and_the_textbook(row):
    """Tolerances as of the dense form, over the keys that are read."""
    arguments, chosen, _ = made(*row)
    q_latent, q_rope, latent, keys, scale, table, scaling = arguments
    found, twin = (form(*arguments, None, chosen) for form in (latent_decode, latent_decode_torch))
    narrow = torch.float32 if torch.float32 in (q_latent.dtype, latent.dtype) else torch.bfloat16
    for i, length in enumerate(table.lengths.tolist()):
        slots = table.slots(i)[chosen[i, : min(length, chosen.shape[1])].long()]
        c, r = (t.double() for t in read_rows(latent, keys, scale, slots, narrow))
        weight = ((q_latent[i].double() @ c.T + q_rope[i].double() @ r.T) * scaling).softmax(-1)
        step = 2**-24 * (len(c) + 64 * (row[0] + row[1]) ** 0.5)
        step += {torch.float32: 0.0, torch.bfloat16: 2**-8}[narrow] + (2**-8 if q_latent.dtype != torch.float32 else 0)
        for out in (found[i], twin[i]):
            assert ((out - weight @ c).abs() <= weight @ c.abs() * step + 1e-30).all()


def test_a_list_of_all_keys_has_the_bits_of_no_list():
    """So who is beside a short request, and makes lists of a step, changes nothing of its answer."""
    arguments, _, _ = made(64, 16, 3, "fp8", "tile", "bf16", 1, [30, 130, 64], None)
    plain = latent_decode(*arguments)
    for most in (130, 200):
        assert torch.equal(latent_decode(*arguments, None, torch.arange(most).int().expand(3, -1).contiguous()), plain)


def test_stamps_of_what_is_read_are_compared_and_no_others():
    arguments, chosen, held = made(64, 16, 20, "bf16", "", "bf16", 9, [40, 130], None)
    stamps, expected = held.stamps()
    read = chosen[1].tolist()
    unread = next(position for position in range(130) if position not in read)
    for bad, faults in ((unread, [0, 0]), (read[4], [0, 1 + read[4]])):
        slot = held.table.slots(1)[bad]
        stamps[slot, 0] += 1
        for form in (latent_decode, latent_decode_torch):
            guarding = Guarding.over(stamps, expected)
            form(*arguments, guarding, chosen)
            assert guarding.first_bad().tolist() == faults
            assert guarding.sound.tolist() == [9, 9 - (bad != unread)]
        stamps[slot, 0] -= 1


def test_lists_of_another_type_or_shape_are_refused_by_name():
    arguments, chosen, _ = made(*SWEEP[3])
    for wrong, said in ((chosen.long(), "chosen is torch.int64"), (chosen[1:], r"chosen has shape \(36, 33\)")):
        with pytest.raises(CapabilityError, match=f"kernel latent_decode: {said}"):
            latent_decode(*arguments, None, wrong)
