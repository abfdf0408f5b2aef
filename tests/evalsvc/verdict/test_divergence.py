"""KL of many tokens: observed quantiles, and the same by place."""

import numpy as np
import pytest

from evalsvc.verdict.divergence import summary


def test_quantiles_are_observed_values_that_so_many_tokens_do_not_exceed():
    kl = np.arange(1, 2001) / 1000
    found = summary(np.random.default_rng(1).permutation(kl).tolist(), [True] * 2000, [0] * 2000)
    assert (found["kl_median"], found["kl_p99"], found["kl_p999"], found["kl_max"]) == (1.0, 1.98, 1.998, 2.0)
    assert found["kl_mean"] == pytest.approx(1.0005) and found["tokens"] == 2000


def test_of_few_tokens_the_last_quantile_is_the_largest():
    found = summary([0.0, 3.0, 1.0], [True, False, True], [0, 1, 2])
    assert (found["kl_median"], found["kl_p999"], found["kl_max"]) == (1.0, 3.0, 3.0)
    assert found["same_top1"] == pytest.approx(2 / 3)


def test_ranges_of_places_double_hold_every_token_and_skip_what_is_empty():
    places = [0, 7, 8, 15, 16, 31, 32, 200]
    found = summary([float(place) for place in places], [place < 16 for place in places], places)["along"]
    assert [(part["start"], part["end"], part["tokens"]) for part in found] == [
        (0, 8, 2),
        (8, 16, 2),
        (16, 32, 2),
        (32, 64, 1),
        (128, 256, 1),
    ]
    assert [part["kl_mean"] for part in found] == [3.5, 11.5, 23.5, 32.0, 200.0]
    assert [part["same_top1"] for part in found] == [1.0, 1.0, 0.0, 0.0, 0.0]
