"""Which keys sparse attention reads: Triton's choice against its twin and float64, over pages poisoned with NaN."""

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import index_ranks as module
from evalsvc.kernels.fp8 import quantize_e4m3
from evalsvc.kernels.index_ranks import choose_keys_torch, ranks_of
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable

from .latents import NAMES, scattered, slots_of
from .paging import DEVICE, there

pytest.importorskip("triton")
choose_keys = there(module.choose_keys)
SWEEP = [  # heads, dim, keys, queries, lengths, queries of each request
    (4, 32, "bf16", "bf16", [1, 15, 16, 17], None),
    (32, 128, "fp8", "bf16", [130, 40], [1, 9]),
    (3, 20, "fp32", "fp32", [40, 33, 2], [3, 33, 2]),
    (17, 64, "fp8", "fp32", [20, 5], [20, 1]),
    (2, 16, "bf16", "bf16", [1, 2, 16, 31, 33, 48, 49, 64, 7], None),
]
SCALE = 0.25
FORMS = (choose_keys, choose_keys_torch)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def made(heads, dim, kind, queries, lengths, counts, whole: bool):
    """Arguments before `topk`. Whole numbers have exact scores in any order of sums, and many equal ones."""
    g = torch.Generator().manual_seed(heads + dim)
    table = scattered(lengths, counts or [1] * len(lengths), g)
    tokens, slots = sum(table.counts), slots_of(table)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=g).float() if whole else torch.randn(shape, generator=g)

    q, weights, keys = numbers(tokens, heads, dim).to(NAMES[queries]), numbers(tokens, heads), numbers(slots, dim)
    scale = None
    written = torch.cat([table.slots(i) for i in range(len(lengths))])
    poison = torch.ones(slots, dtype=torch.bool)
    poison[written] = False
    keys[poison] = torch.nan
    if kind == "fp8":
        scale = torch.full((slots,), 0.5) if whole else 0.01 + 0.01 * torch.rand(slots, generator=g)
        keys = quantize_e4m3(keys, scale[:, None])
        scale[poison] = torch.nan
    return q, weights, keys if kind == "fp8" else keys.to(NAMES[kind]), scale, table, SCALE


def scores(arguments):
    """By query the formula in float64, of the keys that it sees."""
    q, weights, keys, scale, table, _ = arguments
    row = 0
    for i, (length, count) in enumerate(zip(table.lengths.tolist(), table.counts, strict=True)):
        slots = table.slots(i)
        k = keys.float()[slots].double() * (1 if scale is None else scale[slots].double()[:, None])
        for place in range(length - count, length):
            each = (q[row].double() @ k[: place + 1].T * SCALE).relu()
            yield weights[row].double() @ each, (weights[row].double().abs() @ each).max()
            row += 1


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row[:4])))
def test_whole_numbers_give_the_very_keys_of_highest_score_and_of_equal_ones_the_earlier(row):
    arguments = made(*row, whole=True)
    for topk in (1, 9, 16, 500):
        found, twin = (form(*arguments, topk) for form in FORMS)
        assert torch.equal(found, twin)
        assert found.shape == (len(arguments[0]), min(topk, arguments[4].pages.shape[1] * PAGE))
        for chosen, (score, _) in zip(found, scores(arguments), strict=True):
            best = score.sort(descending=True, stable=True).indices[:topk].sort().values
            assert torch.equal(chosen[: len(best)].long(), best) and (chosen[len(best) :] > len(score) - 1).all()


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row[:4])))
def test_of_any_numbers_no_key_is_left_out_that_scores_higher_than_a_chosen_one(row):
    """But for fp32 sums of n products, which err by n 2^-24 of their magnitudes."""
    arguments = made(*row, whole=False)
    for form in FORMS:
        found = form(*arguments, 7)
        for chosen, (score, magnitude) in zip(found, scores(arguments), strict=True):
            mine = chosen[: min(7, len(score))].long()
            assert (mine[1:] > mine[:-1]).all() and mine[-1] < len(score)
            rest = torch.ones(len(score), dtype=torch.bool)
            rest[mine] = False
            if rest.any():
                assert score[rest].max() <= score[mine].min() + 2**-24 * 2 * (row[0] + row[1]) * magnitude


def test_neighbours_chunks_and_slices_change_no_choice(monkeypatch):
    """Of numbers whose sums are rounded: other bits of a score would show in some choice of 70 keys' order."""
    arguments = made(5, 32, "fp8", "bf16", [70, 33, 40], [30, 1, 9], whole=False)
    q, weights, keys, scale, table, _ = arguments
    together = [choose_keys(*arguments, topk) for topk in (3, 20)]
    monkeypatch.setattr(module, "_MOST_RANKS", 1)
    assert all(torch.equal(choose_keys(*arguments, k), found) for k, found in zip((3, 20), together, strict=True))
    columns = -(-50 // PAGE)
    earlier = PageTable(table.pages[:1, :columns].contiguous(), torch.tensor([50], dtype=torch.int32), (10,))
    for k, found in zip((3, 20), together, strict=True):
        assert torch.equal(choose_keys(q[:10], weights[:10], keys, scale, earlier, SCALE, k), found[:10])
    one = PageTable(table.pages[1:2].contiguous(), table.lengths[1:2], (1,))
    alone = choose_keys(q[30:31], weights[30:31].contiguous(), keys, scale, one, SCALE, 20)
    assert torch.equal(alone, together[1][30:31])


def test_a_scale_that_only_the_reader_changes_changes_the_choice():
    arguments = list(made(4, 32, "fp8", "bf16", [60], [1], whole=False))
    arguments[1] = arguments[1].abs()
    best = int(choose_keys(*arguments, 1)[0, 0])
    changed = arguments[3].clone()
    changed[arguments[4].slots(0)[best]] /= 16
    arguments[3] = changed
    assert int(choose_keys(*arguments, 1)[0, 0]) != best
    arguments[3] = changed * 2
    assert torch.equal(choose_keys(*arguments, 5), choose_keys(*arguments[:3], changed, *arguments[4:], 5))


@pytest.mark.parametrize("counts", [[1, 1], [20, 3]])
def test_every_key_of_a_request_is_compared_once(counts):
    arguments = made(3, 16, "bf16", "bf16", [40, 130], counts, whole=False)
    table = arguments[4]
    stamps = torch.full((len(arguments[2]), 2), -7, dtype=torch.int32)
    expected = torch.arange(1, 1 + table.pages.numel(), dtype=torch.int32).view_as(table.pages)
    for i, length in enumerate((40, 130)):
        position = torch.arange(length)
        stamps[table.slots(i), 0], stamps[table.slots(i), 1] = expected[i, position // PAGE], position.int()
    for bad in (None, 39, 25, 0):
        if bad is not None:
            stamps[table.slots(0)[bad], 1] += 1
        for form in FORMS:
            guarding = Guarding.over(stamps, expected)
            form(*arguments, 5, guarding)
            assert guarding.first_bad().tolist() == [0 if bad is None else bad + 1, 0]
            assert guarding.sound.tolist() == [40 - (bad is not None), 130]
        if bad is not None:
            stamps[table.slots(0)[bad], 1] -= 1


def test_ranks_ascend_with_scores_and_descend_with_positions():
    ascending = torch.tensor([-torch.inf, -2.5, -1e-40, 0.0, 1e-40, 3.0, torch.inf, torch.nan])
    ranks = ranks_of(ascending, torch.zeros(8, dtype=torch.long))
    assert (ranks[1:] > ranks[:-1]).all() and ranks[0] > module.LOWEST
    zeros = ranks_of(torch.tensor([0.0, -0.0, torch.nan, -torch.nan]), torch.tensor([1, 2, 1, 2]))
    assert zeros[0] == zeros[1] + 1 and zeros[2] == zeros[3] + 1


REFUSED = {
    "scale": "torch.bfloat16 pages and scales do not go together",
    "weights": "weights are torch.bfloat16, not torch.float32",
    "dim": "q has index_dim 16, key_pages 8",
    "topk": "topk 0 is below 1",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused_by_name(what):
    given = [*made(3, 16, "bf16", "bf16", [20], [2], whole=True), 4]
    if what == "scale":
        given[3] = torch.ones(len(given[2]))
    elif what == "weights":
        given[1] = given[1].bfloat16()
    elif what == "dim":
        given[2] = given[2][:, :8].contiguous()
    else:
        given[6] = 0
    for form in FORMS:
        with pytest.raises(CapabilityError, match=f"kernel index_ranks: {REFUSED[what]}"):
            form(*given)
