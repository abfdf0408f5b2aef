"""Clusters that flip as one, losses alone: the case in which t on totals is too short towards a drop."""

import numpy as np
import pytest

from evalsvc.verdict.measure import measure, measure_counts

CLUSTERS, SIZE, MARGIN = 56, 4, 0.05
LABELS = [f"prefix-{i}" for i in range(CLUSTERS) for _ in range(SIZE)]


def simulated_upper_bounds(runs: int, together: bool) -> np.ndarray:
    """Upper bounds at a true drop equal to the margin, by nothing but losses."""
    rng = np.random.default_rng(7)
    bounds = []
    for _ in range(runs):
        lost = rng.random(CLUSTERS).repeat(SIZE) if together else rng.random(CLUSTERS * SIZE)
        bounds.append(measure([1] * len(LABELS), [int(u >= MARGIN) for u in lost], LABELS).upper)
    return np.array(bounds)


@pytest.mark.parametrize("together", [True, False])
def test_a_false_pass_is_as_rare_as_promised(together: bool) -> None:
    runs = 600
    false_pass = float((simulated_upper_bounds(runs, together) <= MARGIN).mean())
    assert false_pass <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_items_that_flip_together_count_for_fewer() -> None:
    """Eight losses in two whole clusters bound the drop like two of 56, by t; spread out, like eight of 224."""
    gathered = measure([1] * 224, [0] * 8 + [1] * 216, LABELS)
    spread = measure([1] * 224, [0 if i % 28 == 0 else 1 for i in range(224)], LABELS)
    assert spread.upper < 0.066 < 0.1 < gathered.upper
    assert gathered.upper == pytest.approx(measure_counts(2, 0, 56, alpha=0.05).upper, abs=0.01)


def test_without_a_flip_the_bound_is_that_of_independent_items() -> None:
    assert measure([1] * 224, [1] * 224, LABELS).upper == measure_counts(0, 0, 224).upper
