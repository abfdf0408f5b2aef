"""Figures out of stored measurements."""

from dataclasses import replace

import pytest

from evalsvc.errors import EvidenceError
from evalsvc.serving.figures import Estimate, StageRoom, cells, served, times_baseline
from evalsvc.store.records import Measurement


def serving(wall=2.0, repeat=0, **fields):
    blank = {
        "fingerprint": "f",
        "arm": "a",
        "plan": "w=bf16",
        "device": "cpu:AVX512",
        "settings_hash": "s",
        "settings": {},
        "kind": "serving",
        "prompt_tokens": 32,
        "concurrency": 2,
        "repeat": repeat,
        "figures": {
            "ttft_s": [0.1, 0.3],
            "itl_s": [0.01, 0.02, 0.03],
            "e2e_s": [0.2, 0.4],
            "prompt_tokens": 64,
            "generated_tokens": 6,
            "wall_s": wall,
        },
    }
    return Measurement(**{**blank, **fields})


PRICE = serving(kind="price", prompt_tokens=0, concurrency=0, settings_hash="", figures={"per_hour": 3.6})


def test_the_interval_is_students_over_repeats():
    """Table value t(0.975, 2) = 4.3027; the standard error of 1, 2, 3 is 1 / sqrt 3."""
    found = Estimate.of([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.repeats == 3
    assert found.high == pytest.approx(2 + 4.302653 / 3**0.5, rel=1e-6)
    assert found.low == pytest.approx(2 - 4.302653 / 3**0.5, rel=1e-6)


def test_one_repeat_has_no_interval():
    assert Estimate.of([5.0]) == Estimate(5.0, None, None, 1)


def test_rates_are_of_the_whole_repeat_prompts_and_answers_apart():
    (cell,) = cells([serving(2.0), serving(4.0, repeat=1)])
    assert cell.prompt_tokens_s is not None and cell.generated_tokens_s is not None
    assert cell.prompt_tokens_s.mean == (32 + 16) / 2
    assert cell.generated_tokens_s.mean == (3 + 1.5) / 2
    assert cell.times["ttft_s"][50].mean == pytest.approx(0.2)
    assert cell.requests == 4 and cell.cost_per_million_tokens is None


def test_cost_is_the_price_over_the_rate():
    (cell,) = served([serving(), PRICE])
    assert cell.cost_per_million_tokens is not None and cell.cost_per_million_generated is not None
    assert cell.cost_per_million_tokens.mean == pytest.approx(3.6 / 3600 / 35 * 1e6)
    assert cell.cost_per_million_generated.mean == pytest.approx(3.6 / 3600 / 3 * 1e6)


def test_a_cell_that_did_not_fit_is_a_result_without_figures():
    (cell,) = cells([serving(status="no_room", message="no pages", figures={})])
    assert (cell.status, cell.message, cell.generated_tokens_s, cell.times) == ("no_room", "no pages", None, {})


def test_figures_of_two_classes_of_devices_are_not_compared():
    (ours,), (theirs,) = cells([serving()]), cells([serving(device="cuda:90")])
    with pytest.raises(EvidenceError, match="two classes of devices"):
        times_baseline(ours, theirs)


def test_ratios_are_taken_inside_each_repeat():
    """A machine that is slow for a while is slow for both; a repeat that one of them lacks is left out."""
    (ours,) = cells([serving(2.0), serving(20.0, repeat=1), serving(1.0, repeat=2)])
    (theirs,) = cells([serving(1.0), serving(10.0, repeat=1)])
    assert times_baseline(ours, theirs) == Estimate(2.0, 2.0, 2.0, 2)
    (none,) = cells([serving(status="no_room", figures={})])
    assert times_baseline(ours, none) is None


def test_what_fits_is_what_weights_leave_in_whole_pages():
    room = StageRoom(1000, 200, 10.0, None, 1200 + 16 * 10 * 5 + 159)
    assert room.tokens == 80
    assert room.requests(16) == 5 and room.requests(17) == 2 and room.requests(81) == 0
    assert replace(room, memory_bytes=1100).tokens == 0
