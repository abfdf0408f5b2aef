"""Triton's kernels over pages against their twins; the twins against the textbook in float64.

On a CPU the kernels run in Triton's interpreter.
"""

from collections import Counter

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import paged_decode as decoding
from evalsvc.kernels import paged_launch as launching
from evalsvc.kernels.dispatch import counting
from evalsvc.kernels.page_table import Guarding, PageTable
from evalsvc.kernels.paged_decode import paged_decode as on_pages_decode
from evalsvc.kernels.paged_decode import paged_decode_torch
from evalsvc.kernels.paged_prefill import paged_prefill as on_pages_prefill
from evalsvc.kernels.paged_prefill import paged_prefill_torch

from .paging import DEVICE, KV_HEADS, paged, textbook, there, tolerance

pytest.importorskip("triton")
paged_decode, paged_prefill = there(on_pages_decode), there(on_pages_prefill)
FORMS = {"decode": (paged_decode, paged_decode_torch), "prefill": (paged_prefill, paged_prefill_torch)}


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def sinks_of(heads: int) -> torch.Tensor:
    return torch.linspace(-2, 3, heads)


# Every pair of (kind and scale) x (head dims) x (group) x (option) x (lengths) that matters occurs once.
KINDS = {
    "bf16": ("bf16", ""),
    "fp32": ("fp32", ""),
    "fp8 tensor": ("fp8", "tensor"),
    "fp8 head": ("fp8", "head"),
    "fp8 token": ("fp8", "token-head"),
    "int8 head": ("int8", "head"),
    "int8 token": ("int8", "token-head"),
}
LENGTHS = {
    "short": [1, 15, 16, 17],
    "borders": [63, 64, 65],
    "one": [130],
    "nine": [1, 2, 16, 31, 33, 48, 49, 64, 7],
}
OPTIONS = {
    "plain": {},
    "window": {"window": 17},
    "capped": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"window": 33, "softcap": 2.5, "sinks": True},
}
SWEEP = [  # kind, (head_dim, v_dim), group, option, lengths, queries
    ("bf16", (64, 64), 1, "plain", "short", "bf16"),
    ("bf16", (80, 80), 3, "all", "borders", "bf16"),
    ("bf16", (192, 128), 4, "sinks", "one", "bf16"),
    ("bf16", (128, 128), 16, "window", "nine", "bf16"),
    ("bf16", (96, 96), 5, "capped", "short", "fp32"),
    ("fp32", (64, 64), 4, "window", "borders", "bf16"),
    ("fp32", (80, 80), 1, "sinks", "one", "fp32"),
    ("fp32", (128, 128), 3, "plain", "short", "fp32"),
    ("fp8 tensor", (64, 64), 16, "capped", "one", "bf16"),
    ("fp8 tensor", (128, 128), 4, "all", "short", "bf16"),
    ("fp8 head", (80, 80), 4, "window", "short", "bf16"),
    ("fp8 head", (192, 128), 1, "plain", "borders", "fp32"),
    ("fp8 token", (128, 128), 1, "sinks", "borders", "bf16"),
    ("fp8 token", (192, 128), 3, "all", "nine", "bf16"),
    ("fp8 token", (64, 64), 3, "plain", "one", "fp32"),
    ("int8 head", (128, 128), 3, "capped", "borders", "bf16"),
    ("int8 head", (64, 64), 1, "all", "one", "bf16"),
    ("int8 token", (80, 80), 16, "plain", "nine", "bf16"),
    ("int8 token", (192, 128), 4, "window", "short", "bf16"),
    ("int8 token", (24, 24), 2, "sinks", "short", "bf16"),
]


def options_of(name: str, heads: int) -> dict:
    return {k: sinks_of(heads) if k == "sinks" else v for k, v in OPTIONS[name].items()}


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row)))
def test_decode_equals_its_twin_and_the_textbook(row, monkeypatch):
    """Splits of 64 keys where requests are longer: they are merged, as a long context's are."""
    kind, (dim, v_dim), group, option, lengths, queries = row
    monkeypatch.setattr(decoding, "SPLIT", 64)
    case = paged([(n, 1) for n in LENGTHS[lengths]], group, dim, v_dim, *KINDS[kind], queries, seed=len(kind))
    options = options_of(option, group * KV_HEADS)
    held_against_both("decode", case, options)


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: "-".join(map(str, row)))
def test_prefill_equals_its_twin_and_the_textbook(row):
    """Requests without a prefix, with one, with one query, and without queries."""
    kind, (dim, v_dim), group, option, lengths, queries = row
    news = {"short": [1, 15, 1, 9], "borders": [63, 1, 30], "one": [70], "nine": [1, 2, 0, 31, 1, 3, 17, 0, 7]}
    requests = list(zip(LENGTHS[lengths], news[lengths], strict=True))
    case = paged(requests, group, dim, v_dim, *KINDS[kind], queries, seed=len(kind))
    held_against_both("prefill", case, options_of(option, group * KV_HEADS))


@pytest.mark.parametrize("dim", [64, 192])  # short heads, and long ones, whose tiles are lower
@pytest.mark.parametrize("form", FORMS)
def test_e4m3_is_read_as_bytes_where_hardware_does_not_know_it(form, dim, monkeypatch):
    monkeypatch.setattr(launching, "held", lambda pages: (pages.view(torch.uint8), launching.E4M3_BYTES))
    requests = [(n, 1) for n in LENGTHS["short"]] if form == "decode" else [(50, 40), (17, 1), (33, 9)]
    case = paged(requests, 4, dim, None, "fp8", "token-head", seed=dim)
    held_against_both(form, case, options_of("all", 4 * KV_HEADS))


def held_against_both(form, case, options):
    kernel, twin = FORMS[form]
    counter: Counter[str] = Counter()
    with counting(counter):
        found, plain = kernel(*case.arguments(), **options), twin(*case.arguments(), **options)
    assert counter == {f"paged_{form}.triton": 1, f"paged_{form}.torch": 1}
    assert found.dtype == plain.dtype == case.q.dtype and found.shape == plain.shape
    expected, allowed = textbook(case, **options), tolerance(case, **options)
    assert found.isfinite().all() and plain.isfinite().all()
    assert ((plain - expected).abs() <= allowed).all(), float(((plain - expected).abs() / allowed).max())
    assert ((found - expected).abs() <= allowed).all(), float(((found - expected).abs() / allowed).max())


def output(form: str, per: str, written: float, read: float, kind: str = "fp8") -> torch.Tensor:
    """Of the same keys and values, stored with scales times `written` and read with scales times `read`."""
    case = paged([(40, 1), (17, 1)], 2, 64, None, "bf16", seed=5)
    from evalsvc.kernels.kv_write import kv_write

    slots = torch.cat([case.table.slots(i) for i in range(2)])
    shape = {"tensor": (), "head": (KV_HEADS,)}[per]
    scales, pages = [], []
    for held in (case.k_pages, case.v_pages):
        page = torch.zeros(held.shape, dtype={"fp8": torch.float8_e4m3fn, "int8": torch.int8}[kind])
        scale = torch.full(shape, 4 / {"fp8": 448, "int8": 127}[kind]) * (1 + torch.arange(max(shape or (1,)))[0])
        kv_write(page, scale * written, slots, held[slots].float())
        pages.append(page)
        scales.append(scale * read)
    return FORMS[form][0](case.q, *pages, *scales, case.table, case.scaling).float()


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("per", ["tensor", "head"])
@pytest.mark.parametrize("form", FORMS)
def test_a_scale_doubled_on_one_side_shows_and_on_both_sides_does_not(form, per, kind):
    plain = output(form, per, 1.0, 1.0, kind)
    assert (output(form, per, 2.0, 2.0, kind) - plain).abs().max() < 0.05 * plain.abs().max()
    assert (output(form, per, 1.0, 2.0, kind) - plain).abs().max() > 0.3 * plain.abs().max()


@pytest.mark.parametrize("kind", ["bf16", "fp8 token"])
@pytest.mark.parametrize("option", ["plain", "all"])
def test_neighbours_and_their_lengths_leave_every_bit(kind, option, monkeypatch):
    """A long neighbour makes more splits, and a merge where there was none."""
    monkeypatch.setattr(decoding, "SPLIT", 64)
    options = options_of(option, 4)
    case = paged([(30, 1), (200, 1), (64, 1)], 2, 64, None, *KINDS[kind])
    together = paged_decode(*case.arguments(), **options)
    for i, q in enumerate(case.q):
        table = PageTable(case.table.pages[i : i + 1].contiguous(), case.table.lengths[i : i + 1], (1,))
        columns = -(-int(table.lengths) // 16)
        table = PageTable(table.pages[:, :columns].contiguous(), table.lengths, (1,))
        alone = paged_decode(q[None], *case.arguments()[1:5], table, case.scaling, **options)
        assert torch.equal(alone[0], together[i]), i


@pytest.mark.parametrize("kind", ["bf16", "fp8 token"])
def test_how_a_prompt_is_cut_leaves_every_bit(kind):
    """Chunks of other sizes put queries in other tiles and rows, beside other keys."""
    case = paged([(100, 100)], 3, 64, None, *KINDS[kind])
    whole = paged_prefill(*case.arguments(), window=50)
    for sizes in ([1, 21, 78], [64, 36]):
        parts, done = [], 0
        for size in sizes:
            table = PageTable(case.table.pages, torch.tensor([done + size], dtype=torch.int32), (size,))
            q = case.q[done : done + size]
            parts.append(paged_prefill(q, *case.arguments()[1:5], table, case.scaling, window=50))
            done += size
        assert torch.equal(torch.cat(parts), whole), sizes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", [None, 20])
def test_stamps_are_compared_once_and_the_first_bad_one_is_told(form, window):
    """Slots that no query reads may hold anything; those of the other requests stay sound."""
    requests = [(40, 1), (70, 1), (5, 1)] if form == "decode" else [(40, 9), (150, 100), (5, 5)]
    case = paged(requests, 2, 64)
    table = case.table
    stamps = torch.full((len(case.k_pages), 2), -7, dtype=torch.int32)
    expected = torch.arange(1, 1 + table.pages.numel(), dtype=torch.int32).view_as(table.pages)
    for i in range(3):
        position = torch.arange(requests[i][0])
        stamps[table.slots(i), 0], stamps[table.slots(i), 1] = expected[i, position // 16], position.int()
    oldest = [0 if window is None else max(keys - n + 1 - window, 0) for keys, n in requests]

    def look() -> tuple[list[int], list[int]]:
        found = [Guarding.over(stamps, expected) for _ in FORMS[form]]
        outs = [f(*case.arguments(), window=window, guarding=g) for f, g in zip(FORMS[form], found, strict=True)]
        assert torch.equal(outs[0], FORMS[form][0](*case.arguments(), window=window))
        assert torch.equal(found[0].first_bad(), found[1].first_bad()) and torch.equal(found[0].sound, found[1].sound)
        return found[0].first_bad().tolist(), found[0].sound.tolist()

    reads = [keys - first for (keys, _), first in zip(requests, oldest, strict=True)]
    assert look() == ([0, 0, 0], reads)
    slots, last = table.slots(1), requests[1][0] - 1
    stamps[slots[last - 2], 0] += 1
    assert look() == ([0, last - 1, 0], [reads[0], reads[1] - 1, reads[2]])
    stamps[slots[oldest[1]], 1] += 1
    assert look() == ([0, oldest[1] + 1, 0], [reads[0], reads[1] - 2, reads[2]])
    if oldest[1]:
        stamps[slots[0], 0] += 1
        assert look() == ([0, oldest[1] + 1, 0], [reads[0], reads[1] - 2, reads[2]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bf16", "fp8 head", "int8 token"])
def test_a_nan_that_was_stored_is_seen_by_those_who_read_it(form, kind):
    case = paged([(40, 1), (70, 1)], 2, 64, None, *KINDS[kind])
    k, slot = case.k_pages, case.table.slots(1)[33]
    if kind == "int8 token":
        k[slot, 0, 5] = -128
    else:
        raw = k.view(torch.uint8 if kind != "bf16" else torch.bfloat16)
        raw[slot, 0, 5] = 0x7F if kind != "bf16" else torch.nan
    out = FORMS[form][0](*case.arguments())
    assert out[1, :2].isnan().all() and out[1, 2:].isfinite().all() and out[0].isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_codes_and_queries_of_any_size_in_fp8(form):
    """Queries of 2^-30 and 2^30, every finite code, scales from 2^-20 to 2^20: powers of two leave and return."""
    case = paged([(140, 1)], 2, 64, None, "fp8", "token-head", "fp32")
    codes = torch.arange(256, dtype=torch.uint8).repeat(len(case.k_pages) * KV_HEADS * 64 // 256 + 1)
    codes = codes[(codes & 0x7F) != 0x7F][: case.k_pages.numel()]
    slots = case.table.slots(0)
    k, v = (t.view(torch.uint8) for t in (case.k_pages, case.v_pages))
    k[slots] = codes[: k[slots].numel()].view(k[slots].shape)
    v[slots] = codes.flip(0)[: v[slots].numel()].view(v[slots].shape)
    case.v_scale[slots] = torch.exp2(torch.linspace(-20, 20, 140)).round()[:, None].clamp_min(2**-20)
    for power in (-30, 30):
        q = (case.q * 2.0**power).bfloat16()
        case.k_scale[slots] = 2.0**-power * 1e-3
        varied = type(case)(q, *case.arguments()[1:])
        out, expected = FORMS[form][0](*varied.arguments()), textbook(varied)
        assert ((out - expected).abs() <= tolerance(varied)).all()


def broken(what: str) -> dict:
    """Arguments of a launch of which one is not as the others want it."""
    case = paged([(20, 1), (17, 1)], 2, 64, None, "fp8", "head")
    names = ("q", "k_pages", "v_pages", "k_scale", "v_scale", "table", "scaling")
    given: dict = dict(zip(names, case.arguments(), strict=True))
    table = case.table
    return (
        given
        | {
            "q of fp16": {"q": case.q.half()},
            "q of another width": {"q": case.q[:, :, :32].contiguous()},
            "q strided": {"q": case.q.transpose(1, 2).contiguous().transpose(1, 2)},
            "heads": {"q": case.q[:, :3].contiguous()},
            "no scales": {"k_scale": None},
            "scales of bf16": {"k_scale": case.k_scale.bfloat16()},
            "scales of another shape": {"k_scale": torch.ones(3)},
            "scales for bf16": {"k_pages": case.k_pages.to(torch.bfloat16), "v_pages": case.v_pages.to(torch.bfloat16)},
            "two kinds": {"v_pages": case.v_pages.view(torch.int8)},
            "part of a page": {"k_pages": case.k_pages[:-1], "v_pages": case.v_pages[:-1]},
            "long tables": {"table": PageTable(table.pages.long(), table.lengths, table.counts)},
            "queries": {"table": PageTable(table.pages, table.lengths, (1, 2))},
            "requests": {"table": PageTable(table.pages, table.lengths, (2,))},
            "window": {"window": 0},
            "softcap": {"softcap": 0.0},
            "sinks": {"sinks": torch.ones(3)},
            "stamps": {"guarding": Guarding.over(torch.zeros(3, 2, dtype=torch.int32), table.pages)},
            "another device": {"k_scale": case.k_scale.to("meta")},
        }[what]
    )


REFUSED = {
    "q of fp16": "q is torch.float16; served: torch.float32, torch.bfloat16",
    "q of another width": "q has head_dim 32, k_pages 64",
    "q strided": "q is not contiguous",
    "heads": "3 heads are no multiple of 2 KV heads",
    "no scales": "torch.float8_e4m3fn pages need scales of keys and of values",
    "scales of bf16": "k_scale is torch.bfloat16, not torch.float32",
    "scales of another shape": r"k_scale has shape \(3,\); served: \(\(\), \(2,\), \(96, 2\)\)",
    "scales for bf16": "torch.bfloat16 pages have no scales",
    "two kinds": "k_pages are torch.float8_e4m3fn, v_pages torch.int8",
    "part of a page": "95 slots are no whole pages of 16",
    "long tables": "the page table is torch.int64 and torch.int32, not torch.int32",
    "queries": "3 queries are told, 2 are there",
    "requests": "1 requests have queries, 2 have pages",
    "window": "window 0 is below 1",
    "softcap": "softcap 0.0 is not above 0",
    "sinks": r"sinks have shape \(3,\), not \(4,\)",
    "stamps": r"stamps have shape \(3, 2\), not \(96, 2\)",
    "another device": "k_scale is on meta, q on ",
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_go_together_is_refused_by_name(form, what):
    for function in FORMS[form]:
        with pytest.raises(CapabilityError, match=f"kernel paged_{form}: {REFUSED[what]}"):
            function(**broken(what))


def test_decode_refuses_requests_of_several_queries():
    case = paged([(20, 2)], 2, 64)
    with pytest.raises(CapabilityError, match="paged_prefill serves it"):
        paged_decode(*case.arguments())
