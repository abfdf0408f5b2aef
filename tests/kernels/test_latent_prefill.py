"""Triton's expanded latent attention against its twin and float64, over pages poisoned with NaN."""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import latent_prefill as module
from evalsvc.kernels.latent_attention import read_rows
from evalsvc.kernels.latent_prefill import latent_prefill_torch
from evalsvc.kernels.page_table import Guarding

from .latents import latents
from .paging import DEVICE, there

pytest.importorskip("triton")
latent_prefill = there(module.latent_prefill)
SWEEP = [  # rank, rope, heads, nope, v, pages, whose scale, queries, keys of requests, queries of each
    (512, 64, 1, 128, 128, "bf16", "", "bf16", [17], [16]),
    (256, 16, 2, 24, 20, "fp8", "tile", "bf16", [65, 3], [9, 3]),
    (64, 16, 3, 32, 48, "fp8", "one", "bf16", [64, 16, 40], [64, 1, 7]),
    (96, 16, 2, 24, 32, "fp32", "", "fp32", [33, 16], [2, 16]),
    (48, 24, 1, 16, 16, "bf16", "", "fp32", [1, 2, 15, 16, 17, 31, 32, 33, 48], [1, 2, 3, 1, 17, 1, 1, 9, 4]),
]
FORMS = (latent_prefill, latent_prefill_torch)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def made(rank, rope, heads, nope, v, kind, per, queries, lengths, counts) -> tuple:
    held = latents(rank, rope, kind, per, lengths, counts)
    q = held.random(sum(counts), heads, nope + rope, dtype=queries)
    up = (held.random(heads, nope + v, rank) * rank**-0.5).to(q.dtype)
    asking = q[..., :nope].contiguous(), q[..., nope:].contiguous()
    return (*asking, *held.pages, up, held.table, (nope + rope) ** -0.5), held


def textbook(arguments) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The formula in float64 of latents as they are read; of values' magnitudes; largest score of magnitudes."""
    q_nope, q_rope, latent, rope, scale, up, table, scaling = arguments
    narrow = torch.float32 if torch.float32 in (q_nope.dtype, latent.dtype) else torch.bfloat16
    nope, rows, largest = q_nope.shape[2], [], 0.0
    asking = torch.cat([q_nope, q_rope], -1).double().split(list(table.counts))
    for i, (length, q) in enumerate(zip(table.lengths.tolist(), asking, strict=True)):
        c, r = (t.double() for t in read_rows(latent, rope, scale, table.slots(i), narrow))
        both = torch.einsum("sr,hnr->shn", c, up.double())
        key = torch.cat([both[..., :nope], r[:, None].expand(-1, len(up), -1)], -1)
        score = torch.einsum("thd,shd->hts", q, key) * scaling
        largest = max(largest, float(torch.einsum("thd,shd->hts", q.abs(), key.abs()).max()) * scaling)
        unseen = torch.arange(length) > torch.arange(length - len(q), length)[:, None]
        weight, value = score.masked_fill(unseen, -torch.inf).softmax(-1), both[..., nope:]
        rows.append(torch.stack([torch.einsum("hts,shv->thv", weight, v) for v in (value, value.abs())]))
    return *torch.cat(rows, 1).unbind(), largest


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row[:8])))
def test_it_equals_its_twin_and_the_textbook(row):
    """In bf16 a key's numbers are off by 2^-9 of themselves: a score by 2^-9 of its terms' magnitudes, and a weight by
    as much of itself, above and below the line of the softmax; values, weights and results by 2^-9 each. fp32 sums
    err by n 2^-24 of their terms' magnitudes."""
    arguments, _ = made(*row)
    q, latent = arguments[0], arguments[2]
    found, twin = (form(*arguments) for form in FORMS)
    assert found.dtype == twin.dtype == q.dtype and not found.isnan().any()
    wanted, weighed, largest = textbook(arguments)
    step = 2**-24 * (max(row[8]) + 2 * (row[0] + row[3] + row[1]) * largest)
    if torch.float32 not in (q.dtype, latent.dtype):
        step += 2**-9 * (3 + 2 * largest)
    for out in (found, twin):
        assert ((out - wanted).abs() <= weighed * step + 1e-30).all()
    if q.dtype != torch.float32:
        step = 2**-9 * 4
    assert ((found - twin).float().abs() <= weighed * step + 1e-30).all()  # both round keys alike


def test_how_many_heads_are_multiplied_out_at_once_changes_no_bit(monkeypatch):
    arguments, _ = made(*SWEEP[2])
    together = latent_prefill(*arguments)
    monkeypatch.setattr(module, "_MOST_NUMBERS", 1)
    assert torch.equal(latent_prefill(*arguments), together)


def test_neighbours_and_chunks_change_no_bit():
    arguments, held = made(*SWEEP[2])
    together, (q_nope, q_rope, *pages, _, scaling) = latent_prefill(*arguments), arguments
    table = held.table
    for rows, length, count in ((slice(0, 20), 20, 20), (slice(20, 64), 64, 44)):  # the first request in two chunks
        part = type(table).of([table.pages[0, : -(-length // 16)].tolist()], [length], [count])
        alone = latent_prefill(q_nope[rows], q_rope[rows], *pages, part, scaling)
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("row", [SWEEP[1], SWEEP[2]], ids=lambda row: str(row[6]))
def test_a_scale_that_only_the_reader_doubles_changes_the_output(row):
    arguments, _ = made(*row)
    plain, doubled = (latent_prefill(*arguments[:4], arguments[4] * by, *arguments[5:]) for by in (1, 2))
    assert (doubled - plain).abs().max() > 0.3 * plain.abs().max()


@pytest.mark.parametrize("at_once", [1, 2**29])
def test_every_slot_is_compared_once_whatever_the_number_of_heads(monkeypatch, at_once):
    monkeypatch.setattr(module, "_MOST_NUMBERS", at_once)
    arguments, held = made(64, 16, 3, 100, 48, "bf16", "", "bf16", [40, 33], [7, 33])
    stamps, expected = held.stamps()
    for bad in (None, 39, 0):
        if bad is not None:
            stamps[held.table.slots(0)[bad], 1] += 1
        for form in FORMS:
            guarding = Guarding.over(stamps, expected)
            form(*arguments, guarding)
            assert guarding.first_bad().tolist() == [0 if bad is None else bad + 1, 0]
            assert guarding.sound.tolist() == [40 - (bad is not None), 33]
        if bad is not None:
            stamps[held.table.slots(0)[bad], 1] -= 1


REFUSED = {
    "tiles": "rank 80 in 2 tiles is no whole number of 16 in each",
    "scale": "torch.bfloat16 pages and scales do not go together",
    "up": r"up has shape \(2, 44, 64\) for 3 heads of 24 and a rank of 64",
    "rope": "rope_pages are torch.float32 beside latents in torch.bfloat16",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused_by_name(what):
    kind = ("fp8", "tile") if what == "tiles" else ("bf16", "")
    given = list(made(80 if what == "tiles" else 64, 16, 3, 24, 20, *kind, "bf16", [20], [2])[0])
    if what == "scale":
        given[4] = torch.tensor(1.0)
    elif what == "up":
        given[5] = given[5][:2]
    elif what == "rope":
        given[3] = given[3].float()
    for form in FORMS:
        with pytest.raises(CapabilityError, match=f"kernel latent_prefill: {REFUSED[what]}"):
            form(*given)
