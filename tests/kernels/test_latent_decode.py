"""Triton's absorbed latent attention against its twin and float64, over pages poisoned with NaN.

On a CPU the kernel runs in Triton's interpreter.
"""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import latent_decode as module
from evalsvc.kernels import paged_decode as decoding
from evalsvc.kernels.latent_attention import read_rows
from evalsvc.kernels.latent_decode import latent_decode_torch
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable

from .latents import latents
from .paging import DEVICE, there

pytest.importorskip("triton")
latent_decode = there(module.latent_decode)
SWEEP = [  # rank, rope, heads, pages, whose scale, queries, lengths
    (512, 64, 16, "bf16", "", "bf16", [1, 15, 16, 17]),
    (512, 64, 40, "fp8", "tile", "bf16", [130, 3]),
    (64, 16, 3, "fp8", "one", "bf16", [63, 64, 65]),
    (128, 64, 20, "fp8", "tile", "fp32", [70]),
    (64, 32, 5, "fp32", "", "fp32", [1, 40, 33]),
    (32, 16, 1, "bf16", "", "bf16", [1, 2, 16, 31, 33, 48, 49, 64, 7]),
]


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Splits of 64 keys, so that some are merged."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for place in (module, decoding):
        monkeypatch.setattr(place, "SPLIT", 64)


def made(rank, rope, heads, kind, per, queries, lengths) -> tuple:
    held = latents(rank, rope, kind, per, lengths, seed=heads)
    q = held.random(len(lengths), heads, rank + rope, dtype=queries)
    return q[..., :rank].contiguous(), q[..., rank:].contiguous(), *held.pages, held.table, (rank + rope) ** -0.5


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row[:6])))
def test_it_equals_its_twin_and_the_textbook(row):
    """Weights and results are rounded to bf16, 2^-8 of what is weighed each; fp32 sums err by n 2^-24 of magnitudes."""
    arguments = made(*row)
    q_latent, q_rope, latent, keys, scale, table, scaling = arguments
    found, twin = latent_decode(*arguments), latent_decode_torch(*arguments)
    assert found.dtype == twin.dtype == q_latent.dtype
    narrow = torch.float32 if torch.float32 in (q_latent.dtype, latent.dtype) else torch.bfloat16
    for i in range(len(q_latent)):
        c, r = (t.double() for t in read_rows(latent, keys, scale, table.slots(i), narrow))
        weight = ((q_latent[i].double() @ c.T + q_rope[i].double() @ r.T) * scaling).softmax(-1)
        step = 2**-24 * (len(c) + 64 * (row[0] + row[1]) ** 0.5)
        step += {torch.float32: 0.0, torch.bfloat16: 2**-8}[narrow] + (2**-8 if q_latent.dtype != torch.float32 else 0)
        for out in (found[i], twin[i]):
            assert ((out - weight @ c).abs() <= weight @ c.abs() * step + 1e-30).all()


@pytest.mark.parametrize("row", [SWEEP[2], SWEEP[3]], ids=lambda row: str(row[4]))
def test_a_scale_that_only_the_reader_doubles_changes_the_output(row):
    arguments = made(*row)
    plain, doubled = latent_decode(*arguments), latent_decode(*arguments[:4], arguments[4] * 2, *arguments[5:])
    assert (doubled - plain).abs().max() > 0.3 * plain.abs().max()


def test_neighbours_leave_every_bit():
    arguments = made(64, 16, 3, "fp8", "tile", "bf16", [30, 200, 64])
    together, table = latent_decode(*arguments), arguments[5]
    for i in range(3):
        columns = -(-int(table.lengths[i]) // PAGE)
        mine = PageTable(table.pages[i : i + 1, :columns].contiguous(), table.lengths[i : i + 1], (1,))
        alone = latent_decode(*(q[i : i + 1] for q in arguments[:2]), *arguments[2:5], mine, arguments[6])
        assert torch.equal(alone[0], together[i])


def test_stamps_are_compared_once_whatever_the_number_of_heads():
    arguments = made(64, 16, 40, "bf16", "", "bf16", [40, 130])
    table = arguments[5]
    stamps = torch.full((len(arguments[2]), 2), -7, dtype=torch.int32)
    expected = torch.arange(1, 1 + table.pages.numel(), dtype=torch.int32).view_as(table.pages)
    for i, length in enumerate((40, 130)):
        position = torch.arange(length)
        stamps[table.slots(i), 0], stamps[table.slots(i), 1] = expected[i, position // PAGE], position.int()
    for bad, faults in ((None, [0, 0]), (99, [0, 100])):
        if bad is not None:
            stamps[table.slots(1)[bad], 1] += 1
        for form in (latent_decode, latent_decode_torch):
            guarding = Guarding.over(stamps, expected)
            form(*arguments, guarding)
            assert guarding.first_bad().tolist() == faults
            assert guarding.sound.tolist() == [40, 130 - (bad is not None)]


@pytest.mark.parametrize("listed", [False, True])
def test_requests_beyond_the_room_for_sums_are_served_after_the_others(monkeypatch, listed):
    """Findings too; nine of them are served by fours."""
    lengths = [30, 200, 64, 1, 90, 17, 130, 5, 70]
    *tensors, table, scaling = made(64, 16, 3, "fp8", "tile", "bf16", lengths)
    stamps = torch.full((len(tensors[2]), 2), -7, dtype=torch.int32)
    expected = torch.arange(1, 1 + table.pages.numel(), dtype=torch.int32).view_as(table.pages)
    for i, length in enumerate(lengths):
        position = torch.arange(length)
        stamps[table.slots(i), 0], stamps[table.slots(i), 1] = expected[i, position // PAGE], position.int()
    stamps[table.slots(4)[0], 1] += 1
    chosen = torch.arange(70, dtype=torch.int32).flip(0).repeat(len(lengths), 1) if listed else None
    if chosen is not None:
        for row, length in zip(chosen, lengths, strict=True):
            row[: min(length, 70)] = torch.arange(min(length, 70), dtype=torch.int32)
    found = []
    for room in (module._MOST_SUMS, 1):
        monkeypatch.setattr(module, "_MOST_SUMS", room)
        guarding = Guarding.over(stamps, expected)
        out = latent_decode(*tensors, table, scaling, guarding, chosen)
        found.append((out, guarding.sound, guarding.first_bad()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert found[1][2].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    wanted = [min(length, 70) if listed else length for length in lengths]
    assert found[1][1].tolist() == [n - (i == 4) for i, n in enumerate(wanted)]


def test_sums_held_at_once_are_bounded():
    slices = module._slices(1000, 4 * 64 * 512)
    assert [one.start for one in slices] == [0, 512] and slices[0].stop == 512
    assert [one.stop - one.start for one in module._slices(8, 2**30)] == [4, 4]


REFUSED = {
    "rank": "rank 48 and rope 16 are not both powers of two",
    "rope": "rope_pages are torch.float8_e4m3fn beside latents in torch.bfloat16",
    "scale": "torch.bfloat16 pages and scales do not go together",
    "queries": "a request has more than one query, or none",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused_by_name(what):
    given = list(made(48 if what == "rank" else 64, 16, 3, "bf16", "", "bf16", [20]))
    if what == "rope":
        given[3] = given[3].to(torch.float8_e4m3fn)
    elif what == "scale":
        given[4] = torch.tensor(1.0)
    elif what == "queries":
        given[5] = PageTable(given[5].pages, given[5].lengths, (2,))
    for form in (latent_decode, latent_decode_torch):
        with pytest.raises(CapabilityError, match=f"kernel latent_decode: {REFUSED[what]}"):
            form(*given)
